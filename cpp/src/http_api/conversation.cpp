#include "http_api/conversation.h"

#include <utility>

namespace quire {

void Conversation::begin(const std::string& role) {
  messages_.push_back({{"role", role}, {"content", nullptr}});
  role_ = role;
}

void Conversation::add_text(const std::string& text) {
  OrderedJson& content = messages_.back()["content"];
  if (content.is_null()) {
    content = text;
    return;
  }
  // Several are parts, for templates to join.
  const auto part = [](OrderedJson one) { return OrderedJson{{"type", "text"}, {"text", std::move(one)}}; };
  if (content.is_string()) content = OrderedJson::array({part(content)});
  content.push_back(part(text));
}

void Conversation::add_reasoning(const std::string& text) {
  OrderedJson& reasoning = messages_.back()["reasoning"];
  reasoning = reasoning.is_null() ? text : reasoning.get<std::string>() + text;
}

void Conversation::add_call(const std::string& id, const std::string& name, std::string arguments) {
  OrderedJson call = {{"id", id}, {"type", "function"}};
  call["function"] = {{"name", name}, {"arguments", std::move(arguments)}};
  messages_.back()["tool_calls"].push_back(std::move(call));
  name_of_call_[id] = name;
}

void Conversation::add_result(const std::string& id, const std::string& text) {
  OrderedJson message = {{"role", "tool"}, {"tool_call_id", id}, {"content", text}};
  const auto name = name_of_call_.find(id);
  if (name != name_of_call_.end()) message["name"] = name->second;
  messages_.push_back(std::move(message));
  role_.clear();
}

bool Conversation::ends_with_text_of_assistant() const {
  if (role_ != "assistant") return false;
  const OrderedJson& last = messages_.back();
  return !last["content"].is_null() && !last.contains("tool_calls");
}

std::string Conversation::json() && {
  for (OrderedJson& message : messages_) {
    // Templates join content to text.
    if (message["content"].is_null()) message["content"] = "";
  }
  return messages_.dump();
}

}  // namespace quire
