// Sampling on a device: what it needs travels with the step's inputs, what it leaves its kernels write into
// pinned memory.
#include <algorithm>
#include <cstring>
#include <limits>

#include "sampler/device_bans.h"
#include "sampler/device_logprobs.h"
#include "sampler/sampler.h"
#include "util/check.h"

namespace quire {
namespace {

// Biased tokens that are sent with the rest, on average over the rows. More take a round of their own.
constexpr size_t kMaxBiasesPerRow = 64;

// What a step sends, in columns. Each is pushed by one function, to a ring or to a meter.
struct SamplingColumns {
  template <typename Staging>
  void push(Staging& staging, size_t rows) {
    temperature = staging.template push<float>(rows);
    top_p = staging.template push<float>(rows);
    min_p = staging.template push<float>(rows);
    top_k = staging.template push<int32_t>(rows);
    seed = staging.template push<uint64_t>(rows);
    position = staging.template push<int64_t>(rows);
    token_places = staging.template push<int32_t*>(rows);
  }
  Staged<float> temperature, top_p, min_p;
  Staged<int32_t> top_k;
  Staged<uint64_t> seed;
  Staged<int64_t> position;
  Staged<int32_t*> token_places;
};
struct PenaltyColumns {
  template <typename Staging>
  void push(Staging& staging, size_t rows) {
    presence = staging.template push<float>(rows);
    frequency = staging.template push<float>(rows);
    repetition = staging.template push<float>(rows);
  }
  Staged<float> presence, frequency, repetition;
};
struct BiasColumns {
  static constexpr size_t kBytes = 2 * sizeof(int32_t) + sizeof(float);  // of a bias, before rounding
  template <typename Staging>
  void push(Staging& staging, size_t count) {
    row = staging.template push<int32_t>(count);
    token_id = staging.template push<int32_t>(count);
    bias = staging.template push<float>(count);
  }
  Staged<int32_t> row, token_id;
  Staged<float> bias;
};
struct MaskColumns {
  static size_t words(int32_t vocab_size) { return (static_cast<size_t>(vocab_size) + 31) / 32; }
  template <typename Staging>
  void push(Staging& staging, size_t count, int32_t vocab_size) {
    row = staging.template push<int32_t>(count);
    bitmask = staging.template push<int32_t>(count * words(vocab_size));
  }
  Staged<int32_t> row, bitmask;
};

class DeviceSampler final : public Sampler {
 public:
  DeviceSampler(const KernelTable& ops, const SamplerConfig& config, const DeviceSamplerMemory& memory,
                StagingRing& staging, void* stream)
      : Sampler(ops, config, &staging),
        ops_(ops),
        vocab_size_(config.vocab_size),
        memory_(memory),
        staging_(staging),
        bans_(ops, config.vocab_size, staging),
        logprobs_(ops, config, staging),
        max_num_rows_(static_cast<size_t>(config.max_num_rows)),
        mask_rows_(config),
        pinned_(make_pinned(staging.runtime(),
                            static_cast<size_t>(config.ring_size) * max_num_rows_ * sizeof(int32_t))),
        num_rows_(static_cast<size_t>(config.ring_size)) {
    check_device(staging_.runtime(),
                 staging_.runtime().fill(memory_.row_counters, 0, max_num_rows_ * sizeof(uint32_t), stream),
                 "clearing counters");
  }

  void stage(int32_t ring_index, std::span<const SamplingRow> rows) override;
  bool can_repeat() const override { return step_.can_repeat; }
  void stage_repeat(int32_t ring_index) override;
  bool is_one_kernel() const override { return step_.is_one_kernel; }
  void sample(const LaunchContext& launch, ActivationArena& arena, TensorView logits, int32_t ring_index,
              const GrammarOutput* grammar) override;
  SamplingArgs score(const LaunchContext& launch, TensorView logits, int32_t first_token_id,
                     int32_t ring_index) override;
  std::span<const int32_t> token_ids(int32_t ring_index) const override {
    return {host_token_ids(ring_index), num_rows_[static_cast<size_t>(ring_index)]};
  }
  void take_logprobs(int32_t ring_index, std::vector<RequestLogprobs>& logprobs) override {
    logprobs_.take(ring_index, token_ids(ring_index), logprobs);
  }

