#include "http_api/http_answer.h"

#include <algorithm>
#include <span>
#include <utility>

#include "util/str.h"

namespace quire {

std::string json_text(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}
std::string json_string(std::string_view text) { return json_text(OrderedJson(text)); }
double finite_logprob(const Logprob& logprob) {
  return std::max(static_cast<double>(logprob.logprob), -9999.0);
}
OrderedJson stop_reason_json(const CompletionOutput& output) {
  if (const auto* text = std::get_if<std::string>(&output.stop_reason)) return *text;
  if (const auto* id = std::get_if<int32_t>(&output.stop_reason)) return *id;
  return nullptr;
}

std::unique_ptr<HttpAnswer> make_answer(HttpRoute route, HttpAnswerOptions options) {
  switch (route) {
    case HttpRoute::kCompletions: return make_completions_answer(std::move(options));
    case HttpRoute::kChatCompletions: return make_chat_answer(std::move(options));
    case HttpRoute::kMessages: return make_messages_answer(std::move(options));
    case HttpRoute::kResponses: return make_responses_answer(std::move(options));
    case HttpRoute::kCountTokens: break;  // has none from the engine
  }
  throw InvalidArgument("the route is none that gives answers");
}

HttpAnswer::HttpAnswer(HttpAnswerOptions options)
    : options_(std::move(options)),
      outputs_(options_.request_ids.size()),
      num_unfinished_(options_.request_ids.size()) {
  for (size_t i = 0; i < options_.request_ids.size(); ++i) prompt_of_.emplace(options_.request_ids[i], i);
}

std::string HttpAnswer::write(std::vector<RequestOutput>&& outputs) {
  if (finished_ || outputs.empty()) return "";
  for (RequestOutput& output : outputs) {
    for (const CompletionOutput& completion : output.outputs) {
      if (completion.finish_reason != FinishReason::kNone)
        finish_reasons_.push_back(completion.finish_reason);
      if (completion.finish_reason == FinishReason::kError) return fail(completion.error);
    }
    RequestOutput& kept = outputs_[prompt_of_.at(output.request_id)];
    kept.usage = output.usage;
    kept.metrics = output.metrics;
    num_unfinished_ -= output.finished ? 1 : 0;
    if (!options_.body.stream) kept = std::move(output);
  }
  if (options_.body.stream) return write_events(outputs);
  if (num_unfinished_ > 0) return "";
  finished_ = true;
  return write_body(outputs_);
}

std::string HttpAnswer::write_events(const std::vector<RequestOutput>& outputs) {
  std::string bytes;
  for (const RequestOutput& output : outputs) {
    const size_t prompt = prompt_of_.at(output.request_id);
    for (const CompletionOutput& delta : output.outputs) bytes += write_delta(prompt, delta);
  }
  if (num_unfinished_ == 0) {
    finished_ = true;
    bytes += write_end();
  }
  has_sent_ = has_sent_ || !bytes.empty();
  return bytes;
}

std::string HttpAnswer::fail(const std::string& message) {
  finished_ = failed_ = true;
  error_ = message;
  // What ends an answer by itself may be what was asked for: a grammar that nothing fits.
  const std::string param = field_at_fault(message);
  const int32_t status = param.empty() ? 500 : 400;
  const HttpError error{.status = status, .message = message, .param = param, .code = ""};
  if (has_sent_) return error_events(error);
  status_ = status;
  return error_body(error);
}

RequestUsage HttpAnswer::usage() const {
  RequestUsage sum;
  for (const RequestOutput& output : outputs_) {
    sum.num_prompt_tokens += output.usage.num_prompt_tokens;
    sum.num_cached_tokens += output.usage.num_cached_tokens;
    sum.num_generation_tokens += output.usage.num_generation_tokens;
    sum.num_reasoning_tokens += output.usage.num_reasoning_tokens;
  }
  return sum;
}

std::string HttpAnswer::token_text(int32_t id) const {
  if (options_.body.return_tokens_as_token_ids || !options_.tokenizer) return str("token_id:", id);
  return options_.tokenizer->decode(std::span(&id, 1), /*skip_special_tokens=*/false);
}

OrderedJson HttpAnswer::token_logprobs(const CompletionOutput& completion) const {
  const auto token_json = [this](const Logprob& logprob) {
    OrderedJson json = {{"token", token_text(logprob.token_id)},
                        {"logprob", finite_logprob(logprob)},
                        {"bytes", OrderedJson::array()}};
    if (options_.tokenizer) {
      for (const char byte : options_.tokenizer->token_bytes(logprob.token_id))
        json["bytes"].push_back(static_cast<uint8_t>(byte));
    }
    return json;
  };
  OrderedJson all = OrderedJson::array();
  for (const PositionLogprobs& position : completion.logprobs) {
    OrderedJson token = token_json(position.front());
    OrderedJson top = OrderedJson::array();
    for (const Logprob& one : std::span(position).subspan(1)) top.push_back(token_json(one));
    token["top_logprobs"] = std::move(top);
    all.push_back(std::move(token));
  }
  return all;
}

}  // namespace quire
