#include "http_api/body_fields.h"

#include <algorithm>
#include <array>
#include <utility>

#include "engine/json_fields.h"
#include "quire/fields.h"
#include "util/str.h"

namespace quire {
namespace {

void read_xargs(const Json& value, std::string_view, HttpBody&, EngineRequest& request) {
  read_value(value, "vllm_xargs", request.sampling_params.extra_args);
}

void read_stream_options(const Json& value, std::string_view, HttpBody& body, EngineRequest&) {
  if (!value.is_object()) throw InvalidArgument("stream_options must be an object");
  for (const auto& [name, option] : value.items()) {
    const std::string field = "stream_options." + name;
    if (option.is_null()) continue;
    if (name == "include_usage") {
      read_value(option, field, body.include_usage);
    } else if (name == "continuous_usage_stats") {
      read_value(option, field, body.continuous_usage_stats);
    } else if (name != "include_obfuscation") {
      throw InvalidArgument(str("'", field.substr(0, 100),
                                "' is not a field we know; there are include_usage, continuous_usage_stats"));
    }
  }
}

// The order of a schema's properties is the answer's.
JsonText read_schema(const OrderedJson& format) {
  const auto outer = format.find("json_schema");
  if (outer != format.end() && outer->is_object()) {
    const auto schema = outer->find("schema");
    if (schema != outer->end() && (schema->is_object() || schema->is_boolean())) return {schema->dump()};
  }
  throw InvalidArgument("response_format.json_schema.schema must be a JSON schema, an object");
}

void read_response_format(const Json& value, std::string_view text, HttpBody&, EngineRequest& request) {
  if (!value.is_object()) throw InvalidArgument("response_format must be an object with a \"type\"");
  const auto found = value.find("type");
  const std::string type = found != value.end() && found->is_string() ? found->get<std::string>() : "";
  if (type == "text") return;
  StructuredOutputsParams params;
  if (type == "json_object") {
    params.json_object = true;
  } else if (type == "json_schema") {
    params.json = read_schema(ordered(value, text));
  } else if (type == "structural_tag") {
    params.structural_tag = JsonText{std::string(text)};
  } else {
    throw InvalidArgument(str(
        "response_format.type must be \"text\", \"json_object\", \"json_schema\" or \"structural_tag\", got ",
        found == value.end() ? "none" : found->dump().substr(0, 100)));
  }
  set_structured_outputs(std::move(params), "response_format", request);
}

template <typename T>
const T* find_named(const std::vector<T>& table, const std::string& name) {
  const auto found =
      std::find_if(table.begin(), table.end(), [&](const T& field) { return name == field.name; });
  return found == table.end() ? nullptr : &*found;
}

// The model's name, if it is none of the served ones.
std::string read_model(const Json& object, const HttpApiConfig& config) {
  const Json* model = find_given(object, "model");
  if (model == nullptr) return "";
  if (!model->is_string()) throw InvalidArgument("model must be a string");
  const auto& name = model->get_ref<const std::string&>();
  const auto& served = config.served_model_names;
  return std::find(served.begin(), served.end(), name) != served.end() ? "" : name;
}

constexpr std::array kRoutes{HttpRoute::kCompletions, HttpRoute::kChatCompletions, HttpRoute::kMessages,
                             HttpRoute::kCountTokens, HttpRoute::kResponses};

}  // namespace

const std::vector<BodyField> kEveryRoutesFields = {
    {"model", kStringSchema,
     "a name that the model is served under, or an adapter's; without it, no adapter's", nullptr},
    QUIRE_BODY_FLAG(stream, "the answer comes as server-sent events, as it is generated"),
    {"vllm_xargs", kObjectSchema, "extra_args under vLLM's name", read_xargs},
    {"request_id", kStringSchema, "changes nothing: the header X-Request-Id is what an answer's id ends with",
     nullptr},
    {"metadata", kObjectSchema, "changes nothing", nullptr},
    {"service_tier", kStringSchema, "changes nothing", nullptr},
};

const std::vector<BodyField> kOpenAiFields = {
    {"store", kBooleanSchema, "changes nothing: nothing is stored", nullptr},
    {"safety_identifier", kStringSchema, "changes nothing", nullptr},
    {"prompt_cache_key", kStringSchema, "changes nothing: prefixes are shared wherever they are equal",
     nullptr},
    {"prompt_cache_retention", kStringSchema, "changes nothing", nullptr},
};

const std::vector<BodyField> kChoicesFields = {
    {"stream_options", R"({"type": "object", "properties": {"include_usage": {"type": "boolean"},
      "continuous_usage_stats": {"type": "boolean"}, "include_obfuscation": {"type": "boolean"}}})",
     "include_usage: a last event says what was used; continuous_usage_stats: every one does",
     read_stream_options},
    {"response_format", kObjectSchema,
     "what the answer must look like, as OpenAI writes it: type text, json_object, "
     "json_schema or structural_tag",
     read_response_format},
    QUIRE_BODY_FLAG(return_token_ids, "answers have token_ids, and the prompt's"),
    QUIRE_BODY_FLAG(return_tokens_as_token_ids, "log-probabilities name tokens \"token_id:17\""),
};

const std::vector<RefusedField> kOneAnswerOnly = {
    {"n", "this API has one answer; leave it out"},
    {"beam_width", "this API has one answer; leave it out"},
    {"logprobs", "this API has no place for them; leave it out"},
    {"logprob_token_ids", "this API has no place for them; leave it out"},
    {"prompt_logprobs", "this API has no place for them; leave it out"},
    {"lora_request", "give the adapter's name as model"},
};

