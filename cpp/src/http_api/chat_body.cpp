// Bodies of /v1/chat/completions.
#include <utility>

#include "http_api/body_fields.h"
#include "util/str.h"

namespace quire {
namespace {

void read_max_completion_tokens(const Json& value, std::string_view, HttpBody&, EngineRequest& request) {
  read_value(value, "max_completion_tokens", request.sampling_params.max_tokens);
}

void read_reasoning_effort(const Json& value, std::string_view, HttpBody& body, EngineRequest&) {
  if (!value.is_string()) throw InvalidArgument("reasoning_effort must be a string");
  set_template_variable(body.chat, "reasoning_effort", value.get<std::string>());
}

void read_modalities(const Json& value, std::string_view, HttpBody&, EngineRequest&) {
  if (value != Json::array({"text"}))
    throw InvalidArgument(str("modalities must be [\"text\"], got ", value.dump().substr(0, 100)));
}

// OpenAI's pair of fields: whether, and how many.
void read_logprobs(const Json& object, SamplingParams& params) {
  bool is_wanted = false;
  if (const Json* value = find_given(object, "logprobs")) read_value(*value, "logprobs", is_wanted);
  if (is_wanted) params.logprobs = 0;
  const Json* value = find_given(object, "top_logprobs");
  if (value == nullptr) return;
  std::optional<int32_t> count;
  read_value(*value, "top_logprobs", count);
  if (*count < -1) throw InvalidArgument(str("top_logprobs must be at least 0, or -1 for all, got ", *count));
  if (!is_wanted && *count != 0) throw InvalidArgument("top_logprobs needs logprobs: set it to true");
  if (is_wanted) params.logprobs = count;
}

}  // namespace

RouteFields chat_fields() {
  const std::vector<BodyField> own = {
      {"max_completion_tokens", R"({"type": "integer", "minimum": 1})", "max_tokens under its newer name",
       read_max_completion_tokens},
      {"logprobs", kBooleanSchema, "reports log-probabilities of the answer's tokens", nullptr},
      {"top_logprobs", R"({"type": "integer", "minimum": -1})",
       "with logprobs: and of this many likeliest ones at each place", nullptr},
      {"reasoning_effort", kStringSchema, "a variable of the chat template", read_reasoning_effort},
      QUIRE_BODY_FLAG(include_reasoning, "false: answers are without their reasoning"),
      {"verbosity", kStringSchema, "changes nothing", nullptr},
      {"modalities", R"({"type": "array", "items": {"enum": ["text"]}})", "[\"text\"] is what there is",
       read_modalities},
  };
  return {joined({own, kChoicesFields, kEveryRoutesFields, kOpenAiFields}),
          {{"functions", "it was replaced by tools; give those"},
           {"function_call", "it was replaced by tool_choice; give that"},
           {"audio", "answers are text; leave it out"},
           {"prediction", "no text is predicted by the client; leave it out"},
           {"web_search_options", "nothing is searched; leave it out"},
           {"lora_request", "give the adapter's name as model"}},
          {"messages"}};
}

HttpBody read_chat_completions(std::string_view text, const HttpApiConfig& config) {
  const Json object = read_object(text);
  HttpBody body;
  EngineRequest request = read_fields(HttpRoute::kChatCompletions, object, text, config, body, &body.chat);
  if (body.chat.messages.text.empty())
    throw InvalidArgument("messages is missing; give an array of messages");
  if (body.chat.chat_template.empty()) body.chat.chat_template = config.chat_template;
  read_logprobs(object, request.sampling_params);
  body.requests.push_back(std::move(request));
  return body;
}

}  // namespace quire
