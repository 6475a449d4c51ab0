// The memory that a worker's steps take, how much and where: all of it is there before the first.
#include <algorithm>
#include <utility>

#include "models/dry_run.h"
#include "worker/model_runner.h"

namespace quire {

size_t ModelRunner::activation_bytes() const {
  const int64_t rows = config_.max_num_logits();
  const size_t logits = ActivationArena::bytes(DType::kFloat32, rows * model_.vocab_size());
  const size_t forward = dry_run_bytes(model_, ops_, communicator_, config_.max_num_batched_tokens, rows);
  return logits + std::max(forward, sampler_scratch_bytes(sampler_config(), rows));
}

SamplerConfig ModelRunner::sampler_config() const {
  return {model_.vocab_size(), config_.max_num_logits(), static_cast<int32_t>(records_.size()),
          config_.max_num_batched_tokens};
}

StepBuffersConfig ModelRunner::step_buffers_config(std::span<const int32_t> block_sizes) const {
  StepBuffersConfig config;
  config.inputs.max_num_seqs = config_.max_num_seqs;
  config.inputs.max_num_batched_tokens = config_.max_num_batched_tokens;
  config.inputs.max_model_len = config_.max_model_len;
  config.inputs.block_sizes.assign(block_sizes.begin(), block_sizes.end());
  if (ops_.attention_plan_bytes != nullptr) {
    config.inputs.attention_plan_bytes =
        ops_.attention_plan_bytes(config_.max_num_seqs, config_.max_num_batched_tokens);
  }
  if (config_.max_loras > 0) {
    config.inputs.max_lora_segments =
        max_lora_segments(ops_, config_.max_loras, config_.max_num_batched_tokens);
    config.inputs.has_lora_row_slots = config_.have_lora_experts && !config_.expert_loads.empty();
  }
  config.inputs.num_speculative_tokens = config_.speculation.num_speculative_tokens;
  config.sampler = sampler_config();
  return config;
}

size_t ModelRunner::batch_bytes(std::span<const int32_t> block_sizes) const {
  return platform_.step_buffers_bytes(step_buffers_config(block_sizes)) + expert_counters_.bytes();
}

void ModelRunner::set_kv_cache(const KVCacheConfig& config, std::vector<KVCacheView> layers,
                               DeviceArena& arena) {
  kv_caches_ = std::move(layers);
  kv_cache_groups_.resize(kv_caches_.size());
  std::vector<int32_t> block_sizes;
  for (size_t group = 0; group < config.groups.size(); ++group) {
    for (int32_t layer : config.groups[group].layers) {
      kv_cache_groups_[static_cast<size_t>(layer)] = static_cast<int32_t>(group);
    }
    block_sizes.push_back(config.groups[group].spec.block_size);
    planning_layers_.push_back(config.groups[group].layers.front());
    may_cascade_.push_back(config_.use_cascade && ops_.use_cascade_attention != nullptr &&
                           config.groups[group].spec.kind == KVCacheKind::kFullAttention);
  }
  batch_ = std::make_unique<InputBatch>(config_.max_num_seqs, config_.max_model_len, block_sizes);
  const size_t activations = activation_bytes();
  arena_ = std::make_unique<ActivationArena>(arena.allocate(activations), activations);
  all_logits_ = arena_->take(DType::kFloat32, config_.max_num_logits(), model_.vocab_size());
  if (logits_processors_ && platform_.runtime() == nullptr) move_logits();
  activations_begin_ = arena_->mark();
  buffers_ = platform_.make_step_buffers(step_buffers_config(block_sizes), arena);
  expert_counters_.place(arena, platform_);
  if (logits_processors_)
    buffers_->sampler().set_logits_hook([this](TensorView& logits) { change_logits(logits); });

  // Room for the largest step, so that none allocates.
  const auto max_seqs = static_cast<size_t>(config_.max_num_seqs);
  scheduled_.reserve(max_seqs);
  scheduled_before_.reserve(max_seqs);
  num_scheduled_.resize(max_seqs);
  common_prefix_lens_.resize(may_cascade_.size());
  result_index_.resize(max_seqs);
  sampling_rows_.reserve(max_seqs * (1 + proposed_.size()));
  sampled_rows_.reserve(max_seqs);
  for (StepRecord& record : records_) {
    record.entries.reserve(max_seqs);
    record.draft_token_ids.reserve(max_seqs * proposed_.size());
  }
}

}  // namespace quire