 private:
  struct StagedStep {
    SamplingColumns sampling;
    bool all_greedy = true, any_filter = false, any_grammar = false;
    bool is_one_kernel = false, can_repeat = false;
    LogitBiasArgs biases;
    bool late_biases = false;  // too many to be staged with the rest
    bool penalizes = false;
    HistoryColumns history;    // of all rows, when one is penalized or has bad words
    PenaltyColumns penalties;  // of all rows, when one is penalized
  };
  void stage_columns(bool* any_logprobs, bool* any_bans);
  void collect_biases();
  LogitBiasArgs stage_biases(size_t begin, size_t count);
  void apply_late_biases(const LaunchContext& launch, TensorView logits);
  void stage_history();
  void stage_penalties();
  void apply_masks(const LaunchContext& launch, TensorView logits, const GrammarOutput& grammar);
  SamplingArgs sampling_args(TensorView logits, int32_t ring_index) const;

  // Token ids are on the device, because kernels read them again.
  int32_t* device_token_ids(int32_t ring_index) const {
    return memory_.token_ids + static_cast<size_t>(ring_index) * max_num_rows_;
  }
  int32_t* host_token_ids(int32_t ring_index) const {
    return static_cast<int32_t*>(pinned_.get()) + static_cast<size_t>(ring_index) * max_num_rows_;
  }

