// Inputs where the kernels' memory is the host's: the batch is read in place.
#include <algorithm>
#include <numeric>

#include "util/check.h"
#include "worker/step_inputs.h"

namespace quire {
namespace {

class HostInputs final : public StepInputs {
 public:
  explicit HostInputs(const StepInputsConfig& config) {
    // Room for the largest step, so that none allocates.
    const auto max_seqs = static_cast<size_t>(config.max_num_seqs);
    const auto max_tokens = static_cast<size_t>(config.max_num_batched_tokens);
    seq_lens_.reserve(max_seqs);
    logits_index_.reserve(max_seqs * (1 + static_cast<size_t>(config.num_speculative_tokens)));
    query_start_loc_.reserve(max_seqs + 1);
    for (auto* per_token : {&input_ids_, &positions_}) per_token->reserve(max_tokens);
    slot_mappings_.resize(config.block_sizes.size());
    for (auto& slots : slot_mappings_) slots.reserve(max_tokens);
    metadata_.resize(config.block_sizes.size());
  }

  void bring_tokens(const LaunchContext&, InputBatch&, const CachedRequestState&) override {}
  void stage(const LaunchContext& launch, const StepShape& step) override;
  void build(const LaunchContext&, int32_t padded_rows, int32_t padded_tokens, int32_t, bool) override {
    QUIRE_CHECK(padded_rows == batch_->size() && padded_tokens == static_cast<int32_t>(input_ids_.size()),
                "nothing is padded on the host");
  }
  ModelInput model_input() const override {
    const auto num_tokens = static_cast<int64_t>(input_ids_.size());
    // Views have no const form; nobody writes.
    return {{const_cast<int32_t*>(input_ids_.data()), DType::kInt32, num_tokens},
            {const_cast<int32_t*>(positions_.data()), DType::kInt32, num_tokens},
            {},
            {const_cast<int32_t*>(&num_tokens_), DType::kInt32, 1}};
  }
  std::span<const AttentionMetadata> attention_metadata() const override { return metadata_; }
  TensorView logits_index() const override {
    return {const_cast<int32_t*>(logits_index_.data()), DType::kInt32,
            static_cast<int64_t>(logits_index_.size())};
  }
  LoraBatch lora_batch() const override {
    return {loras_.rows.data(), loras_.segments.data(), num_lora_segments_, loras_.row_slots.data()};
  }
  int32_t* token_ids(const CachedRequestState& request) const override { return batch_->token_ids(request); }

 private:
  InputBatch* batch_ = nullptr;
  int32_t num_tokens_ = 0;
  LoraRows loras_;
  int32_t num_lora_segments_[2] = {};
  std::vector<int32_t> input_ids_, positions_, query_start_loc_, seq_lens_, logits_index_;
  std::vector<std::vector<int64_t>> slot_mappings_;  // per group
  std::vector<AttentionMetadata> metadata_;
};

void HostInputs::stage(const LaunchContext&, const StepShape& step) {
  batch_ = step.batch;
  InputBatch& batch = *step.batch;
  const auto num_rows = static_cast<size_t>(batch.size());
  const auto num_tokens = static_cast<size_t>(step.num_tokens);
  num_tokens_ = step.num_tokens;
  loras_ = step.loras;
  num_lora_segments_[0] = loras_.num_with_adapter;
  num_lora_segments_[1] = static_cast<int32_t>(loras_.segments.size());
  input_ids_.resize(num_tokens);
  positions_.resize(num_tokens);
  query_start_loc_.resize(num_rows + 1);
  seq_lens_.resize(num_rows);
  for (auto& slots : slot_mappings_) slots.resize(num_tokens);

  query_start_loc_[0] = 0;
  int32_t max_query_len = 0;
  int32_t max_seq_len = 0;
  for (int32_t row = 0; row < batch.size(); ++row) {
    const int32_t count = step.num_scheduled[static_cast<size_t>(row)];
    const CachedRequestState& request = batch.request(row);
    const int32_t begin = request.num_computed_tokens;
    const int32_t first = query_start_loc_[static_cast<size_t>(row)];
    QUIRE_CHECK(begin + count <= request.num_tokens + request.num_drafts, "row ", row, " has ",
                request.num_tokens, " tokens");
    QUIRE_CHECK(first + count <= step.num_tokens, "more tokens than planned");
    std::copy_n(batch.token_ids(request) + begin, count, input_ids_.data() + first);
    std::iota(positions_.data() + first, positions_.data() + first + count, begin);
    for (size_t group = 0; group < slot_mappings_.size(); ++group) {
      batch.block_table(group).fill_slots(request.state_index, begin, count,
                                          slot_mappings_[group].data() + first);
    }
    query_start_loc_[static_cast<size_t>(row) + 1] = first + count;
    seq_lens_[static_cast<size_t>(row)] = begin + count;
    max_query_len = std::max(max_query_len, count);
    max_seq_len = std::max(max_seq_len, begin + count);
  }
  QUIRE_CHECK(query_start_loc_.back() == step.num_tokens, "fewer tokens than planned");

  const auto rows = static_cast<int64_t>(num_rows);
  for (size_t group = 0; group < metadata_.size(); ++group) {
    AttentionMetadata& metadata = metadata_[group];
    metadata.block_table = batch.block_table(group).view();
    // Views have no const form; nobody writes.
    metadata.state_indices = {const_cast<int32_t*>(batch.state_indices().data()), DType::kInt32, rows};
    metadata.slot_mapping = {slot_mappings_[group].data(), DType::kInt64, static_cast<int64_t>(num_tokens)};
    metadata.query_start_loc = {query_start_loc_.data(), DType::kInt32, rows + 1};
    metadata.seq_lens = {seq_lens_.data(), DType::kInt32, rows};
    metadata.num_decode_rows = step.num_decode_rows;
    metadata.max_query_len = max_query_len;
    metadata.max_seq_len = max_seq_len;
    metadata.has_new_prefixes = step.has_new_prefixes;
  }
  logits_index_.clear();
  for (int32_t row : step.sampling_rows) {
    const int32_t end = query_start_loc_[static_cast<size_t>(row) + 1];
    for (int32_t i = end - 1 - batch.request(row).num_drafts; i < end; ++i) logits_index_.push_back(i);
  }
}

}  // namespace

std::unique_ptr<StepInputs> make_host_inputs(const StepInputsConfig& config) {
  return std::make_unique<HostInputs>(config);
}

}  // namespace quire