std::vector<BodyField> joined(std::initializer_list<std::vector<BodyField>> tables) {
  std::vector<BodyField> all;
  for (const auto& table : tables) all.insert(all.end(), table.begin(), table.end());
  return all;
}

const RouteFields& route_fields(HttpRoute route) {
  static const RouteFields completions = completions_fields(), chat = chat_fields(),
                           messages = messages_fields(), responses = responses_fields();
  switch (route) {
    case HttpRoute::kCompletions: return completions;
    case HttpRoute::kChatCompletions: return chat;
    case HttpRoute::kMessages:
    case HttpRoute::kCountTokens: return messages;
    case HttpRoute::kResponses: return responses;
  }
  throw InvalidArgument("the route is none that there is");
}

Json read_object(std::string_view text) {
  Json object = parse_json(text, "the body");
  if (!object.is_object()) throw InvalidArgument("the body must be a JSON object");
  return object;
}

OrderedJson ordered(const Json& value, std::string_view text) {
  return text.empty() ? OrderedJson(value) : parse_ordered_json(text, "the body");
}

const Json* find_given(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

EngineRequest read_fields(HttpRoute route, const Json& object, std::string_view text,
                          const HttpApiConfig& config, HttpBody& body, ChatRequest* chat) {
  body.other_model = read_model(object, config);
  const RouteFields& known = route_fields(route);
  EngineRequest request;
  request.sampling_params = chat != nullptr ? config.chat_params : config.completion_params;
  body.return_tokens_as_token_ids = config.return_tokens_as_token_ids;
  set_fields(request, chat, object, text, [&](const std::string& name) {
    if (const RefusedField* refused = find_named(known.refused, name)) {
      const Json& value = object[name];
      if (!value.is_null() && !(value.is_string() && value.get_ref<const std::string&>().empty()))
        throw InvalidArgument(str(name, " is not supported: ", refused->reason));
      return true;
    }
    return find_named(known.fields, name) != nullptr;
  });
  for (const auto& [name, value] : object.items()) {
    const BodyField* field = find_named(known.fields, name);
    if (field != nullptr && field->read != nullptr && !value.is_null())
      field->read(value, value.is_structured() ? find_member_text(text, name) : std::string_view(), body,
                  request);
  }
  if (!body.stream && (body.include_usage || body.continuous_usage_stats))
    throw InvalidArgument("stream_options is for streams; set stream, or leave it out");
  request.sampling_params.output_kind =
      body.stream ? RequestOutputKind::kDelta : RequestOutputKind::kFinalOnly;
  return request;
}

void set_structured_outputs(StructuredOutputsParams params, const std::string& field,
                            EngineRequest& request) {
  if (request.sampling_params.structured_outputs) {
    throw InvalidArgument(
        str(field, " and structured_outputs both say what the answer must look like; leave one of them out"));
  }
  request.sampling_params.structured_outputs = std::move(params);
}

void set_template_variable(ChatRequest& chat, const std::string& name, const OrderedJson& value) {
  std::string& kwargs = chat.chat_template_kwargs.text;
  OrderedJson variables =
      kwargs.empty() ? OrderedJson::object() : parse_ordered_json(kwargs, "chat_template_kwargs");
  if (!variables.is_object() || variables.contains(name)) return;
  variables[name] = value;
  kwargs = variables.dump();
}

HttpBody read_body(HttpRoute route, std::string_view text, const HttpApiConfig& config) {
  switch (route) {
    case HttpRoute::kCompletions: return read_completions(text, config);
    case HttpRoute::kChatCompletions: return read_chat_completions(text, config);
    case HttpRoute::kMessages: return read_messages(text, config);
    case HttpRoute::kCountTokens: return read_count_tokens(text, config);
    case HttpRoute::kResponses: return read_responses(text, config);
  }
  throw InvalidArgument("the route is none that there is");
}

std::string_view first_name(std::string_view message) {
  return message.substr(0, message.find_first_not_of("abcdefghijklmnopqrstuvwxyz_"));
}

std::string field_at_fault(const std::string& message) {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all = request_field_names();
    for_each_field(kChatRequestFields, [&](const auto& field) { all.emplace_back(field.name); });
    for (const HttpRoute route : kRoutes) {
      for (const RefusedField& field : route_fields(route).refused) all.emplace_back(field.name);
      for (const BodyField& field : route_fields(route).fields) all.emplace_back(field.name);
    }
    return all;
  }();
  const std::string name(first_name(message));
  return std::find(names.begin(), names.end(), name) != names.end() ? name : "";
}

std::vector<std::string> http_refused_fields(HttpRoute route) {
  std::vector<std::string> names;
  for (const RefusedField& field : route_fields(route).refused) names.emplace_back(field.name);
  return names;
}

std::vector<std::string> http_required_fields(HttpRoute route) {
  std::vector<std::string> names = route_fields(route).required;
  if (route == HttpRoute::kCountTokens) std::erase(names, "max_tokens");
  return names;
}

std::vector<HttpField> http_fields(HttpRoute route) {
  std::vector<HttpField> fields;
  for (const BodyField& field : route_fields(route).fields)
    fields.push_back({field.name, field.json_schema, field.doc});
  return fields;
}

}  // namespace quire
