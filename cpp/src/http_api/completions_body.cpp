// Bodies of /v1/completions.
#include <algorithm>
#include <limits>
#include <utility>

#include "http_api/body_fields.h"
#include "util/str.h"

namespace quire {
namespace {

int32_t token_id(const Json& value, const std::string& where) {
  if (!value.is_number_integer() || value.get<int64_t>() < 0 ||
      value.get<int64_t>() > std::numeric_limits<int32_t>::max() ||
      (value.is_number_unsigned() && value.get<uint64_t>() > std::numeric_limits<int32_t>::max())) {
    throw InvalidArgument(
        str(where, " must be a token id, a whole number of at least 0, got ", value.dump().substr(0, 60)));
  }
  return value.get<int32_t>();
}

void read_prompt(const Json& value, const std::string& where, EngineRequest& request) {
  if (value.is_string()) {
    request.prompt = value.get<std::string>();
    if (request.prompt.empty()) throw InvalidArgument(str(where, " is empty; give at least one token"));
    return;
  }
  if (!value.is_array() || value.empty()) {
    throw InvalidArgument(str(where, " must be a string or token ids, at least one, got ",
                              value.is_array() ? "[]" : value.dump().substr(0, 60)));
  }
  for (size_t i = 0; i < value.size(); ++i)
    request.prompt_token_ids.push_back(token_id(value[i], str(where, "[", i, "]")));
}

}  // namespace

RouteFields completions_fields() {
  const std::vector<BodyField> own = {
      {"prompt", R"({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}},
        {"type": "array", "items": {"type": "integer"}},
        {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}}]})",
       "a text, token ids, or an array of either", nullptr},
      QUIRE_BODY_FLAG(echo, "the prompt comes before the answer, with logprobs those of its tokens"),
  };
  return {joined({own, kChoicesFields, kEveryRoutesFields, kOpenAiFields}),
          {{"suffix", "no text is put in between others; leave it out"},
           {"lora_request", "give the adapter's name as model"}},
          {"prompt"}};
}

HttpBody read_completions(std::string_view text, const HttpApiConfig& config) {
  // Each is a request of its own, and of n completions each is one: queueing and aborting them takes the time
  // of others.
  constexpr size_t kMaxPrompts = 4096, kMaxCompletions = 16384;
  const Json object = read_object(text);
  HttpBody body;
  EngineRequest request = read_fields(HttpRoute::kCompletions, object, text, config, body, nullptr);
  const Json* prompt = find_given(object, "prompt");
  if (prompt == nullptr)
    throw InvalidArgument("prompt is missing; give a string, token ids, or an array of either");
  if (body.echo && body.stream && request.sampling_params.wants_logprobs())
    throw InvalidArgument("echo with logprobs does not go with stream; leave one of them out");
  if (body.echo && request.sampling_params.logprobs && !request.sampling_params.prompt_logprobs)
    request.sampling_params.prompt_logprobs = request.sampling_params.logprobs;
  const bool are_several =
      prompt->is_array() && !prompt->empty() && (prompt->front().is_string() || prompt->front().is_array());
  if (!are_several) {
    read_prompt(*prompt, "prompt", request);
    body.requests.push_back(std::move(request));
    return body;
  }
  if (prompt->size() > kMaxPrompts) {
    throw InvalidArgument(str("prompt must be at most ", kMaxPrompts, " prompts, got ", prompt->size(),
                              "; send several requests"));
  }
  if (const auto n = static_cast<size_t>(std::max(request.sampling_params.n, 1));
      n * prompt->size() > kMaxCompletions) {
    throw InvalidArgument(str("n must be at most ", kMaxCompletions / prompt->size(), " with ",
                              prompt->size(), " prompts, got ", n, "; send several requests"));
  }
  for (size_t i = 0; i < prompt->size(); ++i) {
    EngineRequest one = request;
    read_prompt((*prompt)[i], str("prompt[", i, "]"), one);
    body.requests.push_back(std::move(one));
  }
  return body;
}

}  // namespace quire
