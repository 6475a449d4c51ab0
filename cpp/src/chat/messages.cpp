#include "chat/messages.h"

#include <algorithm>

#include "chat/python_format.h"
#include "chat/python_strings.h"
#include "quire/error.h"
#include "util/str.h"

namespace quire::chat {
namespace {

using Kind = Value::Kind;

// What transformers puts after the content. A template may trim the space, but not the rest.
constexpr std::string_view kMark = "CONTINUE_FINAL_MESSAGE_TAG ";
constexpr std::string_view kTrimmedMark = "CONTINUE_FINAL_MESSAGE_TAG";

[[noreturn]] void fail_message(size_t index, std::string_view field, std::string_view what) {
  throw InvalidArgument(str("messages[", index, "]", field.empty() ? "" : ".", field, " ", what));
}

void check_content(size_t index, const Value& content) {
  if (content.is(Kind::kString)) return;
  if (!content.is(Kind::kList)) {
    fail_message(index, "content", str("must be a string or a list of parts, got ", content.type_name()));
  }
  const Values& parts = content.as_sequence().items;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (!parts[i].is(Kind::kDict))
      fail_message(index, str("content[", i, "]"), "must be an object with a \"type\"");
  }
}

Value with(const Dict& message, std::string_view field, Value value) {
  Dict changed = message;
  changed.set(Value(field), std::move(value));
  return Value::dict(std::move(changed));
}

// Reasoning goes by three names. The first that a message has is filled in under the others, as in
// transformers.
Dict alias_reasoning(const Dict& message) {
  for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
    const Value* reasoning = message.find(std::string_view(name));
    if (!reasoning) continue;
    Dict aliased;
    aliased.set(Value(std::string("thinking")), *reasoning);
    for (const auto& [key, value] : message.items) aliased.set(key, value);
    aliased.set(Value(std::string("reasoning_content")), *reasoning);
    return aliased;
  }
  return message;
}

}  // namespace

Values read_messages(std::string_view json) {
  const Value document = parse_json_value(json, "messages");
  if (!document.is(Kind::kList)) throw InvalidArgument("messages must be an array of objects");
  if (document.as_sequence().items.empty()) throw InvalidArgument("messages must hold at least one message");
  Values messages;
  for (const Value& item : document.as_sequence().items) {
    const size_t index = messages.size();
    if (!item.is(Kind::kDict)) fail_message(index, "", str("must be an object, got ", item.type_name()));
    Dict message;
    for (const auto& [key, value] : item.as_dict().items) {
      if (!value.is(Kind::kNone)) message.set(key, value);
    }
    const Value* role = message.find(std::string_view("role"));
    if (!role) fail_message(index, "role", "is missing");
    if (!role->is(Kind::kString))
      fail_message(index, "role", str("must be a string, got ", role->type_name()));
    if (const Value* content = message.find(std::string_view("content"))) {
      check_content(index, *content);
    } else if (role->as_string() == "assistant") {
      // As vLLM has it: answers of calls alone come back so, and templates put their content into texts.
      message.set(Value(std::string_view("content")), Value(std::string_view("")));
    }
    messages.push_back(Value::dict(alias_reasoning(message)));
  }
  return messages;
}

bool has_parts(const Values& messages) {
  return std::any_of(messages.begin(), messages.end(), [](const Value& message) {
    const Value* content = message.as_dict().find(std::string_view("content"));
    return content && content->is(Kind::kList);
  });
}

bool writes_parts(const std::function<std::string(Values)>& render) {
  constexpr std::string_view kText = "CONTENT_PART_TEXT";
  Dict part;
  part.set(Value(std::string_view("type")), Value(std::string_view("text")));
  part.set(Value(std::string_view("text")), Value(kText));
  Dict message;
  message.set(Value(std::string_view("role")), Value(std::string_view("user")));
  message.set(Value(std::string_view("content")), Value::list({Value::dict(std::move(part))}));
  try {
    const std::string rendered = render({Value::dict(std::move(message))});
    const size_t found = rendered.find(kText);
    const auto quoted = [&](const char* before) {
      return std::string_view(rendered).substr(0, found).ends_with(before);
    };
    return found != std::string::npos && !quoted("'text': '") && !quoted("\"text\": \"");
  } catch (const InvalidArgument&) {
    return false;
  }
}

void join_parts(Values& messages) {
  for (size_t index = 0; index < messages.size(); ++index) {
    const Dict& message = messages[index].as_dict();
    const Value* content = message.find(std::string_view("content"));
    if (!content || !content->is(Kind::kList)) continue;
    const Values& parts = content->as_sequence().items;
    std::string joined;
    for (size_t i = 0; i < parts.size(); ++i) {
      const Value* text = parts[i].as_dict().find(std::string_view("text"));
      if (!text || !text->is(Kind::kString)) {
        fail_message(index, str("content[", i, "]"),
                     "has no string \"text\"; this chat template takes parts of type \"text\" only");
      }
      if (i > 0) joined += '\n';
      joined += text->as_string();
    }
    messages[index] = with(message, "content", Value(std::move(joined)));
  }
}

std::string mark_final_message(Values& messages) {
  const size_t index = messages.size() - 1;
  const Dict& message = messages.back().as_dict();
  const Value* content = message.find(std::string_view("content"));
  if (!content) fail_message(index, "content", "is missing, so there is nothing to continue");
  if (content->is(Kind::kString)) {
    std::string text = content->as_string();
    messages.back() = with(message, "content", Value(text + std::string(kMark)));
    return text;
  }
  // The last part that has text.
  Values parts = content->as_sequence().items;
  for (size_t i = parts.size(); i-- > 0;) {
    const Value* found = parts[i].as_dict().find(std::string_view("text"));
    if (!found) continue;
    if (!found->is(Kind::kString)) fail_message(index, str("content[", i, "].text"), "must be a string");
    std::string text = found->as_string();
    parts[i] = with(parts[i].as_dict(), "text", Value(text + std::string(kMark)));
    messages.back() = with(message, "content", Value::list(std::move(parts)));
    return text;
  }
  fail_message(index, "content", "has no text to continue");
}

std::string cut_at_mark(std::string rendered, const std::string& content) {
  const size_t mark = rendered.rfind(kTrimmedMark);
  if (mark == std::string::npos || rendered.find(strip(content, Side::kBoth)) == std::string::npos) {
    throw InvalidArgument(
        "continue_final_message needs a chat template that writes the last message as it is; this one "
        "changes it");
  }
  const bool trimmed = !std::string_view(rendered).substr(mark).starts_with(kMark);
  rendered.resize(mark);
  if (trimmed) rendered.resize(strip(rendered, Side::kRight).size());
  return rendered;
}

}  // namespace quire::chat
