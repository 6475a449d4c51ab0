// Inputs on a device. The host sends what changed and a few numbers for each row; kernels make the rest. A
// sampled token goes from one step to the next without the host.
#include <algorithm>
#include <array>
#include <utility>

#include "device/device_arena.h"
#include "util/check.h"
#include "worker/step_inputs.h"

namespace quire {
namespace {

// Rows with adapters, as one table: how many segments, the segments, the rows, each row's slot.
constexpr int32_t kLoraCounts = 2;
constexpr int32_t kLoraSegmentInts = static_cast<int32_t>(sizeof(LoraSegment) / sizeof(int32_t));

constexpr int32_t lora_rows_begin(const StepInputsConfig& config) {
  return kLoraCounts + kLoraSegmentInts * config.max_lora_segments;
}

constexpr int32_t lora_row_slots_begin(const StepInputsConfig& config) {
  return lora_rows_begin(config) + config.max_num_batched_tokens;
}

constexpr size_t lora_ints(const StepInputsConfig& config) {
  if (config.max_lora_segments == 0) return 0;
  return static_cast<size_t>(lora_row_slots_begin(config)) +
         (config.has_lora_row_slots ? static_cast<size_t>(config.max_num_batched_tokens) : 0);
}

// Tokens and block ids that a step may send without waiting: those of its tokens, of many rows that go on,
// and all of the longest row, which may just have come with a cached prefix.
size_t max_staged_values(const StepInputsConfig& config) {
  return static_cast<size_t>(config.max_num_batched_tokens) + 4096 +
         2 * static_cast<size_t>(config.max_model_len) + lora_ints(config);
}

// More would keep the one block that brings it busy for longer than a copy takes.
constexpr size_t kMaxBrought = size_t{128} << 10;

// Writes that one step stages before it sends them in rounds.
size_t max_staged_writes(const StepInputsConfig& config) {
  return 4 * static_cast<size_t>(config.max_num_seqs);
}

// What a step sends, in columns. Each is pushed by one function, to a ring or to a meter.
struct WriteColumns {
  template <typename Staging>
  void push(Staging& staging, size_t num_writes, size_t num_values) {
    writes = staging.template push<RowWrite>(num_writes);
    values = staging.template push<int32_t>(num_values);
  }
  Staged<RowWrite> writes;
  Staged<int32_t> values;
};
struct RowColumns {
  template <typename Staging>
  void push(Staging& staging, size_t rows, size_t num_logits) {
    query_start_loc = staging.template push<int32_t>(rows + 1);
    num_computed = staging.template push<int32_t>(rows);
    state_indices = staging.template push<int32_t>(rows);
    logits_index = staging.template push<int32_t>(num_logits);
  }
  Staged<int32_t> query_start_loc, num_computed, state_indices, logits_index;
};

class DeviceInputs final : public StepInputs {
 public:
  DeviceInputs(const StepInputsConfig& config, const BatchOps& ops, const DeviceInputsMemory& memory,
               StagingRing& staging)
      : config_(config), ops_(ops), memory_(memory), staging_(staging) {
    QUIRE_CHECK(config.block_sizes.size() <= PrepareInputsArgs::kMaxGroups, config.block_sizes.size(),
                " KV cache groups");
    metadata_.resize(memory_.groups.size());
  }

  void bring_tokens(const LaunchContext& launch, InputBatch& batch,
                    const CachedRequestState& request) override;
  void stage(const LaunchContext& launch, const StepShape& step) override;
  void stage_repeat(const LaunchContext& launch, InputBatch& batch,
                    std::span<const GrownState> grown) override;
  void build(const LaunchContext& launch, int32_t padded_rows, int32_t padded_tokens,
             int32_t uniform_query_len, bool tells_common_prefix) override;
  ModelInput model_input() const override {
    return {{memory_.input_ids, DType::kInt32, padded_tokens_},
            {memory_.positions, DType::kInt32, padded_tokens_},
            {},
            {memory_.num_tokens, DType::kInt32, 1}};
  }
  std::span<const AttentionMetadata> attention_metadata() const override { return metadata_; }
  TensorView logits_index() const override {
    return {rows_.logits_index.device, DType::kInt32, static_cast<int64_t>(num_logits_)};
  }
  LoraBatch lora_batch() const override {
    return {memory_.loras + lora_rows_begin(config_),
            reinterpret_cast<const LoraSegment*>(memory_.loras + kLoraCounts), memory_.loras,
            config_.has_lora_row_slots ? memory_.loras + lora_row_slots_begin(config_) : nullptr};
  }
  int32_t* token_ids(const CachedRequestState& request) const override {
    return memory_.tokens + int64_t{request.state_index} * config_.max_model_len;
  }

