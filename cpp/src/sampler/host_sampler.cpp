// Sampling where the kernels' memory is the host's: done when `sample` returns.
#include <algorithm>
#include <limits>

#include "sampler/logprobs.h"
#include "sampler/sampler.h"
#include "util/check.h"

namespace quire {
namespace {

class HostSampler final : public Sampler {
 public:
  HostSampler(const KernelTable& ops, const SamplerConfig& config)
      : Sampler(ops, config, /*staging=*/nullptr),
        ops_(ops),
        vocab_size_(config.vocab_size),
        mask_rows_(config),
        results_(static_cast<size_t>(config.ring_size)) {}

  void stage(int32_t, std::span<const SamplingRow> rows) override { rows_ = rows; }
  void sample(const LaunchContext& launch, ActivationArena& arena, TensorView logits, int32_t ring_index,
              const GrammarOutput* grammar) override;
  std::span<const int32_t> token_ids(int32_t ring_index) const override {
    return results_[static_cast<size_t>(ring_index)].token_ids;
  }
  void take_logprobs(int32_t ring_index, std::vector<RequestLogprobs>& logprobs) override {
    auto& own = results_[static_cast<size_t>(ring_index)].logprobs;
    std::move(own.begin(), own.end(), std::back_inserter(logprobs));
    own.clear();
  }

 private:
  void apply_bias(TensorView logits) const;
  void apply_masks(const LaunchContext& launch, TensorView logits, const GrammarOutput& grammar);
  void apply_bans(const LaunchContext& launch, TensorView logits);
  void fill_history();
  void apply_penalties(const LaunchContext& launch, TensorView logits);
  PositionLogprobs position_of(std::span<const float> logprobs, int32_t chosen, const SamplingParams& params);

