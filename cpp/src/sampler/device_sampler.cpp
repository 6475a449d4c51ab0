// Sampling on a device: what it needs travels with the step's inputs, what it leaves its kernels write into
// pinned memory.
#include <algorithm>
#include <cstring>
#include <limits>

#include "sampler/sampler.h"
#include "util/check.h"

namespace quire {
namespace {

// The most log-probabilities a row may ask for (SamplingParams::logprobs).
constexpr int32_t kMaxTopLogprobs = 100;
// Biased tokens that are sent with the rest, on average over the rows. More take a round of their own.
constexpr size_t kMaxBiasesPerRow = 64;
constexpr size_t kBiasBytes = 2 * sizeof(int32_t) + sizeof(float);

// Columns of results, one after the other.
struct ResultLayout {
  explicit ResultLayout(int32_t max_num_seqs) : rows(static_cast<size_t>(max_num_seqs)) {}
  size_t tokens() const { return 0; }
  size_t chosen_logprob() const { return rows; }
  size_t chosen_rank() const { return 2 * rows; }
  size_t top_ids() const { return 3 * rows; }
  size_t top_logprobs() const { return (3 + kMaxTopLogprobs) * rows; }
  size_t words() const { return (3 + 2 * kMaxTopLogprobs) * rows; }
  size_t rows;
};

class DeviceSampler final : public Sampler {
 public:
  DeviceSampler(const KernelTable& ops, int32_t vocab_size, const DeviceSamplerParts& parts)
      : ops_(ops),
        vocab_size_(vocab_size),
        parts_(parts),
        layout_(parts.max_num_seqs),
        pinned_(make_pinned(parts.runtime,
                            static_cast<size_t>(parts.num_slots) * layout_.words() * sizeof(int32_t))),
        slots_(static_cast<size_t>(parts.num_slots)) {
    check_device(parts_.runtime,
                 parts_.runtime.fill(row_counters(), 0, layout_.rows * sizeof(uint32_t), parts_.stream),
                 "clearing counters");
  }

  size_t scratch_bytes(int64_t rows) const override {
    return ActivationArena::bytes(DType::kFloat32, rows * vocab_size_) +
           ActivationArena::bytes(DType::kFloat32, rows);
  }
  void stage(int32_t slot, std::span<const SamplingRow> rows) override;
  void sample(const LaunchContext& launch, ActivationArena& arena, TensorView logits, int32_t slot,
              const GrammarOutput* grammar) override;
  std::span<const int32_t> token_ids(int32_t slot) const override {
    return {words(slot) + layout_.tokens(), slots_[static_cast<size_t>(slot)].num_rows};
  }
  void take_logprobs(int32_t slot, std::vector<RequestLogprobs>& logprobs) override;

 private:
  struct Slot {
    size_t num_rows = 0;
    struct LogprobsRow {
      size_t row;
      uint32_t result_index;
      int32_t num_top;
    };
    std::vector<LogprobsRow> logprobs;  // the rows that asked
    int32_t num_top = 0;                // the most that one of them asked for
  };
  // What a step sends.
  struct StagedStep {
    Staged<float> temperature, top_p, min_p;
    Staged<int32_t> top_k;
    Staged<int32_t*> token_places;
    Staged<uint64_t> seed;
    Staged<int64_t> position;
    bool all_greedy = true, any_filter = false;
    // Of the rows that want log-probabilities.
    Staged<int32_t> logprobs_rows;
    LogitBiasArgs biases;
    bool late_biases = false;  // too many to be staged with the rest
    // Of all rows, when one is penalized.
    bool penalizes = false;
    Staged<const int32_t*> token_ids;
    Staged<int32_t> num_prompt_tokens, num_tokens;
    Staged<float> presence, frequency, repetition;
  };
  void collect_biases();
  LogitBiasArgs stage_biases(size_t begin, size_t count);
  void apply_late_biases(const LaunchContext& launch, TensorView logits);
  void stage_penalties();
  void apply_masks(const LaunchContext& launch, TensorView logits, const GrammarOutput& grammar);

  // What kernels read again is on the device, ...
  int32_t* device_token_ids(int32_t slot) const {
    return reinterpret_cast<int32_t*>(parts_.memory) + static_cast<size_t>(slot) * layout_.rows;
  }
  uint32_t* row_counters() const { return reinterpret_cast<uint32_t*>(device_token_ids(parts_.num_slots)); }
  // ... the rest only where the host reads it.
  int32_t* words(int32_t slot) const {
    return static_cast<int32_t*>(pinned_.get()) + static_cast<size_t>(slot) * layout_.words();
  }

