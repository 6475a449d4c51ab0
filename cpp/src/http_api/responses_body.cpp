// Bodies of /v1/responses: OpenAI's Responses API.
#include <array>
#include <utility>

#include "http_api/body_fields.h"
#include "http_api/conversation.h"
#include "http_api/json_place.h"

namespace quire {
namespace responses_api {
namespace {

// The text of a part of a message, of a tool's output, or of reasoning.
const std::string& part_text(const JsonPlace& part) {
  const std::string& type = part.type();
  if (type == "refusal") return part.at("refusal").string();
  for (const char* known : {"input_text", "output_text", "text", "reasoning_text", "summary_text"}) {
    if (type == known) return part.at("text").string();
  }
  part.at("type").fail("must be \"input_text\", \"output_text\" or \"refusal\": the model reads text");
}

void read_message(const JsonPlace& item, Conversation& conversation) {
  const std::string& role = item.at("role").string();
  if (role != "user" && role != "assistant" && role != "system" && role != "developer")
    item.at("role").fail("must be \"user\", \"assistant\", \"system\" or \"developer\"");
  const auto all = texts(item.at("content"), part_text);
  // Reasoning, text and calls of one turn are one message to templates, and a developer is the system.
  if (role != "assistant" || conversation.role() != role)
    conversation.begin(role == "developer" ? "system" : role);
  for (const std::string& text : all) conversation.add_text(text);
}

void read_reasoning(const JsonPlace& item, Conversation& conversation) {
  const auto content = item.find("content");
  const auto parts = content ? content : item.find("summary");
  if (!parts) return;
  if (conversation.role() != "assistant") conversation.begin("assistant");
  for (const std::string& text : texts(*parts, part_text)) conversation.add_reasoning(text);
}

void read_item(const JsonPlace& item, Conversation& conversation) {
  const std::string type = item.string_or("type", "message");
  if (type == "message") {
    read_message(item, conversation);
  } else if (type == "reasoning") {
    read_reasoning(item, conversation);
  } else if (type == "function_call") {
    if (conversation.role() != "assistant") conversation.begin("assistant");
    conversation.add_call(item.at("call_id").string(), item.at("name").string(),
                          item.at("arguments").string());
  } else if (type == "function_call_output") {
    std::string joined;
    for (const std::string& text : texts(item.at("output"), part_text))
      joined += (joined.empty() ? "" : "\n") + text;
    conversation.add_result(item.at("call_id").string(), joined);
  } else {
    item.at("type").fail(
        "must be \"message\", \"reasoning\", \"function_call\" or \"function_call_output\": nothing else is "
        "stored or run here");
  }
}

void read_input(std::string_view text, HttpBody& body) {
  const OrderedJson document = parse_ordered_json(text, "the body");
  const auto input = document.find("input");
  if (input == document.end() || input->is_null())
    throw InvalidArgument("input is missing; give a string or an array of items");
  Conversation conversation;
  const auto instructions = document.find("instructions");
  if (instructions != document.end() && !instructions->is_null()) {
    const std::string& system = JsonPlace(*instructions, "instructions").string();
    if (!system.empty()) {
      conversation.begin("system");
      conversation.add_text(system);
    }
  }
  const JsonPlace place(*input, "input");
  if (input->is_string()) {
    if (input->get_ref<const std::string&>().empty()) place.fail("is empty; give at least one token");
    conversation.begin("user");
    conversation.add_text(place.string());
  } else {
    const auto items = place.elements();
    if (items.empty()) place.fail("must hold at least one item");
    for (const JsonPlace& item : items) read_item(item, conversation);
  }
  body.chat.messages.text = std::move(conversation).json();
}

OrderedJson tool_json(const JsonPlace& tool) {
  if (tool.type() != "function")
    tool.at("type").fail("must be \"function\": the server runs no tools of its own");
  OrderedJson function = {{"name", tool.at("name").string()}};
  if (const auto description = tool.find("description")) function["description"] = description->string();
  const auto parameters = tool.find("parameters");
  function["parameters"] = parameters
                               ? parameters->json()
                               : OrderedJson{{"type", "object"}, {"properties", OrderedJson::object()}};
  if (const auto strict = tool.find("strict")) function["strict"] = strict->boolean();
  OrderedJson json = {{"type", "function"}};
  json["function"] = std::move(function);
  return json;
}

void read_tools(const Json& value, std::string_view text, HttpBody& body, EngineRequest&) {
  OrderedJson document = ordered(value, text);
  OrderedJson tools = OrderedJson::array();
  for (const JsonPlace& tool : JsonPlace(document, "tools").elements()) tools.push_back(tool_json(tool));
  if (!tools.empty()) body.chat.tools.text = tools.dump();
  body.settings["tools"] = std::move(document);
}

void read_tool_choice(const Json& value, std::string_view text, HttpBody& body, EngineRequest&) {
  const OrderedJson document = ordered(value, text);
  const JsonPlace choice(document, "tool_choice");
  body.settings["tool_choice"] = document;
  if (document.is_string()) {
    body.chat.tool_choice.text = choice.string();
    return;
  }
  if (choice.type() != "function")
    choice.at("type").fail("must be \"function\": the server runs no tools of its own");
  const OrderedJson named = {{"type", "function"}, {"function", {{"name", choice.at("name").string()}}}};
  body.chat.tool_choice.text = named.dump();
}

void read_text(const Json& value, std::string_view text, HttpBody& body, EngineRequest& request) {
  const OrderedJson document = ordered(value, text);
  const JsonPlace settings(document, "text");
  if (const auto format = settings.find("format")) {
    const std::string& type = format->type();
    StructuredOutputsParams params;
    if (type == "json_object") {
      params.json_object = true;
    } else if (type == "json_schema") {
      params.json = JsonText{format->at("schema").json().dump()};
    } else if (type != "text") {
      format->at("type").fail("must be \"text\", \"json_object\" or \"json_schema\"");
    }
    if (type != "text") set_structured_outputs(std::move(params), "text", request);
  }
  body.settings["text"] = document;
  if (!settings.find("format")) body.settings["text"]["format"] = {{"type", "text"}};
}

void read_reasoning_settings(const Json& value, std::string_view text, HttpBody& body, EngineRequest&) {
  const OrderedJson document = ordered(value, text);
  const JsonPlace settings(document, "reasoning");
  if (const auto effort = settings.find("effort"))
    set_template_variable(body.chat, "reasoning_effort", effort->string());
  body.settings["reasoning"] = document;
}

void read_max_output_tokens(const Json& value, std::string_view, HttpBody& body, EngineRequest& request) {
  read_value(value, "max_output_tokens", request.sampling_params.max_tokens);
  body.settings["max_output_tokens"] = request.sampling_params.max_tokens;
}

void read_truncation(const Json& value, std::string_view, HttpBody&, EngineRequest&) {
  if (value != "disabled")
    throw InvalidArgument("truncation must be \"disabled\": nothing is left out of a conversation");
}

void read_background(const Json& value, std::string_view, HttpBody&, EngineRequest&) {
  if (value != false)
    throw InvalidArgument("background must be false: an answer goes to the client that waits for it");
}

void read_stream_options(const Json& value, std::string_view, HttpBody&, EngineRequest&) {
  if (!value.is_object()) throw InvalidArgument("stream_options must be an object");
}

bool includes_logprobs(const Json& object) {
  const Json* include = find_given(object, "include");
  if (include == nullptr) return false;
  if (!include->is_array()) throw InvalidArgument("include must be an array of strings");
  for (const Json& one : *include) {
    if (!one.is_string()) throw InvalidArgument("include must be an array of strings");
    if (one == "message.output_text.logprobs") return true;
  }
  return false;
}

void read_logprobs(const Json& object, HttpBody& body, SamplingParams& params) {
  const bool is_wanted = includes_logprobs(object);
  int32_t count = 0;
  if (const Json* value = find_given(object, "top_logprobs")) {
    read_value(*value, "top_logprobs", count);
    if (count < 0) throw InvalidArgument(str("top_logprobs must be at least 0, got ", count));
    if (!is_wanted && count > 0) {
      throw InvalidArgument("top_logprobs needs include: add \"message.output_text.logprobs\" to it");
    }
  }
  if (is_wanted) params.logprobs = count;
  body.settings["top_logprobs"] = count;
}

}  // namespace
}  // namespace responses_api

RouteFields responses_fields() {
  using namespace responses_api;
  const std::vector<BodyField> own = {
      {"input", R"({"anyOf": [{"type": "string"}, {"type": "array", "minItems": 1,
        "items": {"type": "object"}}]})",
       "a text, or items: messages, reasoning, function_call, function_call_output", nullptr},
      {"instructions", kStringSchema, "what stands before the conversation", nullptr},
      {"max_output_tokens", R"({"type": "integer", "minimum": 1})", "max_tokens under another name",
       read_max_output_tokens},
      {"tools", R"({"type": "array", "items": {"type": "object", "required": ["type", "name"]}})",
       "an array of {\"type\": \"function\", \"name\", \"description\", \"parameters\"}", read_tools},
      {"tool_choice", R"({"anyOf": [{"enum": ["auto", "none", "required"]}, {"type": "object"}]})",
       "\"auto\", \"none\", \"required\" or {\"type\": \"function\", \"name\": ...}", read_tool_choice},
      {"text", kObjectSchema, "format: what the answer must look like: type text, json_object or json_schema",
       read_text},
      {"reasoning", kObjectSchema, "effort: a variable of the chat template", read_reasoning_settings},
      {"include", R"({"type": "array", "items": {"type": "string"}})",
       "message.output_text.logprobs: log-probabilities of the answer's tokens", nullptr},
      {"top_logprobs", R"({"type": "integer", "minimum": 0})",
       "and of this many likeliest ones at each place", nullptr},
      {"truncation", R"({"const": "disabled"})", "\"disabled\" is what there is", read_truncation},
      {"stream_options", kObjectSchema, "changes nothing", read_stream_options},
      {"background", R"({"const": false})", "false is what there is", read_background},
      {"max_tool_calls", R"({"type": "integer"})", "changes nothing: the server runs no tools of its own",
       nullptr},
  };
  std::vector<RefusedField> refused = kOneAnswerOnly;
  refused.push_back({"messages", "this API has input in their place"});
  refused.push_back({"previous_response_id", "nothing is stored; send the conversation as input"});
  refused.push_back({"conversation", "nothing is stored; send the conversation as input"});
  refused.push_back({"prompt", "no prompts are stored; give instructions and input"});
  refused.push_back({"context_management", "the conversation is read as it is; leave it out"});
  return {joined({own, kEveryRoutesFields, kOpenAiFields}), std::move(refused), {"input"}};
}

HttpBody read_responses(std::string_view text, const HttpApiConfig& config) {
  using namespace responses_api;
  const Json object = read_object(text);
  HttpBody body;
  EngineRequest request = read_fields(HttpRoute::kResponses, object, text, config, body, &body.chat);
  read_input(text, body);
  read_logprobs(object, body, request.sampling_params);
  if (body.chat.chat_template.empty()) body.chat.chat_template = config.chat_template;

  OrderedJson& settings = body.settings;
  for (const char* name : {"instructions", "max_tool_calls", "metadata", "prompt_cache_key",
                           "safety_identifier", "service_tier", "user"}) {
    if (const Json* value = find_given(object, name)) settings[name] = *value;
  }
  settings["temperature"] = request.sampling_params.temperature;
  settings["top_p"] = request.sampling_params.top_p;
  settings["parallel_tool_calls"] = body.chat.parallel_tool_calls;
  body.requests.push_back(std::move(request));
  return body;
}

}  // namespace quire