  const KernelTable& ops_;
  int32_t vocab_size_;
  MaskRows mask_rows_;
  struct StepResult {
    std::vector<int32_t> token_ids;
    std::vector<RequestLogprobs> logprobs;
  };
  std::vector<StepResult> results_;
  std::span<const SamplingRow> rows_;
  std::vector<float> temperature_, top_p_, min_p_, presence_, frequency_, repetition_;
  std::vector<int32_t> top_k_, num_prompt_tokens_, num_tokens_, order_, drawn_;
  std::vector<uint64_t> seed_;
  std::vector<int64_t> position_;
  std::vector<const int32_t*> token_ids_;
  BadWordLists bad_words_;
};

void HostSampler::sample(const LaunchContext& launch, ActivationArena& arena, TensorView logits,
                         int32_t ring_index, const GrammarOutput* grammar) {
  const size_t n = rows_.size();
  StepResult& result = results_[static_cast<size_t>(ring_index)];
  result.token_ids.resize(n);
  result.logprobs.clear();
  const size_t mark = arena.mark();
  const bool any_logprobs = std::any_of(rows_.begin(), rows_.end(),
                                        [](const SamplingRow& row) { return row.sampling.wants_logprobs; });
  TensorView all_logprobs;
  if (any_logprobs) {
    all_logprobs = arena.take(DType::kFloat32, static_cast<int64_t>(n), vocab_size_);
    ops_.log_softmax(launch, all_logprobs, logits);
  }

  call_logits_hook(logits);
  apply_bias(logits);
  apply_bans(launch, logits);
  if (grammar != nullptr) apply_masks(launch, logits, *grammar);
  apply_penalties(launch, logits);

  for (auto* column : {&temperature_, &top_p_, &min_p_}) column->resize(n);
  top_k_.resize(n);
  seed_.resize(n);
  position_.resize(n);
  for (size_t i = 0; i < n; ++i) {
    const RowSampling& sampling = rows_[i].sampling;
    temperature_[i] = sampling.temperature;
    top_k_[i] = sampling.top_k;
    top_p_[i] = sampling.top_p;
    min_p_[i] = sampling.min_p;
    seed_[i] = sampling.seed;
    position_[i] = rows_[i].num_tokens;
  }
  SamplingArgs args;
  args.logits = logits;
  args.temperature = temperature_.data();
  args.top_k = top_k_.data();
  args.top_p = top_p_.data();
  args.min_p = min_p_.data();
  args.seed = seed_.data();
  args.position = position_.data();
  drawn_.resize(n);
  args.sampled_token_ids = drawn_.data();
  args.host_token_ids = result.token_ids.data();
  ops_.sample(launch, args);

  for (size_t i = 0; any_logprobs && i < n; ++i) {
    if (!rows_[i].sampling.wants_logprobs || result.token_ids[i] < 0) continue;
    const std::span row(reinterpret_cast<const float*>(all_logprobs.at(static_cast<int64_t>(i))),
                        static_cast<size_t>(vocab_size_));
    const uint32_t index = rows_[i].result_index;
    if (result.logprobs.empty() || result.logprobs.back().result_index != index)
      result.logprobs.push_back({index, {}});
    RequestLogprobs& entry = result.logprobs.back();
    entry.positions.push_back(position_of(row, result.token_ids[i], *rows_[i].params));
  }
  arena.release(mark);
}

void HostSampler::apply_bias(TensorView logits) const {
  for (size_t i = 0; i < rows_.size(); ++i) {
    const SamplingRow& row = rows_[i];
    auto* values = reinterpret_cast<float*>(logits.at(static_cast<int64_t>(i)));
    for (const auto& [id, bias] : row.params->logit_bias) values[id] += bias;
    if (row.is_too_short()) {
      constexpr float kNever = -std::numeric_limits<float>::infinity();
      for (int32_t id : *row.eos_token_ids) values[id] = kNever;
      for (int32_t id : row.params->stop_token_ids) values[id] = kNever;
    }
  }
}

void HostSampler::apply_masks(const LaunchContext& launch, TensorView logits, const GrammarOutput& grammar) {
  const std::span<const int32_t> rows = mask_rows_.find(rows_, grammar, vocab_size_);
  const auto n = static_cast<int64_t>(rows.size());
  if (n == 0) return;
  const auto words = static_cast<int64_t>(grammar.bitmask.size()) / n;
  // The kernel only reads them.
  ops_.apply_bitmask(launch, logits, {const_cast<int32_t*>(rows.data()), DType::kInt32, n},
                     {const_cast<int32_t*>(grammar.bitmask.data()), DType::kInt32, n, words});
}

void HostSampler::apply_bans(const LaunchContext& launch, TensorView logits) {
  if (std::ranges::all_of(rows_, [](const SamplingRow& row) { return row.bans == nullptr; })) return;
  bad_words_.clear();
  for (size_t i = 0; i < rows_.size(); ++i) {
    if (rows_[i].bans == nullptr) continue;
    auto row = static_cast<int32_t>(i);
    bad_words_.add(row, rows_[i].bans->bad_words);
    const std::vector<int32_t>& mask = rows_[i].bans->allowed_bitmask;
    if (mask.empty()) continue;
    ops_.apply_bitmask(
        launch, logits, {&row, DType::kInt32, 1},
        {const_cast<int32_t*>(mask.data()), DType::kInt32, 1, static_cast<int64_t>(mask.size())});
  }
  if (bad_words_.count() == 0) return;
  fill_history();
  ops_.apply_bad_words(
      launch, {logits, token_ids_.data(), num_prompt_tokens_.data(), num_tokens_.data(),
               bad_words_.row.data(), bad_words_.begin.data(), bad_words_.words.data(), bad_words_.count()});
}

void HostSampler::fill_history() {
  const size_t n = rows_.size();
  num_prompt_tokens_.resize(n);
  num_tokens_.resize(n);
  token_ids_.resize(n);
  for (size_t i = 0; i < n; ++i) {
    num_prompt_tokens_[i] = rows_[i].num_prompt_tokens;
    num_tokens_[i] = rows_[i].num_tokens;
    token_ids_[i] = rows_[i].token_ids;
  }
}

void HostSampler::apply_penalties(const LaunchContext& launch, TensorView logits) {
  if (std::none_of(rows_.begin(), rows_.end(),
                   [](const SamplingRow& row) { return row.sampling.is_penalized; }))
    return;
  const size_t n = rows_.size();
  for (auto* column : {&presence_, &frequency_, &repetition_}) column->resize(n);
  fill_history();
  for (size_t i = 0; i < n; ++i) {
    presence_[i] = rows_[i].params->presence_penalty;
    frequency_[i] = rows_[i].params->frequency_penalty;
    repetition_[i] = rows_[i].params->repetition_penalty;
  }
  ops_.apply_penalties(launch, {logits, token_ids_.data(), num_prompt_tokens_.data(), num_tokens_.data(),
                                presence_.data(), frequency_.data(), repetition_.data()});
}

// The chosen token, then those that were asked for.
PositionLogprobs HostSampler::position_of(std::span<const float> logprobs, int32_t chosen,
                                          const SamplingParams& params) {
  PositionLogprobs out;
  const std::vector<int32_t>& ids = params.logprob_token_ids;
  out.reserve(1 + (ids.empty() ? static_cast<size_t>(*params.logprobs) : ids.size()));
  out.push_back(logprob_of(logprobs, chosen));
  for (const int32_t id : ids) out.push_back(logprob_of(logprobs, id));
  if (ids.empty()) append_top_logprobs(logprobs, *params.logprobs, out, order_);
  return out;
}

}  // namespace

std::unique_ptr<Sampler> make_host_sampler(const KernelTable& ops, const SamplerConfig& config) {
  return std::make_unique<HostSampler>(ops, config);
}

}  // namespace quire