  const KernelTable& ops_;
  int32_t vocab_size_;
  DeviceSamplerParts parts_;
  ResultLayout layout_;
  PinnedMemory pinned_;
  std::vector<Slot> slots_;
  std::span<const SamplingRow> rows_;
  StagedStep step_;
  // The (row, token) pairs that a logit bias or a minimum length names.
  struct Bias {
    int32_t row, token;
    float value;
  };
  std::vector<Bias> biases_;
  std::vector<int32_t> forbidden_;  // scratch
};

void DeviceSampler::stage(int32_t slot, std::span<const SamplingRow> rows) {
  rows_ = rows;
  step_ = {};
  Slot& result = slots_[static_cast<size_t>(slot)];
  result.num_rows = rows.size();
  result.logprobs.clear();
  result.num_top = 0;
  const size_t n = rows.size();
  if (n == 0) return;
  StagingRing& staging = parts_.staging;
  step_.temperature = staging.push<float>(n);
  step_.top_p = staging.push<float>(n);
  step_.min_p = staging.push<float>(n);
  step_.top_k = staging.push<int32_t>(n);
  step_.seed = staging.push<uint64_t>(n);
  step_.position = staging.push<int64_t>(n);
  step_.token_places = staging.push<int32_t*>(n);
  for (size_t i = 0; i < n; ++i) {
    const RowSampling& sampling = rows[i].sampling;
    step_.temperature.host[i] = sampling.temperature;
    step_.top_k.host[i] = sampling.top_k;
    step_.top_p.host[i] = sampling.top_p;
    step_.min_p.host[i] = sampling.min_p;
    step_.seed.host[i] = sampling.seed;
    step_.position.host[i] = rows[i].num_tokens;
    step_.token_places.host[i] = rows[i].token_place;
    step_.all_greedy &= sampling.temperature == 0;
    step_.any_filter |= sampling.is_filtered();
    step_.penalizes |= sampling.is_penalized;
    if (sampling.wants_logprobs) {
      const int32_t num_top = std::min({*rows[i].params->logprobs, kMaxTopLogprobs, vocab_size_});
      result.logprobs.push_back({i, rows[i].result_index, num_top});
      result.num_top = std::max(result.num_top, num_top);
    }
  }
  if (!result.logprobs.empty()) {
    step_.logprobs_rows = staging.push<int32_t>(result.logprobs.size());
    for (size_t i = 0; i < result.logprobs.size(); ++i)
      step_.logprobs_rows.host[i] = static_cast<int32_t>(result.logprobs[i].row);
  }
  if (step_.penalizes) stage_penalties();
  collect_biases();
  step_.late_biases = biases_.size() > kMaxBiasesPerRow * static_cast<size_t>(parts_.max_num_seqs);
  if (!biases_.empty() && !step_.late_biases) step_.biases = stage_biases(0, biases_.size());
}

// A pair may be both biased and forbidden: forbidden wins, and pairs stay distinct.
void DeviceSampler::collect_biases() {
  biases_.clear();
  for (size_t i = 0; i < rows_.size(); ++i) {
    const SamplingRow& row = rows_[i];
    if (!row.sampling.is_biased && !row.is_too_short()) continue;
    forbidden_.clear();
    if (row.is_too_short()) {
      forbidden_.assign(row.eos_token_ids->begin(), row.eos_token_ids->end());
      forbidden_.insert(forbidden_.end(), row.params->stop_token_ids.begin(),
                        row.params->stop_token_ids.end());
      std::sort(forbidden_.begin(), forbidden_.end());
      forbidden_.erase(std::unique(forbidden_.begin(), forbidden_.end()), forbidden_.end());
    }
    const auto index = static_cast<int32_t>(i);
    for (int32_t token : forbidden_)
      biases_.push_back({index, token, -std::numeric_limits<float>::infinity()});
    for (const auto& [token, bias] : row.params->logit_bias) {
      if (!std::binary_search(forbidden_.begin(), forbidden_.end(), token))
        biases_.push_back({index, token, bias});
    }
  }
}

LogitBiasArgs DeviceSampler::stage_biases(size_t begin, size_t count) {
  const auto rows = parts_.staging.push<int32_t>(count);
  const auto tokens = parts_.staging.push<int32_t>(count);
  const auto values = parts_.staging.push<float>(count);
  for (size_t i = 0; i < count; ++i) {
    rows.host[i] = biases_[begin + i].row;
    tokens.host[i] = biases_[begin + i].token;
    values.host[i] = biases_[begin + i].value;
  }
  return {{}, rows.device, tokens.device, values.device, static_cast<int32_t>(count)};
}

// Those that were not staged with the rest, a roomful at a time.
void DeviceSampler::apply_late_biases(const LaunchContext& launch, TensorView logits) {
  const size_t mark = parts_.staging.mark();
  for (size_t begin = 0; begin < biases_.size();) {
    const size_t room = parts_.staging.available() / kBiasBytes;
    QUIRE_CHECK(room > 4);
    const size_t count = std::min(room - 4, biases_.size() - begin);
    LogitBiasArgs args = stage_biases(begin, count);
    args.logits = logits;
    parts_.staging.send(launch.stream);
    ops_.apply_logit_bias(launch, args);
    parts_.staging.rewind(mark, launch.stream);
    begin += count;
  }
}

void DeviceSampler::stage_penalties() {
  const size_t n = rows_.size();
  StagingRing& staging = parts_.staging;
  step_.token_ids = staging.push<const int32_t*>(n);
  step_.num_prompt_tokens = staging.push<int32_t>(n);
  step_.num_tokens = staging.push<int32_t>(n);
  step_.presence = staging.push<float>(n);
  step_.frequency = staging.push<float>(n);
  step_.repetition = staging.push<float>(n);
  for (size_t i = 0; i < n; ++i) {
    step_.token_ids.host[i] = rows_[i].token_ids;
    step_.num_prompt_tokens.host[i] = rows_[i].num_prompt_tokens;
    step_.num_tokens.host[i] = rows_[i].num_tokens;
    step_.presence.host[i] = rows_[i].params->presence_penalty;
    step_.frequency.host[i] = rows_[i].params->frequency_penalty;
    step_.repetition.host[i] = rows_[i].params->repetition_penalty;
  }
}

void DeviceSampler::apply_masks(const LaunchContext& launch, TensorView logits,
                                const GrammarOutput& grammar) {
  const size_t words = (static_cast<size_t>(vocab_size_) + 31) / 32;
  const size_t n = grammar.request_ids.size();
  QUIRE_CHECK(grammar.bitmask.size() == n * words, grammar.bitmask.size(), " words of masks");
  const auto rows = parts_.staging.push<int32_t>(n);
  const auto masks = parts_.staging.push<int32_t>(n * words);
  std::memcpy(masks.host, grammar.bitmask.data(), n * words * sizeof(int32_t));
  for (size_t g = 0; g < n; ++g) {
    const auto row = std::find_if(rows_.begin(), rows_.end(), [&](const SamplingRow& candidate) {
      return candidate.request_id == grammar.request_ids[g];
    });
    QUIRE_CHECK(row != rows_.end(), "request ", grammar.request_ids[g], " has a mask and is not sampled");
    rows.host[g] = static_cast<int32_t>(row - rows_.begin());
  }
  parts_.staging.send(launch.stream);
  ops_.apply_bitmask(launch, logits, {rows.device, DType::kInt32, static_cast<int64_t>(n)},
                     {masks.device, DType::kInt32, static_cast<int64_t>(n), static_cast<int64_t>(words)});
}

void DeviceSampler::sample(const LaunchContext& launch, ActivationArena& arena, TensorView logits,
                           int32_t slot, const GrammarOutput* grammar) {
  Slot& result = slots_[static_cast<size_t>(slot)];
  const size_t mark = arena.mark();
  const auto num_logprobs = static_cast<int64_t>(result.logprobs.size());
  TensorView own_logits;
  if (num_logprobs > 0) {
    own_logits = arena.take(DType::kFloat32, num_logprobs, vocab_size_);
    ops_.gather_rows(launch, own_logits, logits, {step_.logprobs_rows.device, DType::kInt32, num_logprobs});
  }
  if (step_.late_biases) {
    apply_late_biases(launch, logits);
  } else if (step_.biases.count > 0) {
    step_.biases.logits = logits;
    ops_.apply_logit_bias(launch, step_.biases);
  }
  if (grammar != nullptr && !grammar->request_ids.empty()) apply_masks(launch, logits, *grammar);
  if (step_.penalizes) {
    ops_.apply_penalties(
        launch, {logits, step_.token_ids.device, step_.num_prompt_tokens.device, step_.num_tokens.device,
                 step_.presence.device, step_.frequency.device, step_.repetition.device});
  }
  int32_t* words = this->words(slot);
  int32_t* token_ids = device_token_ids(slot);
  SamplingArgs args;
  args.logits = logits;
  args.temperature = step_.temperature.device;
  args.top_k = step_.top_k.device;
  args.top_p = step_.top_p.device;
  args.min_p = step_.min_p.device;
  args.seed = step_.seed.device;
  args.position = step_.position.device;
  args.sampled_token_ids = token_ids;
  args.host_token_ids = words + layout_.tokens();
  args.token_places = step_.token_places.device;
  args.row_counters = row_counters();
  args.all_greedy = step_.all_greedy;
  args.any_filter = step_.any_filter;
  ops_.sample(launch, args);
  if (num_logprobs > 0) {
    // Ids travel as floats: a row is moved bit by bit.
    const TensorView chosen = arena.take(DType::kFloat32, num_logprobs, 1);
    ops_.gather_rows(launch, chosen, {token_ids, DType::kFloat32, static_cast<int64_t>(result.num_rows), 1},
                     {step_.logprobs_rows.device, DType::kInt32, num_logprobs});
    ops_.top_logprobs(
        launch, {own_logits, chosen.as<int32_t>(), result.num_top,
                 reinterpret_cast<float*>(words + layout_.chosen_logprob()), words + layout_.chosen_rank(),
                 words + layout_.top_ids(), reinterpret_cast<float*>(words + layout_.top_logprobs())});
  }
  arena.release(mark);
}

void DeviceSampler::take_logprobs(int32_t slot, std::vector<RequestLogprobs>& logprobs) {
  Slot& result = slots_[static_cast<size_t>(slot)];
  const int32_t* words = this->words(slot);
  const auto* chosen_logprob = reinterpret_cast<const float*>(words + layout_.chosen_logprob());
  const auto* top_logprob = reinterpret_cast<const float*>(words + layout_.top_logprobs());
  for (size_t i = 0; i < result.logprobs.size(); ++i) {
    RequestLogprobs& entry = logprobs.emplace_back();
    entry.result_index = result.logprobs[i].result_index;
    PositionLogprobs& position = entry.positions.emplace_back();
    const auto num_top = static_cast<size_t>(result.logprobs[i].num_top);
    position.reserve(num_top + 1);
    position.push_back({words[layout_.tokens() + result.logprobs[i].row], chosen_logprob[i],
                        words[layout_.chosen_rank() + i]});
    for (size_t k = 0; k < num_top; ++k) {
      const size_t at = i * static_cast<size_t>(result.num_top) + k;
      position.push_back({words[layout_.top_ids() + at], top_logprob[at], static_cast<int32_t>(k) + 1});
    }
  }
  result.logprobs.clear();
}

}  // namespace

size_t device_sampler_bytes(int32_t max_num_seqs, int32_t num_slots) {
  return static_cast<size_t>(num_slots + 1) * static_cast<size_t>(max_num_seqs) * sizeof(int32_t);
}

size_t device_sampler_staging_bytes(int32_t max_num_seqs, int32_t vocab_size) {
  const auto rows = static_cast<size_t>(max_num_seqs);
  const size_t params = 3 * sizeof(float) + sizeof(int32_t) + 2 * sizeof(int64_t) + sizeof(void*);
  const size_t penalties = 3 * sizeof(float) + 2 * sizeof(int32_t) + sizeof(void*);
  const size_t masks = (static_cast<size_t>(vocab_size) + 31) / 32 * sizeof(int32_t) + sizeof(int32_t);
  const size_t bias = kMaxBiasesPerRow * kBiasBytes;
  return rows * (params + penalties + masks + bias + sizeof(int32_t)) + 1024;
}

std::unique_ptr<Sampler> make_device_sampler(const KernelTable& ops, int32_t vocab_size,
                                             const DeviceSamplerParts& parts) {
  return std::make_unique<DeviceSampler>(ops, vocab_size, parts);
}

}  // namespace quire
