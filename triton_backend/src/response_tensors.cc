#include "response_tensors.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

namespace quire::triton {
namespace {

template <typename T>
void append_bytes(std::string& bytes, const T& value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void append_string(std::string& bytes, std::string_view first, std::string_view second = {}) {
  append_bytes(bytes, static_cast<uint32_t>(first.size() + second.size()));
  bytes.append(first).append(second);
}

// The log-probability of a row's token; 0 after its last one.
float chosen_logprob(const CompletionOutput& completion, size_t index) {
  if (index >= completion.token_ids.size() || index >= completion.logprobs.size()) return 0.0F;
  for (const Logprob& token : completion.logprobs[index]) {
    if (token.token_id == completion.token_ids[index]) return token.logprob;
  }
  return 0.0F;
}

}  // namespace

ResponseTensors::ResponseTensors(const ResponseOptions& options, int32_t n, std::string prompt,
                                 std::shared_ptr<const Tokenizer> tokenizer, ChatAnswerOptions chat)
    : options_(options),
      prompt_(std::move(prompt)),
      tokenizer_(std::move(tokenizer)),
      n_(n),
      chat_(std::move(chat)) {
  // Whatever is wrong with the request's tools is said before the engine has it.
  if (options_.message) writers_.emplace_back(chat_);
}

bool ResponseTensors::build(const RequestOutput& output, std::vector<OutputTensor>& tensors) {
  tensors.clear();
  rows_.resize(static_cast<size_t>(n_));
  finish_reasons_.resize(rows_.size(), FinishReason::kNone);
  stop_reasons_.resize(rows_.size());
  cumulative_logprobs_.resize(rows_.size());
  std::fill(rows_.begin(), rows_.end(), nullptr);
  for (const CompletionOutput& completion : output.outputs) {
    const auto row = static_cast<size_t>(completion.index);
    rows_.at(row) = &completion;
    if (completion.finished()) finish_reasons_[row] = completion.finish_reason;
    stop_reasons_[row] = completion.stop_reason;
    if (completion.cumulative_logprob) cumulative_logprobs_[row] = *completion.cumulative_logprob;
  }
  while (options_.message && writers_.size() < rows_.size()) writers_.emplace_back(chat_);
  const auto n = static_cast<int64_t>(rows_.size());
  bool has_news = true;
  const auto add = [&](const char* name, TRITONSERVER_DataType datatype,
                       std::vector<int64_t> shape) -> std::string& {
    tensors.push_back({name, datatype, std::move(shape), {}});
    return tensors.back().bytes;
  };

  if (options_.text_output) {
    std::string& bytes = add("text_output", TRITONSERVER_TYPE_BYTES, {n});
    for (const CompletionOutput* row : rows_)
      append_string(bytes, prompt_, row ? row->text : std::string_view());
    prompt_.clear();
  }
  size_t longest = 0;
  for (const CompletionOutput* row : rows_) longest = std::max(longest, row ? row->token_ids.size() : 0);
  if (options_.output_ids) {
    std::string& bytes = add("output_ids", TRITONSERVER_TYPE_INT32, {n, static_cast<int64_t>(longest)});
    for (const CompletionOutput* row : rows_) {
      for (size_t i = 0; i < longest; ++i) {
        append_bytes(bytes, row && i < row->token_ids.size() ? row->token_ids[i] : int32_t{-1});
      }
    }
  }
  if (options_.message) {
    const bool changed = add_messages(add("message", TRITONSERVER_TYPE_BYTES, {n}));
    has_news = changed || !options_.only_messages();
  }
  if (options_.finish_reason) {
    std::string& bytes = add("finish_reason", TRITONSERVER_TYPE_BYTES, {n});
    for (size_t row = 0; row < finish_reasons_.size(); ++row) {
      const FinishReason reason = finish_reasons_[row];
      append_string(bytes, reason == FinishReason::kNone ? "None"
                           : options_.message            ? writers_[row].finish_reason(reason)
                                                         : finish_reason_name(reason));
    }
  }
  if (options_.cumulative_logprob) {
    std::string& bytes = add("cumulative_logprob", TRITONSERVER_TYPE_FP32, {n});
    for (double logprob : cumulative_logprobs_) append_bytes(bytes, static_cast<float>(logprob));
  }
  if (options_.logprobs) {
    std::string& bytes = add("logprobs", TRITONSERVER_TYPE_BYTES, {n});
    for (const CompletionOutput* row : rows_) append_string(bytes, row ? logprobs_json(row->logprobs) : "[]");
  }
  if (options_.prompt_logprobs) {
    append_string(add("prompt_logprobs", TRITONSERVER_TYPE_BYTES, {1}),
                  output.prompt_logprobs ? logprobs_json(*output.prompt_logprobs) : "[]");
  }
  if (options_.num_input_tokens) {
    std::string& bytes = add("num_input_tokens", TRITONSERVER_TYPE_UINT32, {1});
    append_bytes(bytes, static_cast<uint32_t>(output.prompt_token_ids ? output.prompt_token_ids->size() : 0));
  }
  if (options_.num_output_tokens) {
    std::string& bytes = add("num_output_tokens", TRITONSERVER_TYPE_UINT32, {n});
    for (const CompletionOutput* row : rows_)
      append_bytes(bytes, static_cast<uint32_t>(row ? row->token_ids.size() : 0));
  }
  if (options_.cum_log_probs) {
    std::string& bytes = add("cum_log_probs", TRITONSERVER_TYPE_FP32, {n});
    for (double logprob : cumulative_logprobs_) append_bytes(bytes, static_cast<float>(logprob));
  }
  if (options_.output_log_probs) {
    std::string& bytes = add("output_log_probs", TRITONSERVER_TYPE_FP32, {n, static_cast<int64_t>(longest)});
    for (const CompletionOutput* row : rows_) {
      for (size_t i = 0; i < longest; ++i) append_bytes(bytes, row ? chosen_logprob(*row, i) : 0.0F);
    }
  }
  if (options_.usage) append_string(add("usage", TRITONSERVER_TYPE_BYTES, {1}), usage_json(output));
  if (options_.batched) {
    for (OutputTensor& tensor : tensors) tensor.shape.insert(tensor.shape.begin(), 1);
  }
  return has_news;
}

// Whole messages, or deltas. Returns whether there is anything in them.
bool ResponseTensors::add_messages(std::string& bytes) {
  bool has_news = false;
  for (size_t row = 0; row < rows_.size(); ++row) {
    const CompletionOutput* const completion = rows_[row];
    std::string message = "{}";
    if (completion && options_.stream)
      message = writers_[row].delta(completion->text, completion->finished());
    else if (completion)
      message = writers_[row].message(completion->text);
    has_news = has_news || message != "{}" || (completion && completion->finished());
    append_string(bytes, message);
  }
  return has_news;
}

// The vLLM backend's form: for each token an object from token id to its logprob, rank and text; null where
// there is none.
std::string ResponseTensors::logprobs_json(const std::vector<PositionLogprobs>& all) const {
  auto positions = nlohmann::ordered_json::array();
  for (const PositionLogprobs& position : all) {
    if (position.empty()) {
      positions.push_back(nullptr);
      continue;
    }
    auto& tokens = positions.emplace_back(nlohmann::ordered_json::object());
    for (const Logprob& token : position) {
      auto& entry = tokens[std::to_string(token.token_id)];
      entry["logprob"] = token.logprob;
      entry["rank"] = token.rank;
      if (tokenizer_)
        entry["decoded_token"] = tokenizer_->decode({&token.token_id, 1}, /*skip_special_tokens=*/false);
      else
        entry["decoded_token"] = nullptr;
    }
  }
  return positions.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

// What the request has used so far, and when things happened to it, in seconds.
std::string ResponseTensors::usage_json(const RequestOutput& output) const {
  nlohmann::ordered_json usage;
  usage["prompt_tokens"] = output.usage.num_prompt_tokens;
  usage["cached_tokens"] = output.usage.num_cached_tokens;
  usage["completion_tokens"] = output.usage.num_generation_tokens;
  usage["reasoning_tokens"] = output.usage.num_reasoning_tokens;
  auto& reasons = usage["stop_reasons"] = nlohmann::ordered_json::array();
  for (const auto& reason : stop_reasons_) {
    if (const auto* text = std::get_if<std::string>(&reason)) {
      reasons.push_back(*text);
    } else if (const auto* id = std::get_if<int32_t>(&reason)) {
      reasons.push_back(*id);
    } else {
      reasons.push_back(nullptr);
    }
  }
  usage["queued_time"] = output.metrics.queued_time();
  usage["prefill_time"] = output.metrics.prefill_time();
  usage["first_token_latency"] = output.metrics.first_token_latency();
  usage["decode_time"] = output.metrics.decode_time();
  usage["inference_time"] = output.metrics.inference_time();
  usage["mean_time_per_output_token"] = output.metrics.mean_time_per_output_token;
  return usage.dump();
}

std::vector<OutputTensor> reply(std::string_view text, FinishReason reason, bool batched) {
  const auto one_string = [&](const char* name, std::string_view value) {
    OutputTensor tensor{name, TRITONSERVER_TYPE_BYTES, std::vector<int64_t>(batched ? 2 : 1, 1), {}};
    append_string(tensor.bytes, value);
    return tensor;
  };
  return {one_string("text_output", text), one_string("finish_reason", finish_reason_name(reason))};
}

}  // namespace quire::triton
