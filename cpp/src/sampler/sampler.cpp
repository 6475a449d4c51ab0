#include "sampler/sampler.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "util/check.h"

namespace quire {

std::span<const int32_t> Sampler::sample(const LaunchContext& launch, ActivationArena& arena,
                                         TensorView logits, std::span<const SamplingRow> rows,
                                         std::vector<RequestLogprobs>& logprobs) {
  const size_t n = rows.size();
  const size_t mark = arena.mark();
  const auto wants_logprobs = [](const SamplingRow& row) { return row.params->logprobs.has_value(); };
  const bool any_logprobs = std::any_of(rows.begin(), rows.end(), wants_logprobs);
  TensorView all_logprobs;
  if (any_logprobs) {
    all_logprobs = arena.take(DType::kFloat32, static_cast<int64_t>(n), vocab_size_);
    ops_.log_softmax(launch, all_logprobs, logits);
  }

  apply_bias(logits, rows);
  apply_penalties(launch, logits, rows);

  for (auto* column : {&temperature_, &top_p_, &min_p_}) column->resize(n);
  top_k_.resize(n);
  seed_.resize(n);
  position_.resize(n);
  sampled_.resize(n);
  for (size_t i = 0; i < n; ++i) {
    const SamplingParams& params = *rows[i].params;
    temperature_[i] = params.temperature;
    top_k_[i] = std::max(params.top_k, 0);
    top_p_[i] = params.top_p;
    min_p_[i] = params.min_p;
    QUIRE_CHECK(params.seed.has_value());
    seed_[i] = *params.seed;
    position_[i] = rows[i].num_tokens;
  }
  ops_.sample(launch, {logits, temperature_.data(), top_k_.data(), top_p_.data(), min_p_.data(), seed_.data(),
                       position_.data(), sampled_.data()});

  for (size_t i = 0; any_logprobs && i < n; ++i) {
    if (!wants_logprobs(rows[i])) continue;
    const auto* row = reinterpret_cast<const float*>(all_logprobs.at(static_cast<int64_t>(i)));
    RequestLogprobs& entry = logprobs.emplace_back();
    entry.result_index = rows[i].result_index;
    entry.positions.push_back(top_logprobs(row, sampled_[i], *rows[i].params->logprobs));
  }
  arena.release(mark);
  return sampled_;
}

void Sampler::apply_bias(TensorView logits, std::span<const SamplingRow> rows) const {
  for (size_t i = 0; i < rows.size(); ++i) {
    const SamplingRow& row = rows[i];
    auto* values = reinterpret_cast<float*>(logits.at(static_cast<int64_t>(i)));
    for (const auto& [id, bias] : row.params->logit_bias) values[id] += bias;
    if (row.num_tokens - row.num_prompt_tokens < row.params->min_tokens) {
      constexpr float kNever = -std::numeric_limits<float>::infinity();
      for (int32_t id : *row.eos_token_ids) values[id] = kNever;
      for (int32_t id : row.params->stop_token_ids) values[id] = kNever;
    }
  }
}

void Sampler::apply_penalties(const LaunchContext& launch, TensorView logits,
                              std::span<const SamplingRow> rows) {
  const auto penalized = [](const SamplingRow& row) {
    const SamplingParams& p = *row.params;
    return p.presence_penalty != 0 || p.frequency_penalty != 0 || p.repetition_penalty != 1;
  };
  if (std::none_of(rows.begin(), rows.end(), penalized)) return;
  const size_t n = rows.size();
  for (auto* column : {&presence_, &frequency_, &repetition_}) column->resize(n);
  num_prompt_tokens_.resize(n);
  num_tokens_.resize(n);
  token_ids_.resize(n);
  for (size_t i = 0; i < n; ++i) {
    presence_[i] = rows[i].params->presence_penalty;
    frequency_[i] = rows[i].params->frequency_penalty;
    repetition_[i] = rows[i].params->repetition_penalty;
    num_prompt_tokens_[i] = rows[i].num_prompt_tokens;
    num_tokens_[i] = rows[i].num_tokens;
    token_ids_[i] = rows[i].token_ids;
  }
  ops_.apply_penalties(launch, {logits, token_ids_.data(), num_prompt_tokens_.data(), num_tokens_.data(),
                                presence_.data(), frequency_.data(), repetition_.data()});
}

PositionLogprobs Sampler::top_logprobs(const float* logprobs, int32_t chosen, int32_t num_top) {
  const auto likelier = [logprobs](int32_t a, int32_t b) {
    return logprobs[a] != logprobs[b] ? logprobs[a] > logprobs[b] : a < b;
  };
  int32_t rank = 1;
  for (int32_t id = 0; id < vocab_size_; ++id) rank += likelier(id, chosen);
  PositionLogprobs out;
  const auto count = static_cast<size_t>(std::min(num_top, vocab_size_));
  out.reserve(count + 1);
  out.push_back({chosen, logprobs[chosen], rank});
  if (count > 0) {
    order_.resize(static_cast<size_t>(vocab_size_));
    for (size_t i = 0; i < order_.size(); ++i) order_[i] = static_cast<int32_t>(i);
    const auto middle = order_.begin() + static_cast<std::ptrdiff_t>(count);
    std::partial_sort(order_.begin(), middle, order_.end(), likelier);
    for (size_t i = 0; i < count; ++i)
      out.push_back({order_[i], logprobs[order_[i]], static_cast<int32_t>(i) + 1});
  }
  return out;
}

}  // namespace quire