 private:
  // Table 0 is the tokens', those of the groups follow, whose rows are state indices; then that of the
  // adapters, which is one row.
  void write_row(const LaunchContext& launch, size_t table, int32_t row, int32_t begin,
                 std::span<const int32_t> values);
  void flush_writes(const LaunchContext& launch);
  // Makes row_writes_ of what was collected.
  void stage_writes();
  // What prepare_inputs is to bring, after a copy when that is too much for it.
  PinnedBytes bring(const LaunchContext& launch);
  void begin_writes();
  void write_new_blocks(const LaunchContext& launch, InputBatch& batch, size_t group, int32_t state_index);
  void stage_changes(const LaunchContext& launch, const StepShape& step);
  void write_loras(const LaunchContext& launch, const LoraRows& loras);

  StepInputsConfig config_;
  const BatchOps& ops_;
  DeviceInputsMemory memory_;
  StagingRing& staging_;
  std::vector<AttentionMetadata> metadata_;

  // The step at hand.
  std::vector<RowWrite> writes_;
  std::vector<int32_t> values_;
  RowWriteArgs row_writes_;
  RowColumns rows_;
  size_t num_logits_ = 0;
  // What was staged: nothing, once it is built. And what was built last.
  struct Shape {
    int32_t num_rows = 0, num_tokens = 0, num_decode_rows = 0, max_query_len = 0, max_seq_len = 0;
    bool has_new_prefixes = false;
    std::array<int32_t, PrepareInputsArgs::kMaxGroups> common_prefix_lens = {};
  };
  Shape shape_, last_shape_;
  int64_t padded_tokens_ = 0;
};

// Seldom: when it is preempted, or sits out a step.
void DeviceInputs::bring_tokens(const LaunchContext& launch, InputBatch& batch,
                                const CachedRequestState& request) {
  const int32_t begin = request.num_on_host;
  const int32_t count = request.num_tokens - begin;
  if (count <= 0) return;
  const DeviceRuntime& runtime = staging_.runtime();
  check_device(runtime,
               runtime.copy(batch.token_ids(request) + begin, token_ids(request) + begin,
                            static_cast<size_t>(count) * sizeof(int32_t), launch.stream),
               "bringing a request's tokens");
  check_device(runtime, runtime.synchronize_stream(launch.stream), "bringing a request's tokens");
}

// Collected here and staged together. A step that changes more than fits is written in several rounds, each
// of which waits for the one before.
void DeviceInputs::write_row(const LaunchContext& launch, size_t table, int32_t row, int32_t begin,
                             std::span<const int32_t> values) {
  const size_t capacity = max_staged_values(config_);
  while (!values.empty()) {
    if (values_.size() >= capacity || writes_.size() >= max_staged_writes(config_)) flush_writes(launch);
    const size_t count = std::min(values.size(), capacity - values_.size());
    writes_.push_back({static_cast<int32_t>(table), row, begin, static_cast<int32_t>(count),
                       static_cast<int32_t>(values_.size())});
    values_.insert(values_.end(), values.begin(), values.begin() + static_cast<std::ptrdiff_t>(count));
    values = values.subspan(count);
    begin += static_cast<int32_t>(count);
  }
}

PinnedBytes DeviceInputs::bring(const LaunchContext& launch) {
  if (staging_.num_unsent() > kMaxBrought) staging_.send(launch.stream);
  return staging_.take_unsent();
}

void DeviceInputs::flush_writes(const LaunchContext& launch) {
  const size_t mark = staging_.mark();
  stage_writes();
  PrepareInputsArgs args;
  args.bytes = bring(launch);
  args.row_writes = row_writes_;
  args.padded_query_start_loc = memory_.query_start_loc;
  ops_.prepare_inputs(launch, args);
  staging_.rewind(mark, launch.stream);
  writes_.clear();
  values_.clear();
}

void DeviceInputs::stage_writes() {
  WriteColumns columns;
  columns.push(staging_, writes_.size(), values_.size());
  std::copy(writes_.begin(), writes_.end(), columns.writes.host);
  std::copy(values_.begin(), values_.end(), columns.values.host);
  row_writes_.writes = columns.writes.device;
  row_writes_.values = columns.values.device;
  row_writes_.num_writes = static_cast<int32_t>(writes_.size());
  row_writes_.num_values = static_cast<int32_t>(values_.size());
}

void DeviceInputs::begin_writes() {
  writes_.clear();
  values_.clear();
  row_writes_ = {};
  row_writes_.tables[0] = memory_.tokens;
  row_writes_.strides[0] = config_.max_model_len;
  for (size_t group = 0; group < memory_.groups.size(); ++group) {
    row_writes_.tables[group + 1] = memory_.groups[group].block_table;
    row_writes_.strides[group + 1] = memory_.groups[group].max_blocks;
  }
  row_writes_.tables[memory_.groups.size() + 1] = memory_.loras;
}

void DeviceInputs::write_new_blocks(const LaunchContext& launch, InputBatch& batch, size_t group,
                                    int32_t state_index) {
  int32_t first = 0;
  const auto ids = batch.block_table(group).take_unsent(state_index, first);
  write_row(launch, group + 1, state_index, first, ids);
}

void DeviceInputs::stage_changes(const LaunchContext& launch, const StepShape& step) {
  InputBatch& batch = *step.batch;
  begin_writes();
  for (int32_t row = 0; row < batch.size(); ++row) {
    CachedRequestState& request = batch.request(row);
    const int32_t end = request.num_computed_tokens + step.num_scheduled[static_cast<size_t>(row)];
    QUIRE_CHECK(end <= request.num_tokens + request.num_drafts, "row ", row, " has ", request.num_tokens,
                " tokens");
    // What precedes the tokens to compute is read by penalties only.
    const int32_t begin = request.sampling.is_penalized
                              ? request.num_sent
                              : std::max(request.num_sent, request.num_computed_tokens);
    const int32_t known_end =
        std::min(end, request.num_on_host);  // the others are there: they were sampled there
    if (begin < known_end) {
      write_row(launch, 0, request.state_index, begin,
                {batch.token_ids(request) + begin, static_cast<size_t>(known_end - begin)});
      request.num_sent = known_end;
    }
    if (request.num_drafts > 0) {
      write_row(launch, 0, request.state_index, request.num_tokens,
                {batch.token_ids(request) + request.num_tokens, static_cast<size_t>(request.num_drafts)});
    }
    for (size_t group = 0; group < memory_.groups.size(); ++group)
      write_new_blocks(launch, batch, group, request.state_index);
  }
  if (!step.loras.segments.empty()) write_loras(launch, step.loras);
  stage_writes();
}

void DeviceInputs::write_loras(const LaunchContext& launch, const LoraRows& loras) {
  const size_t table = memory_.groups.size() + 1;
  const int32_t counts[kLoraCounts] = {loras.num_with_adapter, static_cast<int32_t>(loras.segments.size())};
  write_row(launch, table, 0, 0, counts);
  write_row(
      launch, table, 0, kLoraCounts,
      {reinterpret_cast<const int32_t*>(loras.segments.data()), loras.segments.size() * kLoraSegmentInts});
  write_row(launch, table, 0, lora_rows_begin(config_), loras.rows);
  write_row(launch, table, 0, lora_row_slots_begin(config_), loras.row_slots);
}

void DeviceInputs::stage(const LaunchContext& launch, const StepShape& step) {
  stage_changes(launch, step);
  InputBatch& batch = *step.batch;
  shape_ = {};
  shape_.num_rows = batch.size();
  shape_.num_tokens = step.num_tokens;
  shape_.num_decode_rows = step.num_decode_rows;
  shape_.has_new_prefixes = step.has_new_prefixes;
  std::ranges::copy(step.common_prefix_lens, shape_.common_prefix_lens.begin());
  const auto rows = static_cast<size_t>(shape_.num_rows);
  num_logits_ = step.sampling_rows.size();
  for (int32_t row : step.sampling_rows) num_logits_ += static_cast<size_t>(batch.request(row).num_drafts);
  rows_.push(staging_, rows, num_logits_);
  rows_.query_start_loc.host[0] = 0;
  for (size_t row = 0; row < rows; ++row) {
    const CachedRequestState& request = batch.request(static_cast<int32_t>(row));
    const int32_t count = step.num_scheduled[row];
    rows_.query_start_loc.host[row + 1] = rows_.query_start_loc.host[row] + count;
    rows_.num_computed.host[row] = request.num_computed_tokens;
    rows_.state_indices.host[row] = request.state_index;
    shape_.max_query_len = std::max(shape_.max_query_len, count);
    shape_.max_seq_len = std::max(shape_.max_seq_len, request.num_computed_tokens + count);
  }
  QUIRE_CHECK(rows_.query_start_loc.host[rows] == shape_.num_tokens, rows_.query_start_loc.host[rows],
              " tokens, planned ", shape_.num_tokens);
  int32_t* index = rows_.logits_index.host;
  for (int32_t row : step.sampling_rows) {
    const int32_t end = rows_.query_start_loc.host[static_cast<size_t>(row) + 1];
    for (int32_t i = end - 1 - batch.request(row).num_drafts; i < end; ++i) *index++ = i;
  }
}

// What was staged before lies where it was: several steps have a place.
void DeviceInputs::stage_repeat(const LaunchContext& launch, InputBatch& batch,
                                std::span<const GrownState> grown) {
  begin_writes();
  for (const GrownState& state : grown)
    write_new_blocks(launch, batch, static_cast<size_t>(state.group), state.state_index);
  stage_writes();
  shape_ = last_shape_;
  shape_.has_new_prefixes = false;
  ++shape_.max_seq_len;
  const auto rows = static_cast<size_t>(shape_.num_rows);
  const RowColumns last = rows_;
  rows_.push(staging_, rows, num_logits_);
  std::copy_n(last.query_start_loc.host, rows + 1, rows_.query_start_loc.host);
  std::transform(last.num_computed.host, last.num_computed.host + rows, rows_.num_computed.host,
                 [](int32_t count) { return count + 1; });
  std::copy_n(last.state_indices.host, rows, rows_.state_indices.host);
  std::copy_n(last.logits_index.host, num_logits_, rows_.logits_index.host);
}

void DeviceInputs::build(const LaunchContext& launch, int32_t padded_rows, int32_t padded_tokens,
                         int32_t uniform_query_len, bool tells_common_prefix) {
  padded_tokens_ = padded_tokens;
  PrepareInputsArgs args;
  args.bytes = bring(launch);
  args.row_writes = row_writes_;
  args.query_start_loc = rows_.query_start_loc.device;
  args.num_computed = rows_.num_computed.device;
  args.state_indices = rows_.state_indices.device;
  args.num_rows = shape_.num_rows;
  args.num_tokens = shape_.num_tokens;
  args.padded_rows = padded_rows;
  args.padded_tokens = padded_tokens;
  args.tokens = memory_.tokens;
  args.tokens_stride = config_.max_model_len;
  args.input_ids = memory_.input_ids;
  args.positions = memory_.positions;
  args.padded_query_start_loc = memory_.query_start_loc;
  args.seq_lens = memory_.seq_lens;
  args.padded_state_indices = memory_.state_indices;
  args.unpadded_tokens = memory_.num_tokens;
  args.num_groups = static_cast<int32_t>(memory_.groups.size());
  const bool padded = padded_rows > shape_.num_rows;
  for (size_t g = 0; g < memory_.groups.size(); ++g) {
    const DeviceInputsMemory::Group& group = memory_.groups[g];
    args.groups[g] = {.block_table = group.block_table,
                      .block_table_stride = group.max_blocks,
                      .block_size = group.block_size,
                      .slot_mapping = group.slot_mapping,
                      .common_prefix_len = shape_.common_prefix_lens[g],
                      .common_prefix_len_out = tells_common_prefix ? group.common_prefix_len : nullptr};
    AttentionMetadata& metadata = metadata_[g];
    metadata.block_table = {group.block_table, DType::kInt32, config_.max_num_seqs, group.max_blocks};
    metadata.state_indices = {memory_.state_indices, DType::kInt32, padded_rows};
    metadata.slot_mapping = {group.slot_mapping, DType::kInt64, padded_tokens};
    metadata.query_start_loc = {memory_.query_start_loc, DType::kInt32, int64_t{padded_rows} + 1};
    metadata.seq_lens = {memory_.seq_lens, DType::kInt32, padded_rows};
    metadata.common_prefix_len = {tells_common_prefix ? group.common_prefix_len : nullptr, DType::kInt32, 1};
    metadata.plan = group.attention_plan;
    // Padding follows the rows: without others it counts as decodes, unless a graph's rows have drafts.
    const bool all_decode = shape_.num_decode_rows == shape_.num_rows && uniform_query_len == 1;
    metadata.num_decode_rows = padded && all_decode ? padded_rows : shape_.num_decode_rows;
    metadata.max_query_len = std::max(shape_.max_query_len, uniform_query_len);
    // Padding alone may be captured, and replayed with rows of any length.
    metadata.max_seq_len = shape_.num_rows == 0 ? config_.max_model_len : shape_.max_seq_len;
    metadata.has_new_prefixes = shape_.has_new_prefixes;
  }
  ops_.prepare_inputs(launch, args);
  row_writes_.num_writes = row_writes_.num_values = 0;
  // A step of padding may follow.
  if (shape_.num_rows > 0) last_shape_ = std::exchange(shape_, {});
}

}  // namespace

DeviceInputsMemory::DeviceInputsMemory(const StepInputsConfig& config, DeviceArena& arena) {
  const auto rows = static_cast<size_t>(config.max_num_seqs);
  const auto max_tokens = static_cast<size_t>(config.max_num_batched_tokens);
  tokens = arena.take<int32_t>(rows * static_cast<size_t>(config.max_model_len));
  input_ids = arena.take<int32_t>(max_tokens);
  positions = arena.take<int32_t>(max_tokens);
  query_start_loc = arena.take<int32_t>(rows + 1);
  seq_lens = arena.take<int32_t>(rows);
  state_indices = arena.take<int32_t>(rows);
  num_tokens = arena.take<int32_t>(1);
  loras = config.max_lora_segments > 0 ? arena.take<int32_t>(lora_ints(config)) : nullptr;
  for (int32_t block_size : config.block_sizes) {
    const int32_t max_blocks = (config.max_model_len + block_size - 1) / block_size;
    groups.push_back({.block_table = arena.take<int32_t>(rows * static_cast<size_t>(max_blocks)),
                      .slot_mapping = arena.take<int64_t>(max_tokens),
                      .common_prefix_len = arena.take<int32_t>(1),
                      .attention_plan = arena.take<std::byte>(config.attention_plan_bytes),
                      .block_size = block_size,
                      .max_blocks = max_blocks});
  }
}

size_t lora_inputs_bytes(const StepInputsConfig& config) { return lora_ints(config) * sizeof(int32_t); }

size_t device_inputs_staging_bytes(const StepInputsConfig& config) {
  const auto rows = static_cast<size_t>(config.max_num_seqs);
  StagingMeter meter;
  WriteColumns().push(meter, max_staged_writes(config), max_staged_values(config));
  RowColumns().push(meter, rows, rows * (1 + static_cast<size_t>(config.num_speculative_tokens)));
  return meter.bytes();
}

std::unique_ptr<StepInputs> make_device_inputs(const StepInputsConfig& config, const BatchOps& ops,
                                               const DeviceInputsMemory& memory, StagingRing& staging) {
  return std::make_unique<DeviceInputs>(config, ops, memory, staging);
}

}  // namespace quire
