#include "worker/model_runner.h"

#include <algorithm>

#include "util/check.h"

namespace quire {

ModelRunner::ModelRunner(const ModelRunnerConfig& config, const Model& model, const KernelTable& ops,
                         const LaunchContext& launch, Communicator& communicator)
    : config_(config),
      model_(model),
      ops_(ops),
      launch_(launch),
      communicator_(communicator),
      sampler_(ops, model.vocab_size()) {}

size_t ModelRunner::activation_bytes() const {
  const int64_t rows = std::min(config_.max_num_seqs, config_.max_num_batched_tokens);
  return model_.activation_bytes(config_.max_num_batched_tokens, rows) +
         ActivationArena::bytes(DType::kFloat32, rows * model_.vocab_size()) +  // logits
         ActivationArena::bytes(DType::kFloat32,
                                rows * model_.hidden_size()) +  // the hidden states they come from
         sampler_.logprobs_bytes(rows);
}

void ModelRunner::set_kv_cache(const KVCacheConfig& config, std::vector<KVCacheView> layers) {
  kv_caches_ = std::move(layers);
  kv_cache_groups_.resize(kv_caches_.size());
  std::vector<int32_t> block_sizes;
  for (size_t group = 0; group < config.groups.size(); ++group) {
    for (int32_t layer : config.groups[group].layers) {
      kv_cache_groups_[static_cast<size_t>(layer)] = static_cast<int32_t>(group);
    }
    block_sizes.push_back(config.groups[group].spec.block_size);
  }
  batch_ = std::make_unique<InputBatch>(config_.max_num_seqs, config_.max_model_len, block_sizes);
  arena_ = std::make_unique<ActivationArena>(activation_bytes());
  slot_mappings_.resize(config.groups.size());
  attention_metadata_.resize(config.groups.size());
}

void ModelRunner::update_states(const SchedulerOutput& plan) {
  for (RequestId id : plan.finished_req_ids) {
    const auto found = requests_.find(id);
    if (found == requests_.end()) continue;
    if (found->second.row >= 0) batch_->remove(found->second);
    requests_.erase(found);
  }
  // Rows that this step does not compute leave the batch; their state is kept.
  num_scheduled_.assign(static_cast<size_t>(config_.max_num_seqs), 0);
  for (const ScheduledTokens& scheduled : plan.num_scheduled_tokens) {
    const auto found = requests_.find(scheduled.request_id);
    if (found != requests_.end() && found->second.row >= 0)
      num_scheduled_[static_cast<size_t>(found->second.row)] = 1;
  }
  for (const CachedRequestData& cached : plan.scheduled_cached_reqs) {
    if (!cached.resumed_from_preemption) continue;
    CachedRequestState& request = requests_.at(cached.request_id);
    if (request.row >= 0) batch_->remove(request);
    request.block_ids = cached.new_block_ids;
  }
  for (int32_t row = batch_->size() - 1; row >= 0; --row) {
    if (batch_->has_request(row) && num_scheduled_[static_cast<size_t>(row)] == 0) {
      batch_->remove(batch_->request(row));
    }
  }
  batch_->condense();

  for (const CachedRequestData& cached : plan.scheduled_cached_reqs) {
    CachedRequestState& request = requests_.at(cached.request_id);
    request.num_computed_tokens = cached.num_computed_tokens;
    if (!cached.resumed_from_preemption) {
      for (size_t group = 0; group < cached.new_block_ids.size(); ++group) {
        const auto& ids = cached.new_block_ids[group];
        if (request.row >= 0) {
          batch_->block_table(group).append(request.row, ids);
        } else {
          request.block_ids[group].insert(request.block_ids[group].end(), ids.begin(), ids.end());
        }
      }
    }
    if (request.row < 0) batch_->add(request);
  }
  for (const NewRequestData& data : plan.scheduled_new_reqs) {
    const auto [entry, inserted] = requests_.try_emplace(data.request_id);
    QUIRE_CHECK(inserted, "request ", data.request_id, " is not new");
    CachedRequestState& request = entry->second;
    request.request_id = data.request_id;
    request.sampling_params = data.sampling_params;
    request.eos_token_ids = data.eos_token_ids;
    request.token_ids = data.prompt_token_ids;
    request.token_ids.insert(request.token_ids.end(), data.output_token_ids.begin(),
                             data.output_token_ids.end());
    request.num_prompt_tokens = static_cast<int32_t>(data.prompt_token_ids.size());
    request.num_computed_tokens = data.num_computed_tokens;
    request.block_ids = data.block_ids;
    batch_->add(request);
  }
}

void ModelRunner::prepare_inputs(const SchedulerOutput& plan) {
  const auto num_rows = static_cast<size_t>(batch_->size());
  QUIRE_CHECK(num_rows == plan.num_scheduled_tokens.size(), num_rows, " rows for ",
              plan.num_scheduled_tokens.size());
  row_of_planned_.clear();
  sampled_rows_.clear();
  for (const ScheduledTokens& scheduled : plan.num_scheduled_tokens) {
    const CachedRequestState& request = requests_.at(scheduled.request_id);
    QUIRE_CHECK(scheduled.spec_token_ids.empty(), "drafts need a verifier");
    num_scheduled_[static_cast<size_t>(request.row)] = scheduled.num_tokens;
    row_of_planned_.push_back(request.row);
    if (scheduled.samples) sampled_rows_.push_back(request.row);
  }
  const auto num_tokens = static_cast<size_t>(plan.total_num_scheduled_tokens);
  input_ids_.resize(num_tokens);
  positions_.resize(num_tokens);
  query_start_loc_.resize(num_rows + 1);
  seq_lens_.resize(num_rows);
  for (auto& slots : slot_mappings_) slots.resize(num_tokens);

  query_start_loc_[0] = 0;
  int32_t max_query_len = 0;
  int32_t max_seq_len = 0;
  for (int32_t row = 0; row < batch_->size(); ++row) {
    const int32_t count = num_scheduled_[static_cast<size_t>(row)];
    const int32_t begin = batch_->request(row).num_computed_tokens;
    const int32_t first = query_start_loc_[static_cast<size_t>(row)];
    QUIRE_CHECK(begin + count <= batch_->num_tokens(row), "row ", row, " has ", batch_->num_tokens(row),
                " tokens");
    for (int32_t i = 0; i < count; ++i) {
      const auto t = static_cast<size_t>(first + i);
      input_ids_[t] = batch_->token_ids(row)[begin + i];
      positions_[t] = begin + i;
      for (size_t group = 0; group < slot_mappings_.size(); ++group) {
        slot_mappings_[group][t] = batch_->block_table(group).slot(row, begin + i);
      }
    }
    query_start_loc_[static_cast<size_t>(row) + 1] = first + count;
    seq_lens_[static_cast<size_t>(row)] = begin + count;
    max_query_len = std::max(max_query_len, count);
    max_seq_len = std::max(max_seq_len, begin + count);
  }
  logits_index_.clear();
  for (int32_t row : sampled_rows_)
    logits_index_.push_back(query_start_loc_[static_cast<size_t>(row) + 1] - 1);

  const auto rows = static_cast<int64_t>(num_rows);
  for (size_t group = 0; group < attention_metadata_.size(); ++group) {
    AttentionMetadata& metadata = attention_metadata_[group];
    metadata.block_table = batch_->block_table(group).view(batch_->size());
    metadata.slot_mapping = {slot_mappings_[group].data(), DType::kInt64, static_cast<int64_t>(num_tokens)};
    metadata.query_start_loc = {query_start_loc_.data(), DType::kInt32, rows + 1};
    metadata.seq_lens = {seq_lens_.data(), DType::kInt32, rows};
    metadata.max_query_len = max_query_len;
    metadata.max_seq_len = max_seq_len;
  }
}

void ModelRunner::execute_model(const SchedulerOutput& plan) {
  update_states(plan);
  prepare_inputs(plan);
  arena_->release(0);
  const ForwardContext ctx{ops_,       launch_,          communicator_,      *arena_,
                           kv_caches_, kv_cache_groups_, attention_metadata_};
  const auto num_tokens = static_cast<int64_t>(input_ids_.size());
  const auto num_logits = static_cast<int64_t>(logits_index_.size());
  if (num_logits > 0) logits_ = arena_->take(DType::kFloat32, num_logits, model_.vocab_size());
  const size_t mark = arena_->mark();
  const TensorView hidden = model_.forward(
      ctx, {{input_ids_.data(), DType::kInt32, num_tokens}, {positions_.data(), DType::kInt32, num_tokens}});
  if (num_logits > 0) {
    const TensorView last = arena_->take(hidden.dtype, num_logits, model_.hidden_size());
    ops_.gather_rows(launch_, last, hidden, {logits_index_.data(), DType::kInt32, num_logits});
    model_.compute_logits(ctx, logits_, last);
  }
  arena_->release(mark);
}

void ModelRunner::sample_tokens(const SchedulerOutput& plan, const GrammarOutput* grammar,
                                ModelRunnerOutput& output) {
  QUIRE_CHECK(!grammar || grammar->request_ids.empty(), "no request has a grammar");
  output.step_id = plan.step_id;
  output.error.clear();
  output.sampled.resize(plan.num_scheduled_tokens.size());
  result_of_row_.resize(static_cast<size_t>(config_.max_num_seqs));
  for (size_t i = 0; i < output.sampled.size(); ++i) {
    SampledTokens& sampled = output.sampled[i];
    sampled.request_id = plan.num_scheduled_tokens[i].request_id;
    sampled.token_ids.clear();
    sampled.logprobs.clear();
    sampled.error.clear();
    result_of_row_[static_cast<size_t>(row_of_planned_[i])] = &sampled;
  }
  if (sampled_rows_.empty()) return;
  sampling_rows_.clear();
  sampling_results_.clear();
  for (int32_t row : sampled_rows_) {
    const CachedRequestState& request = batch_->request(row);
    sampling_rows_.push_back({&request.sampling_params, &request.eos_token_ids, batch_->token_ids(row),
                              request.num_prompt_tokens, batch_->num_tokens(row)});
    sampling_results_.push_back(result_of_row_[static_cast<size_t>(row)]);
  }
  sampler_.sample(launch_, *arena_, logits_, sampling_rows_, sampling_results_);
  for (size_t i = 0; i < sampled_rows_.size(); ++i) {
    const int32_t row = sampled_rows_[i];
    // The last token allowed has no place in the row and needs none: nothing follows it.
    if (batch_->num_tokens(row) < config_.max_model_len) {
      batch_->append_token(row, sampling_results_[i]->token_ids.back());
    }
  }
}

}  // namespace quire