  const KernelTable& ops_;
  int32_t vocab_size_;
  DeviceSamplerMemory memory_;
  StagingRing& staging_;
  DeviceBans bans_;
  DeviceLogprobs logprobs_;
  size_t max_num_rows_;
  MaskRows mask_rows_;
  PinnedMemory pinned_;           // [ring_size, max_num_rows] token ids
  std::vector<size_t> num_rows_;  // by ring index
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

void DeviceSampler::stage(int32_t ring_index, std::span<const SamplingRow> rows) {
  rows_ = rows;
  step_ = {};
  const size_t n = num_rows_[static_cast<size_t>(ring_index)] = rows.size();
  bool any_logprobs = false, any_bans = false;
  if (n > 0) stage_columns(&any_logprobs, &any_bans);
  logprobs_.stage(ring_index, any_logprobs ? rows : std::span<const SamplingRow>());
  bans_.stage(any_bans ? rows : std::span<const SamplingRow>(), max_num_rows_);
  if (step_.penalizes || bans_.needs_history()) stage_history();
  if (step_.penalizes) stage_penalties();
  collect_biases();
  step_.late_biases = biases_.size() > kMaxBiasesPerRow * max_num_rows_;
  if (!biases_.empty() && !step_.late_biases) step_.biases = stage_biases(0, biases_.size());
  step_.can_repeat =
      n > 0 && biases_.empty() && !any_logprobs && !any_bans && !step_.any_grammar && !step_.penalizes;
  step_.is_one_kernel = step_.can_repeat && !step_.any_filter;
}

// What was staged before lies where it was: several steps have a place.
void DeviceSampler::stage_repeat(int32_t ring_index) {
  const size_t n = num_rows_[static_cast<size_t>(ring_index)] = rows_.size();
  const SamplingColumns last = step_.sampling;
  SamplingColumns& columns = step_.sampling;
  columns.push(staging_, n);
  const auto same = [n](const auto& to, const auto& from) { std::copy_n(from.host, n, to.host); };
  same(columns.temperature, last.temperature);
  same(columns.top_k, last.top_k);
  same(columns.top_p, last.top_p);
  same(columns.min_p, last.min_p);
  same(columns.seed, last.seed);
  const auto next = [n](const auto& to, const auto& from) {
    std::transform(from.host, from.host + n, to.host, [](auto value) { return value + 1; });
  };
  next(columns.position, last.position);
  next(columns.token_places, last.token_places);
  logprobs_.stage(ring_index, {});
}

// What every row has.
void DeviceSampler::stage_columns(bool* any_logprobs, bool* any_bans) {
  const size_t n = rows_.size();
  SamplingColumns& columns = step_.sampling;
  columns.push(staging_, n);
  for (size_t i = 0; i < n; ++i) {
    const RowSampling& sampling = rows_[i].sampling;
    columns.temperature.host[i] = sampling.temperature;
    columns.top_k.host[i] = sampling.top_k;
    columns.top_p.host[i] = sampling.top_p;
    columns.min_p.host[i] = sampling.min_p;
    columns.seed.host[i] = sampling.seed;
    columns.position.host[i] = rows_[i].num_tokens;
    columns.token_places.host[i] = rows_[i].token_place;
    step_.all_greedy &= sampling.temperature == 0;
    step_.any_filter |= sampling.is_filtered();
    step_.any_grammar |= sampling.has_grammar;
    step_.penalizes |= sampling.is_penalized;
    *any_logprobs |= sampling.wants_logprobs;
    *any_bans |= rows_[i].bans != nullptr;
  }
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
  BiasColumns columns;
  columns.push(staging_, count);
  for (size_t i = 0; i < count; ++i) {
    columns.row.host[i] = biases_[begin + i].row;
    columns.token_id.host[i] = biases_[begin + i].token;
    columns.bias.host[i] = biases_[begin + i].value;
  }
  return {{}, columns.row.device, columns.token_id.device, columns.bias.device, static_cast<int32_t>(count)};
}

// Applies the biases that were not staged with the rest, a roomful at a time.
void DeviceSampler::apply_late_biases(const LaunchContext& launch, TensorView logits) {
  const size_t mark = staging_.mark();
  for (size_t begin = 0; begin < biases_.size();) {
    const size_t room = staging_.available() / BiasColumns::kBytes;
    QUIRE_CHECK(room > 4);
    const size_t count = std::min(room - 4, biases_.size() - begin);
    LogitBiasArgs args = stage_biases(begin, count);
    args.logits = logits;
    staging_.send(launch.stream);
    ops_.apply_logit_bias(launch, args);
    staging_.rewind(mark, launch.stream);
    begin += count;
  }
}

void DeviceSampler::stage_history() {
  HistoryColumns& columns = step_.history;
  columns.push(staging_, rows_.size());
  for (size_t i = 0; i < rows_.size(); ++i) {
    columns.token_ids.host[i] = rows_[i].token_ids;
    columns.num_prompt_tokens.host[i] = rows_[i].num_prompt_tokens;
    columns.num_tokens.host[i] = rows_[i].num_tokens;
  }
}

void DeviceSampler::stage_penalties() {
  const size_t n = rows_.size();
  PenaltyColumns& columns = step_.penalties;
  columns.push(staging_, n);
  for (size_t i = 0; i < n; ++i) {
    columns.presence.host[i] = rows_[i].params->presence_penalty;
    columns.frequency.host[i] = rows_[i].params->frequency_penalty;
    columns.repetition.host[i] = rows_[i].params->repetition_penalty;
  }
}

void DeviceSampler::apply_masks(const LaunchContext& launch, TensorView logits,
                                const GrammarOutput& grammar) {
  const std::span<const int32_t> rows = mask_rows_.find(rows_, grammar, vocab_size_);
  const size_t words = MaskColumns::words(vocab_size_), n = rows.size();
  MaskColumns columns;
  columns.push(staging_, n, vocab_size_);
  std::memcpy(columns.bitmask.host, grammar.bitmask.data(), n * words * sizeof(int32_t));
  std::copy(rows.begin(), rows.end(), columns.row.host);
  staging_.send(launch.stream);
  ops_.apply_bitmask(
      launch, logits, {columns.row.device, DType::kInt32, static_cast<int64_t>(n)},
      {columns.bitmask.device, DType::kInt32, static_cast<int64_t>(n), static_cast<int64_t>(words)});
}

void DeviceSampler::sample(const LaunchContext& launch, ActivationArena& arena, TensorView logits,
                           int32_t ring_index, const GrammarOutput* grammar) {
  const size_t mark = arena.mark();
  logprobs_.copy_logits(launch, arena, ring_index, logits);
  call_logits_hook(logits);
  if (step_.late_biases) {
    apply_late_biases(launch, logits);
  } else if (step_.biases.count > 0) {
    step_.biases.logits = logits;
    ops_.apply_logit_bias(launch, step_.biases);
  }
  StagingMeter mask_room;
  if (grammar != nullptr) MaskColumns().push(mask_room, grammar->result_indices.size(), vocab_size_);
  bans_.apply(launch, logits, step_.history, mask_room.bytes());
  if (grammar != nullptr && !grammar->result_indices.empty()) apply_masks(launch, logits, *grammar);
  if (step_.penalizes) {
    const HistoryColumns& history = step_.history;
    const PenaltyColumns& penalties = step_.penalties;
    ops_.apply_penalties(launch, {logits, history.token_ids.device, history.num_prompt_tokens.device,
                                  history.num_tokens.device, penalties.presence.device,
                                  penalties.frequency.device, penalties.repetition.device});
  }
  ops_.sample(launch, sampling_args(logits, ring_index));
  logprobs_.compute(launch, arena, ring_index, device_token_ids(ring_index),
                    static_cast<int64_t>(rows_.size()));
  arena.release(mark);
}

SamplingArgs DeviceSampler::score(const LaunchContext& launch, TensorView logits, int32_t first_token_id,
                                  int32_t ring_index) {
  QUIRE_CHECK(step_.is_one_kernel);
  SamplingArgs args = sampling_args(logits, ring_index);
  args.best = memory_.best;
  args.first_token_id = first_token_id;
  ops_.sample(launch, args);
  return args;
}

SamplingArgs DeviceSampler::sampling_args(TensorView logits, int32_t ring_index) const {
  SamplingArgs args;
  args.logits = logits;
  args.temperature = step_.sampling.temperature.device;
  args.top_k = step_.sampling.top_k.device;
  args.top_p = step_.sampling.top_p.device;
  args.min_p = step_.sampling.min_p.device;
  args.seed = step_.sampling.seed.device;
  args.position = step_.sampling.position.device;
  args.sampled_token_ids = device_token_ids(ring_index);
  args.host_token_ids = host_token_ids(ring_index);
  args.token_places = step_.sampling.token_places.device;
  args.row_counters = memory_.row_counters;
  args.all_greedy = step_.all_greedy;
  args.any_filter = step_.any_filter;
  return args;
}

}  // namespace

DeviceSamplerMemory::DeviceSamplerMemory(const SamplerConfig& config, DeviceArena& arena) {
  const auto rows = static_cast<size_t>(config.max_num_rows);
  token_ids = arena.take<int32_t>(static_cast<size_t>(config.ring_size) * rows);
  best = arena.take<uint64_t>(rows);
  row_counters = arena.take<uint32_t>(rows);
}

size_t device_sampler_staging_bytes(const SamplerConfig& config) {
  const auto rows = static_cast<size_t>(config.max_num_rows);
  StagingMeter meter;
  SamplingColumns().push(meter, rows);
  DeviceLogprobs::push_most(meter, rows);
  HistoryColumns().push(meter, rows);
  PenaltyColumns().push(meter, rows);
  DeviceBans::push_most(meter, rows);
  PromptLogprobs::push_most(meter, config);
  BiasColumns().push(meter, kMaxBiasesPerRow * rows);
  MaskColumns().push(meter, rows, config.vocab_size);
  return meter.bytes();
}

std::unique_ptr<Sampler> make_device_sampler(const KernelTable& ops, const SamplerConfig& config,
                                             const DeviceSamplerMemory& memory, StagingRing& staging,
                                             void* stream) {
  return std::make_unique<DeviceSampler>(ops, config, memory, staging, stream);
}

}  // namespace quire
