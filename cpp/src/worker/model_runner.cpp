#include "worker/model_runner.h"

#include <algorithm>
#include <numeric>

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
  attention_metadata_.resize(config.groups.size());

  // As large as any step makes them.
  const auto max_seqs = static_cast<size_t>(config_.max_num_seqs);
  const auto max_tokens = static_cast<size_t>(config_.max_num_batched_tokens);
  planned_.reserve(max_seqs);
  num_scheduled_.resize(max_seqs);
  sampling_rows_.reserve(max_seqs);
  for (auto* per_row : {&row_order_, &seq_lens_, &logits_index_}) per_row->reserve(max_seqs);
  query_start_loc_.reserve(max_seqs + 1);
  for (auto* per_token : {&input_ids_, &positions_}) per_token->reserve(max_tokens);
  slot_mappings_.resize(config.groups.size());
  for (auto& slots : slot_mappings_) slots.reserve(max_tokens);
}

CachedRequestState& ModelRunner::add_request(const NewRequestData& data) {
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
  request.block_ids.resize(batch_->num_groups());
  return request;
}

void ModelRunner::forget_request(RequestId id) {
  const auto found = requests_.find(id);
  if (found == requests_.end()) return;
  if (found->second.row >= 0) batch_->remove(found->second);
  requests_.erase(found);
}

void ModelRunner::update_requests(const SchedulerOutput& plan) {
  for (RequestId id : plan.finished_req_ids) forget_request(id);
  planned_.clear();
  auto new_request = plan.scheduled_new_reqs.begin();
  for (const ScheduledRequest& scheduled : plan.scheduled_reqs) {
    QUIRE_CHECK(scheduled.num_spec_tokens == 0, "drafts need a verifier");
    if (scheduled.is_new) {
      QUIRE_CHECK(
          new_request != plan.scheduled_new_reqs.end() && new_request->request_id == scheduled.request_id,
          "request ", scheduled.request_id, " is not described");
      planned_.push_back(&add_request(*new_request++));
    } else {
      const auto found = requests_.find(scheduled.request_id);
      QUIRE_CHECK(found != requests_.end(), "request ", scheduled.request_id, " is not known");
      planned_.push_back(&found->second);
    }
    planned_.back()->num_computed_tokens = scheduled.num_computed_tokens;
  }
}

void ModelRunner::update_batch(const SchedulerOutput& plan) {
  const size_t num_groups = batch_->num_groups();
  QUIRE_CHECK(
      plan.new_block_ids.num_rows() == planned_.size() && plan.new_block_ids.num_groups() == num_groups,
      plan.new_block_ids.num_rows(), " rows of ", plan.new_block_ids.num_groups(), " groups");
  // Rows that this step does not compute leave the batch; their state is kept.
  std::fill(num_scheduled_.begin(), num_scheduled_.end(), 0);
  for (const CachedRequestState* request : planned_) {
    if (request->row >= 0) num_scheduled_[static_cast<size_t>(request->row)] = 1;
  }
  for (int32_t row = batch_->size() - 1; row >= 0; --row) {
    if (batch_->has_request(row) && num_scheduled_[static_cast<size_t>(row)] == 0) {
      batch_->remove(batch_->request(row));
    }
  }
  batch_->condense();

  for (size_t i = 0; i < planned_.size(); ++i) {
    CachedRequestState& request = *planned_[i];
    const bool replaces = plan.scheduled_reqs[i].resumed_from_preemption != 0;
    for (size_t group = 0; group < num_groups; ++group) {
      const std::span<const BlockId> ids = plan.new_block_ids.at(i, group);
      if (request.row < 0) {
        auto& held = request.block_ids[group];
        if (replaces) held.clear();
        held.insert(held.end(), ids.begin(), ids.end());
      } else if (replaces) {
        batch_->block_table(group).set_row(request.row, ids);
      } else {
        batch_->block_table(group).append(request.row, ids);
      }
    }
    if (request.row < 0) batch_->add(request);
  }
  QUIRE_CHECK(static_cast<size_t>(batch_->size()) == planned_.size(), batch_->size(), " rows for ",
              planned_.size(), " requests");
  for (size_t i = 0; i < planned_.size(); ++i) {
    num_scheduled_[static_cast<size_t>(planned_[i]->row)] = plan.scheduled_reqs[i].num_tokens;
  }
  if (ops_.decodes_first) place_decodes_first();
}

