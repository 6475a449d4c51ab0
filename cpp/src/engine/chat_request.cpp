// What a conversation asks of the engine.
#include <algorithm>
#include <span>
#include <utility>

#include "formats/json.h"
#include "quire/chat.h"
#include "quire/error.h"
#include "util/str.h"

namespace quire {
namespace {

enum class Choice : uint8_t { kAuto, kNone, kRequired, kNamed };

struct ReadChoice {
  Choice choice = Choice::kAuto;
  std::string name;  // of kNamed
};

std::optional<Choice> choice_of(std::string_view word) {
  if (word == "auto") return Choice::kAuto;
  if (word == "none") return Choice::kNone;
  if (word == "required") return Choice::kRequired;
  return std::nullopt;
}

// The function that an object of OpenAI's form names.
std::optional<std::string> named_function(const Json& value) {
  if (!value.is_object() || value.value("type", Json()) != "function") return std::nullopt;
  const auto function = value.find("function");
  if (function == value.end() || !function->is_object()) return std::nullopt;
  const auto name = function->find("name");
  if (name == function->end() || !name->is_string() || name->get_ref<const std::string&>().empty())
    return std::nullopt;
  return name->get<std::string>();
}

// `text` is a word, with its quotes or without, or an object.
ReadChoice read_choice(const std::string& text) {
  if (const auto choice = choice_of(text)) return {*choice, ""};
  const Json value = try_parse_json(text);
  if (value.is_string()) {
    if (const auto choice = choice_of(value.get_ref<const std::string&>())) return {*choice, ""};
  }
  if (auto name = named_function(value)) return {Choice::kNamed, std::move(*name)};
  throw InvalidArgument(
      str("tool_choice must be \"auto\", \"none\", \"required\" or "
          "{\"type\": \"function\", \"function\": {\"name\": ...}}, got ",
          text.substr(0, 100)));
}

OrderedJson read_tools(const std::string& text) {
  if (text.empty()) return OrderedJson::array();
  OrderedJson tools = parse_ordered_json(text, "tools");
  if (!tools.is_array())
    throw InvalidArgument(str("tools must be an array of objects, got ", text.substr(0, 100)));
  return tools;
}

OrderedJson read_kwargs(const std::string& text) {
  if (text.empty()) return OrderedJson::object();
  OrderedJson kwargs = parse_ordered_json(text, "chat_template_kwargs");
  if (!kwargs.is_object())
    throw InvalidArgument(str("chat_template_kwargs must be an object, got ", text.substr(0, 100)));
  return kwargs;
}

// The last of the prompt, to see how it ends.
std::string end_of_prompt(const EngineBase& engine, const EngineRequest& request) {
  constexpr size_t kManyBytes = 256, kManyTokens = 32;  // more than a marker and white space
  if (request.prompt_token_ids.empty() || !engine.tokenizer())
    return request.prompt.substr(request.prompt.size() - std::min(kManyBytes, request.prompt.size()));
  const std::span<const int32_t> ids(request.prompt_token_ids);
  const auto last = ids.last(std::min(kManyTokens, ids.size()));
  if (std::any_of(last.begin(), last.end(), [](int32_t id) { return id < 0; })) return "";  // to be refused
  return engine.tokenizer()->decode(last, /*skip_special_tokens=*/false);
}

// Whether the prompt leaves the model thinking, as far as it and the request say so. What goes on with a
// message's content does not think.
std::optional<bool> enable_thinking(const ChatRequest& chat, const OrderedJson& kwargs,
                                    std::optional<bool> by_prompt) {
  if (by_prompt) return by_prompt;
  for (const char* name : {"enable_thinking", "thinking"}) {
    const auto found = kwargs.find(name);
    if (found != kwargs.end() && found->is_boolean()) return found->get<bool>();
  }
  return chat.continue_final_message ? std::optional(false) : std::nullopt;
}

void refuse_without_messages(const ChatRequest& chat) {
  const auto refuse = [](const char* name) {
    throw InvalidArgument(str(name, " needs messages: it says how they are rendered"));
  };
  if (!chat.chat_template.empty()) refuse("chat_template");
  if (!chat.chat_template_content_format.empty()) refuse("chat_template_content_format");
  if (chat.add_generation_prompt) refuse("add_generation_prompt");
  if (chat.continue_final_message) refuse("continue_final_message");
}

// Reads the arguments of a call in the history, where they are the text of an object. Returns whether they
// were.
bool read_arguments(OrderedJson& call) {
  if (!call.is_object()) return false;
  const auto function = call.find("function");
  if (function == call.end() || !function->is_object()) return false;
  const auto arguments = function->find("arguments");
  if (arguments == function->end() || !arguments->is_string()) return false;
  const auto& text = arguments->get_ref<const std::string&>();
  if (text.empty()) {
    *arguments = OrderedJson::object();
    return true;
  }
  if (try_parse_json(text).is_discarded()) return false;  // an answer that was cut off
  OrderedJson object = parse_ordered_json(text, "arguments");
  if (!object.is_object()) return false;
  *arguments = std::move(object);
  return true;
}

// The messages with the arguments of calls as objects, which templates write as JSON: OpenAI's API, and our
// own answers, have them as text. Messages with an empty list of calls are without. Empty: nothing has
// changed.
std::string with_calls_as_templates_read_them(const std::string& messages) {
  if (messages.find("\"tool_calls\"") == std::string::npos) return "";
  OrderedJson document = parse_ordered_json(messages, "messages");
  if (!document.is_array()) return "";
  bool changed = false;
  for (OrderedJson& message : document) {
    if (!message.is_object()) continue;
    const auto calls = message.find("tool_calls");
    if (calls == message.end() || !calls->is_array()) continue;
    if (calls->empty()) {
      message.erase(calls);
      changed = true;
      continue;
    }
    for (OrderedJson& call : *calls) changed = read_arguments(call) || changed;
  }
  return changed ? document.dump() : "";
}

// Variables of these names are the switches, as vLLM has it.
bool sets_switches(const OrderedJson& kwargs) {
  for (const char* name :
       {"tools", "add_generation_prompt", "continue_final_message", "chat_template_content_format"}) {
    if (kwargs.contains(name)) return true;
  }
  return false;
}

std::string render(const EngineBase& engine, const ChatRequest& chat, const OrderedJson& tools,
                   const OrderedJson& kwargs) {
  ChatTemplateOptions options;
  options.add_generation_prompt = chat.add_generation_prompt;
  options.continue_final_message = chat.continue_final_message;
  if (!chat.chat_template_content_format.empty())
    options.chat_template_content_format = chat.chat_template_content_format;
  options.tools_json = chat.tools.text;
  if (!kwargs.empty()) options.kwargs_json = chat.chat_template_kwargs.text;
  std::string all;
  if (sets_switches(kwargs)) {
    OrderedJson json = {{"continue_final_message", chat.continue_final_message},
                        {"chat_template_content_format", options.chat_template_content_format}};
    if (chat.add_generation_prompt) json["add_generation_prompt"] = *chat.add_generation_prompt;
    if (!chat.tools.text.empty()) json["tools"] = tools;
    json.update(kwargs);
    all = json.dump();
  }
  const auto apply = [&](const std::string& messages) {
    return all.empty() ? engine.apply_chat_template(messages, options, chat.chat_template)
                       : engine.apply_chat_template(messages, all, chat.chat_template);
  };
  const std::string changed = with_calls_as_templates_read_them(chat.messages.text);
  if (changed.empty()) return apply(chat.messages.text);
  try {
    return apply(changed);
  } catch (const InvalidArgument&) {
    // Some templates append them to a string.
    try {
      return apply(chat.messages.text);
    } catch (const InvalidArgument&) {
    }
    throw;
  }
}

// Holds the answer to calls.
void force_calls(const ChatFormat& format, const ChatRequest& chat, const ReadChoice& read,
                 const ChatAnswerOptions& answer, SamplingParams& params) {
  const std::string shown = read.choice == Choice::kRequired
                                ? std::string("\"required\"")
                                : str("the function '", read.name.substr(0, 100), "'");
  if (!format.has_tool_parser()) {
    std::string known;
    for (const std::string& name : ChatFormat::tool_parser_names())
      known += (known.empty() ? "" : ", ") + name;
    throw InvalidArgument(
        str("tool_choice is ", shown,
            ", but nothing says how the model writes calls; set the parameter tool_parser to "
            "one of ",
            known));
  }
  if (params.structured_outputs) {
    throw InvalidArgument(str("tool_choice is ", shown,
                              ", which says what the answer is, and so does structured_outputs; leave one of "
                              "them out"));
  }
  if (params.ignore_eos || params.min_tokens > 0) {
    throw InvalidArgument(str("tool_choice is ", shown, ", which says where the answer ends; leave out ",
                              params.ignore_eos ? "ignore_eos" : "min_tokens"));
  }
  ToolChoice choice;
  choice.name = read.name;
  choice.parallel_tool_calls = chat.parallel_tool_calls;
  choice.enable_thinking = answer.parser.enable_thinking;
  params.structured_outputs.emplace().structural_tag =
      JsonText{format.structural_tag(answer.parser.tools_json, choice)};
}

}  // namespace

ChatAnswerOptions prepare_chat(const EngineBase& engine, std::shared_ptr<const ChatFormat> format,
                               const ChatRequest& chat, EngineRequest& request) {
  const bool has_messages = !chat.messages.text.empty();
  const OrderedJson tools = read_tools(chat.tools.text);
  const OrderedJson kwargs = read_kwargs(chat.chat_template_kwargs.text);
  // Where the prompt is the caller's, so are perhaps tools that we are not told of.
  ReadChoice read{tools.empty() && has_messages ? Choice::kNone : Choice::kAuto, ""};
  if (!chat.tool_choice.text.empty()) {
    read = read_choice(chat.tool_choice.text);
    if (tools.empty() && read.choice != Choice::kNone) {
      throw InvalidArgument(str("tool_choice is ", chat.tool_choice.text.substr(0, 100),
                                ", but there are no tools; give tools, or leave it out"));
    }
  }
  ChatAnswerOptions answer;
  answer.format = std::move(format);
  if (!tools.empty()) answer.parser.tools_json = chat.tools.text;
  answer.parser.parse_tool_calls = read.choice != Choice::kNone;
  answer.parallel_tool_calls = chat.parallel_tool_calls;
  answer.is_named_choice = read.choice == Choice::kNamed;

  if (has_messages) {
    if (!request.prompt.empty() || !request.prompt_token_ids.empty())
      throw InvalidArgument("give messages or a prompt, not both");
    request.prompt = render(engine, chat, tools, kwargs);
    if (request.prompt.empty())
      throw InvalidArgument("messages give an empty prompt with this chat template; give at least one token");
    request.add_special_tokens = false;
  } else {
    refuse_without_messages(chat);
  }
  const auto by_prompt =
      answer.format ? answer.format->thinks_after(end_of_prompt(engine, request)) : std::nullopt;
  answer.parser.enable_thinking = enable_thinking(chat, kwargs, by_prompt);
  if (read.choice == Choice::kRequired || read.choice == Choice::kNamed) {
    const auto plain = answer.format ? answer.format : ChatFormat::make("", "");
    force_calls(*plain, chat, read, answer, request.sampling_params);
  }
  const bool has_calls = !tools.empty() && answer.parser.parse_tool_calls;
  if (has_calls && answer.format && answer.format->has_tool_parser() && !answer.format->skip_special_tokens())
    request.sampling_params.skip_special_tokens = false;
  return answer;
}

}  // namespace quire
