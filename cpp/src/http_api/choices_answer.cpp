#include "http_api/choices_answer.h"

#include <utility>

#include "util/str.h"

namespace quire {

size_t ChoicesAnswer::choice_of(size_t prompt, const CompletionOutput& output) const {
  return prompt * static_cast<size_t>(options().num_choices) + static_cast<size_t>(output.index);
}

std::string ChoicesAnswer::write_delta(size_t prompt, const CompletionOutput& delta) {
  return event(choice_of(prompt, delta), delta);
}

std::string ChoicesAnswer::write_end() {
  std::string bytes;
  if (options().body.include_usage)
    bytes = str(begin_event(), "],\"usage\":", json_text(usage_json()), "}\n\n");
  return bytes + "data: [DONE]\n\n";
}

std::string ChoicesAnswer::write_body(const std::vector<RequestOutput>& outputs) {
  OrderedJson choices = OrderedJson::array();
  for (size_t prompt = 0; prompt < outputs.size(); ++prompt) {
    for (const CompletionOutput& completion : outputs[prompt].outputs)
      choices.push_back(choice_json(choice_of(prompt, completion), completion, outputs[prompt]));
  }
  OrderedJson body = {{"id", options().info.request_id},
                      {"object", object(false)},
                      {"created", options().info.created},
                      {"model", options().model}};
  body["choices"] = std::move(choices);
  body["usage"] = usage_json();
  return json_text(body);
}

std::string ChoicesAnswer::error_body(const HttpError& error) const {
  return http_error_body(error, HttpRoute::kCompletions);
}

std::string ChoicesAnswer::error_events(const HttpError& error) {
  return str("data: ", error_body(error), "\n\ndata: [DONE]\n\n");
}

OrderedJson ChoicesAnswer::usage_json() const {
  const RequestUsage used = usage();
  OrderedJson json = {{"prompt_tokens", used.num_prompt_tokens},
                      {"completion_tokens", used.num_generation_tokens},
                      {"total_tokens", used.num_prompt_tokens + used.num_generation_tokens},
                      {"prompt_tokens_details", {{"cached_tokens", used.num_cached_tokens}}}};
  json["completion_tokens_details"] = {{"reasoning_tokens", used.num_reasoning_tokens}};
  return json;
}

std::string ChoicesAnswer::begin_event() {
  if (event_head_.empty()) {
    event_head_ = str("data: {\"id\":", json_string(options().info.request_id), ",\"object\":\"",
                      object(true), "\",\"created\":", options().info.created,
                      ",\"model\":", json_string(options().model), ",\"choices\":[");
  }
  return event_head_;
}

std::string ChoicesAnswer::end_event() const {
  if (!options().body.continuous_usage_stats) return "]}\n\n";
  return str("],\"usage\":", json_text(usage_json()), "}\n\n");
}

}  // namespace quire
