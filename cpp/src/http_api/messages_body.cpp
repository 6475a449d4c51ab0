// Bodies of /v1/messages and /v1/messages/count_tokens: Anthropic's Messages API.
#include <utility>

#include "http_api/body_fields.h"
#include "http_api/conversation.h"
#include "http_api/json_place.h"

namespace quire {
namespace messages_api {
namespace {

// A document's text, with what it is called.
std::string document_text(const JsonPlace& block) {
  const JsonPlace source = block.at("source");
  if (source.type() != "text") source.at("type").fail("must be \"text\": the model reads text");
  std::string text;
  for (const char* name : {"title", "context"}) {
    const std::string line = block.string_or(name, "");
    if (!line.empty()) text += line + "\n";
  }
  return text + source.at("data").string();
}

std::string block_text(const JsonPlace& block) {
  const std::string& type = block.type();
  if (type == "text") return block.at("text").string();
  if (type == "document") return document_text(block);
  block.at("type").fail("must be \"text\" or a \"document\" of text here: the model reads text");
}

std::string result_text(const JsonPlace& block) {
  const auto content = block.find("content");
  if (!content) return "";
  std::string joined;
  for (const std::string& text : texts(*content, block_text)) joined += (joined.empty() ? "" : "\n") + text;
  return joined;
}

void read_user_block(const JsonPlace& block, Conversation& conversation) {
  if (block.type() == "tool_result") {
    conversation.add_result(block.at("tool_use_id").string(), result_text(block));
    return;
  }
  // After a tool's result the user goes on.
  if (conversation.role() != "user") conversation.begin("user");
  conversation.add_text(block_text(block));
}

void read_assistant_block(const JsonPlace& block, Conversation& conversation) {
  const std::string& type = block.type();
  if (type == "thinking") {
    conversation.add_reasoning(block.at("thinking").string());
  } else if (type == "tool_use") {
    const JsonPlace input = block.at("input");
    if (!input.json().is_object()) input.fail_type("an object");
    conversation.add_call(block.at("id").string(), block.at("name").string(), input.json().dump());
  } else if (type == "text") {
    conversation.add_text(block.at("text").string());
  } else if (type != "redacted_thinking") {  // nobody can read that
    block.at("type").fail("must be \"text\", \"thinking\", \"redacted_thinking\" or \"tool_use\" here");
  }
}

void read_message(const JsonPlace& message, Conversation& conversation) {
  const std::string& role = message.at("role").string();
  if (role != "user" && role != "assistant" && role != "system")
    message.at("role").fail("must be \"user\", \"assistant\" or \"system\"");
  const JsonPlace content = message.at("content");
  if (content.json().is_string() || role == "system") {
    if (conversation.role() != role) conversation.begin(role);
    for (const std::string& text : texts(content, block_text)) conversation.add_text(text);
    return;
  }
  // Turns of one role that follow each other are one.
  if (role == "assistant" && conversation.role() != role) conversation.begin(role);
  for (const JsonPlace& block : content.elements()) {
    role == "assistant" ? read_assistant_block(block, conversation) : read_user_block(block, conversation);
  }
}

OrderedJson tool_json(const JsonPlace& tool) {
  if (tool.string_or("type", "custom") != "custom")
    tool.at("type").fail("must be \"custom\": the server runs no tools of its own");
  OrderedJson function = {{"name", tool.at("name").string()}};
  if (const auto description = tool.find("description")) function["description"] = description->string();
  function["parameters"] = tool.at("input_schema").json();
  if (const auto strict = tool.find("strict")) function["strict"] = strict->boolean();
  OrderedJson json = {{"type", "function"}};
  json["function"] = std::move(function);
  return json;
}

void read_tools(const Json& value, std::string_view text, HttpBody& body, EngineRequest&) {
  const OrderedJson document = ordered(value, text);
  OrderedJson tools = OrderedJson::array();
  for (const JsonPlace& tool : JsonPlace(document, "tools").elements()) tools.push_back(tool_json(tool));
  if (!tools.empty()) body.chat.tools.text = tools.dump();
}

void read_tool_choice(const Json& value, std::string_view text, HttpBody& body, EngineRequest&) {
  const OrderedJson document = ordered(value, text);
  const JsonPlace choice(document, "tool_choice");
  const std::string& type = choice.type();
  if (const auto only_one = choice.find("disable_parallel_tool_use"))
    body.chat.parallel_tool_calls = !only_one->boolean();
  if (type == "auto" || type == "none") {
    body.chat.tool_choice.text = type;
  } else if (type == "any") {
    body.chat.tool_choice.text = "required";
  } else if (type == "tool") {
    const OrderedJson named = {{"type", "function"}, {"function", {{"name", choice.at("name").string()}}}};
    body.chat.tool_choice.text = named.dump();
  } else {
    choice.at("type").fail("must be \"auto\", \"any\", \"tool\" or \"none\"");
  }
}

void read_thinking(const Json& value, std::string_view text, HttpBody& body, EngineRequest&) {
  const OrderedJson document = ordered(value, text);
  const JsonPlace thinking(document, "thinking");
  const std::string& type = thinking.type();
  if (type != "enabled" && type != "adaptive" && type != "between_tools" && type != "disabled")
    thinking.at("type").fail("must be \"enabled\", \"adaptive\", \"between_tools\" or \"disabled\"");
  if (type == "enabled") {
    const JsonPlace budget = thinking.at("budget_tokens");
    std::optional<int32_t> tokens;
    read_value(Json(budget.json()), "thinking.budget_tokens", tokens);
    if (*tokens < 1) budget.fail("must be at least 1");
    body.thinking_budget = tokens;
  }
  body.include_reasoning = thinking.string_or("display", "summarized") != "omitted";
  set_template_variable(body.chat, "enable_thinking", type != "disabled");
}

// {"type": "json_schema", "schema": ...}
void read_format(const JsonPlace& format, const std::string& field, EngineRequest& request) {
  if (format.type() != "json_schema") format.at("type").fail("must be \"json_schema\"");
  StructuredOutputsParams params;
  params.json = JsonText{format.at("schema").json().dump()};
  set_structured_outputs(std::move(params), field, request);
}

void read_output_format(const Json& value, std::string_view text, HttpBody&, EngineRequest& request) {
  const OrderedJson document = ordered(value, text);
  read_format(JsonPlace(document, "output_format"), "output_format", request);
}

void read_output_config(const Json& value, std::string_view text, HttpBody& body, EngineRequest& request) {
  const OrderedJson document = ordered(value, text);
  const JsonPlace config(document, "output_config");
  if (const auto format = config.find("format")) read_format(*format, "output_config", request);
  if (const auto effort = config.find("effort"))
    set_template_variable(body.chat, "reasoning_effort", effort->string());
}

void read_stop_sequences(const Json& value, std::string_view, HttpBody&, EngineRequest& request) {
  read_value(value, "stop_sequences", request.sampling_params.stop);
}

void read_conversation(std::string_view text, HttpBody& body) {
  const OrderedJson document = parse_ordered_json(text, "the body");
  const auto given = [&](const char* name) {
    const auto found = document.find(name);
    return found == document.end() || found->is_null() ? nullptr : &*found;
  };
  const OrderedJson* messages = given("messages");
  if (messages == nullptr) throw InvalidArgument("messages is missing; give an array of messages");
  Conversation conversation;
  if (const OrderedJson* system = given("system")) {
    const auto all = texts(JsonPlace(*system, "system"), block_text);
    if (!all.empty()) conversation.begin("system");
    for (const std::string& one : all) conversation.add_text(one);
  }
  const auto turns = JsonPlace(*messages, "messages").elements();
  if (turns.empty()) throw InvalidArgument("messages must hold at least one message");
  for (const JsonPlace& message : turns) read_message(message, conversation);
  if (conversation.ends_with_text_of_assistant() && !body.chat.add_generation_prompt)
    body.chat.continue_final_message = true;
  body.chat.messages.text = std::move(conversation).json();
}

HttpBody read(HttpRoute route, std::string_view text, const HttpApiConfig& config) {
  const Json object = read_object(text);
  HttpBody body;
  EngineRequest request = read_fields(route, object, text, config, body, &body.chat);
  if (route == HttpRoute::kMessages && find_given(object, "max_tokens") == nullptr)
    throw InvalidArgument("max_tokens is missing; say how many tokens the answer may have");
  read_conversation(text, body);
  if (body.chat.chat_template.empty()) body.chat.chat_template = config.chat_template;
  body.requests.push_back(std::move(request));
  return body;
}

}  // namespace
}  // namespace messages_api

RouteFields messages_fields() {
  using namespace messages_api;
  const std::vector<BodyField> own = {
      {"messages", R"({"type": "array", "minItems": 1, "items": {"type": "object",
        "required": ["role", "content"], "properties": {"role": {"enum": ["user", "assistant", "system"]}}}})",
       "the conversation: texts, or blocks of type text, document (of text), thinking, tool_use and "
       "tool_result; an answer goes on with an assistant's text at the end",
       nullptr},
      {"system", R"({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]})",
       "what stands before the conversation", nullptr},
      {"tools", R"({"type": "array", "items": {"type": "object", "required": ["name", "input_schema"]}})",
       "an array of {\"name\", \"description\", \"input_schema\"}", read_tools},
      {"tool_choice", R"({"type": "object", "required": ["type"], "properties": {"type":
        {"enum": ["auto", "any", "tool", "none"]}}})",
       "auto, any, none or tool with its name; disable_parallel_tool_use: at most one call",
       read_tool_choice},
      {"stop_sequences", R"({"type": "array", "items": {"type": "string"}})", "stop under Anthropic's name",
       read_stop_sequences},
      {"thinking", R"({"type": "object", "required": ["type"], "properties": {"type":
        {"enum": ["enabled", "adaptive", "between_tools", "disabled"]},
        "budget_tokens": {"type": "integer"}}})",
       "enable_thinking of the chat template; budget_tokens is max_thinking_tokens, where the engine has "
       "think_end_token_ids",
       read_thinking},
      {"output_config", kObjectSchema,
       "format: {\"type\": \"json_schema\", \"schema\"}; effort: reasoning_effort of the chat template",
       read_output_config},
      {"output_format", kObjectSchema, "output_config.format under its older name", read_output_format},
      {"cache_control", kObjectSchema, "changes nothing: prefixes are shared wherever they are equal",
       nullptr},
      {"inference_geo", kStringSchema, "changes nothing", nullptr},
      {"user_profile_id", kStringSchema, "changes nothing", nullptr},
  };
  std::vector<RefusedField> refused = kOneAnswerOnly;
  refused.push_back({"container", "nothing is run here; leave it out"});
  refused.push_back({"mcp_servers", "no other servers are called; leave it out"});
  refused.push_back({"context_management", "the conversation is read as it is; leave it out"});
  return {joined({own, kEveryRoutesFields}), std::move(refused), {"messages", "max_tokens"}};
}

HttpBody read_messages(std::string_view text, const HttpApiConfig& config) {
  using namespace messages_api;
  return read(HttpRoute::kMessages, text, config);
}

HttpBody read_count_tokens(std::string_view text, const HttpApiConfig& config) {
  using namespace messages_api;
  return read(HttpRoute::kCountTokens, text, config);
}

}  // namespace quire