// Rows of one token before all others. Each row that is out of place changes places with one from the other
// end: the fewest copies. Most steps have one kind only, or find the rows in place.
void ModelRunner::place_decodes_first() {
  const auto begin = num_scheduled_.begin(), end = begin + batch_->size();
  const auto is_decode = [](int32_t num_tokens) { return num_tokens == 1; };
  if (std::is_partitioned(begin, end, is_decode)) return;
  row_order_.resize(static_cast<size_t>(batch_->size()));
  std::iota(row_order_.begin(), row_order_.end(), 0);
  auto first = begin, last = end - 1;
  while (true) {
    while (first < last && is_decode(*first)) ++first;
    while (first < last && !is_decode(*last)) --last;
    if (first == last) break;
    std::swap(*first, *last);
    std::swap(row_order_[static_cast<size_t>(first - begin)], row_order_[static_cast<size_t>(last - begin)]);
  }
  batch_->reorder(row_order_);
}

void ModelRunner::prepare_inputs(const SchedulerOutput& plan) {
  const auto num_rows = static_cast<size_t>(batch_->size());
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
    QUIRE_CHECK(first + count <= plan.total_num_scheduled_tokens, "more tokens than planned");
    std::copy_n(batch_->token_ids(row) + begin, count, input_ids_.data() + first);
    std::iota(positions_.data() + first, positions_.data() + first + count, begin);
    for (size_t group = 0; group < slot_mappings_.size(); ++group) {
      batch_->block_table(group).fill_slots(row, begin, count, slot_mappings_[group].data() + first);
    }
    query_start_loc_[static_cast<size_t>(row) + 1] = first + count;
    seq_lens_[static_cast<size_t>(row)] = begin + count;
    max_query_len = std::max(max_query_len, count);
    max_seq_len = std::max(max_seq_len, begin + count);
  }
  QUIRE_CHECK(query_start_loc_.back() == plan.total_num_scheduled_tokens, "fewer tokens than planned");

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
  // Logits come in the plan's order, whatever order the rows are in.
  logits_index_.clear();
  for (size_t i = 0; i < planned_.size(); ++i) {
    if (plan.scheduled_reqs[i].samples) {
      logits_index_.push_back(query_start_loc_[static_cast<size_t>(planned_[i]->row) + 1] - 1);
    }
  }
}

void ModelRunner::execute_model(const SchedulerOutput& plan) {
  update_requests(plan);
  if (planned_.empty()) {
    batch_->condense();
    return;
  }
  update_batch(plan);
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
  output.reset(plan.step_id);
  sampling_rows_.clear();
  for (size_t i = 0; i < planned_.size(); ++i) {
    if (!plan.scheduled_reqs[i].samples) continue;
    const CachedRequestState& request = *planned_[i];
    sampling_rows_.push_back({&request.sampling_params, &request.eos_token_ids,
                              batch_->token_ids(request.row), request.num_prompt_tokens,
                              batch_->num_tokens(request.row), static_cast<uint32_t>(i)});
  }
  std::span<const int32_t> sampled;
  if (!sampling_rows_.empty()) {
    sampled = sampler_.sample(launch_, *arena_, logits_, sampling_rows_, output.logprobs);
  }
  for (size_t i = 0; i < planned_.size(); ++i) {
    const ScheduledRequest& scheduled = plan.scheduled_reqs[i];
    const auto token = sampled.first(scheduled.samples ? 1 : 0);
    output.add(scheduled.request_id, token);
    if (token.empty()) continue;
    // The last token allowed has no place in the row and needs none: nothing follows it.
    const int32_t row = planned_[i]->row;
    if (batch_->num_tokens(row) < config_.max_model_len) batch_->append_token(row, token[0]);
    sampled = sampled.subspan(1);
  }
}

}  // namespace quire
