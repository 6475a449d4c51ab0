#include "worker/model_runner.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "util/check.h"
#include "worker/common_prefix.h"

namespace quire {

ModelRunnerConfig model_runner_config(const EngineConfig& config, const Backend& backend,
                                      int32_t max_model_len) {
  ModelRunnerConfig runner;
  const StepLimits limits = step_limits(config, backend, max_model_len);
  runner.max_num_seqs = limits.max_num_seqs;
  runner.max_num_batched_tokens = limits.max_num_batched_tokens;
  runner.max_model_len = max_model_len;
  runner.max_in_flight_steps = uses_async_scheduling(config, backend) ? 2 : 1;
  runner.use_graphs = !config.enforce_eager;
  runner.use_cascade = !config.disable_cascade_attn;
  runner.speculation.num_speculative_tokens = backend.speculation.num_speculative_tokens;
  if (config.enable_lora) {
    runner.max_loras = config.max_loras;
    runner.max_lora_rank = config.max_lora_rank;
    runner.have_lora_experts = config.enable_lora_experts;
  }
  return runner;
}

ModelRunner::ModelRunner(const ModelRunnerConfig& config, const Model& model, Platform& platform,
                         Communicator& communicator)
    : config_(config),
      model_(model),
      platform_(platform),
      ops_(platform.ops()),
      launch_(platform.launch()),
      communicator_(communicator),
      expert_counters_(config.expert_loads),
      drafter_(config.speculation.drafter.get()),
      proposed_(static_cast<size_t>(config.speculation.num_speculative_tokens)),
      records_(static_cast<size_t>(config.max_in_flight_steps) + 1) {
  QUIRE_CHECK(drafter_ == nullptr || config.max_in_flight_steps == 1, "a drafter, and ",
              config.max_in_flight_steps, " steps in flight");
}

// Steps may still use what goes now.
ModelRunner::~ModelRunner() { buffers_.reset(); }

CachedRequestState& ModelRunner::add_request(const NewRequestData& data) {
  const auto [entry, inserted] = requests_.try_emplace(data.request_id);
  QUIRE_CHECK(inserted, "request ", data.request_id, " is not new");
  CachedRequestState& request = entry->second;
  request.request_id = data.request_id;
  request.sampling_params = data.sampling_params;
  request.sampling = RowSampling(*data.sampling_params, data.seed);
  request.eos_token_ids = data.eos_token_ids;
  request.bans = make_token_bans(*data.sampling_params, data.bad_words_token_ids, model_.vocab_size());
  request.prompt_token_ids = data.prompt_token_ids;
  request.output_token_ids = data.output_token_ids;
  request.num_prompt_tokens = static_cast<int32_t>(data.prompt_token_ids->size());
  request.lora_id = data.lora_id;
  if (logits_processors_) {
    request.logits_processors =
        logits_processors_->add(data.request_id, *request.sampling_params, *request.prompt_token_ids);
    num_logits_processor_reqs_ += request.logits_processors != 0;
  }
  if (data.num_prompt_logprobs && request.num_prompt_tokens > 1) {
    request.num_prompt_logprobs = *data.num_prompt_logprobs;
    ++num_prompt_logprobs_reqs_;
  }
  request.block_ids.resize(batch_->num_groups());
  if (drafter_ != nullptr)
    drafter_->add_request(data.request_id, *data.prompt_token_ids, data.output_token_ids);
  return request;
}

void ModelRunner::forget_request(RequestId id) {
  const auto found = requests_.find(id);
  if (found == requests_.end()) return;
  if (found->second.row >= 0) remove_from_batch(found->second, /*keeps=*/false);
  finish_prompt_logprobs(found->second);
  if (found->second.logits_processors != 0) {
    logits_processors_->remove(id, found->second.logits_processors);
    --num_logits_processor_reqs_;
  }
  requests_.erase(found);
  if (drafter_ != nullptr) drafter_->remove_request(id);
}

void ModelRunner::remove_from_batch(CachedRequestState& request, bool keeps) {
  if (keeps && request.num_drafts > 0) {
    settle_by_tokens(request);
  } else if (keeps) {
    buffers_->inputs().bring_tokens(launch_, *batch_, request);
  }
  request.num_drafts = 0;
  batch_->remove(request);
}

void ModelRunner::update_requests(const SchedulerOutput& scheduler_output) {
  // Most steps name the same requests in the same order as the one before.
  std::swap(scheduled_, scheduled_before_);
  scheduled_.clear();
  if (!scheduler_output.finished_req_ids.empty()) scheduled_before_.clear();
  for (RequestId id : scheduler_output.finished_req_ids) forget_request(id);
  auto new_request = scheduler_output.scheduled_new_reqs.begin();
  for (const ScheduledRequest& scheduled : scheduler_output.scheduled_reqs) {
    const size_t index = scheduled_.size();
    if (scheduled.is_new) {
      QUIRE_CHECK(new_request != scheduler_output.scheduled_new_reqs.end() &&
                      new_request->request_id == scheduled.request_id,
                  "request ", scheduled.request_id, " is not described");
      scheduled_.push_back(&add_request(*new_request++));
    } else if (index < scheduled_before_.size() &&
               scheduled_before_[index]->request_id == scheduled.request_id) {
      scheduled_.push_back(scheduled_before_[index]);
    } else {
      const auto found = requests_.find(scheduled.request_id);
      QUIRE_CHECK(found != requests_.end(), "request ", scheduled.request_id, " is not known");
      scheduled_.push_back(&found->second);
    }
    CachedRequestState& request = *scheduled_.back();
    if (request.num_drafts > 0) settle_drafts(request, scheduled);
    // A request goes back when what it was to load has not come. A device only has the tokens from there on.
    if (scheduled.num_computed_tokens < request.num_computed_tokens) request.num_sent = 0;
    request.num_computed_tokens = scheduled.num_computed_tokens;
  }
}

// Rows that this step does not compute leave the batch; their state is kept.
void ModelRunner::remove_unscheduled() {
  const auto num_rows = std::count_if(scheduled_.begin(), scheduled_.end(),
                                      [](const CachedRequestState* request) { return request->row >= 0; });
  if (num_rows == batch_->size()) return;
  std::fill_n(num_scheduled_.begin(), batch_->size(), 0);
  for (const CachedRequestState* request : scheduled_) {
    if (request->row >= 0) num_scheduled_[static_cast<size_t>(request->row)] = 1;
  }
  for (int32_t row = batch_->size() - 1; row >= 0; --row) {
    if (num_scheduled_[static_cast<size_t>(row)] > 0) continue;
    // A request whose last token is under way sits out a step too, but will not be computed again.
    CachedRequestState& request = batch_->request(row);
    const bool may_go_on =
        request.num_tokens - request.num_prompt_tokens < request.sampling_params->max_tokens;
    remove_from_batch(request, /*keeps=*/may_go_on);
  }
  batch_->condense();
}

void ModelRunner::update_batch(const SchedulerOutput& scheduler_output) {
  const size_t num_groups = batch_->num_groups();
  QUIRE_CHECK(scheduler_output.new_block_ids.num_rows() == scheduled_.size() &&
                  scheduler_output.new_block_ids.num_groups() == num_groups,
              scheduler_output.new_block_ids.num_rows(), " rows of ",
              scheduler_output.new_block_ids.num_groups(), " groups");
  batch_->condense();
  remove_unscheduled();

  has_new_prefixes_ = false;
  for (size_t i = 0; i < scheduled_.size(); ++i) {
    CachedRequestState& request = *scheduled_[i];
    const bool replaces = scheduler_output.scheduled_reqs[i].resumed_from_preemption != 0;
    if (replaces) request.num_sent = 0;  // some were not needed before
    // Found blocks may be those of a request whose tokens this step computes: they are found when they are
    // scheduled.
    if ((replaces || scheduler_output.scheduled_reqs[i].is_new != 0) && request.num_computed_tokens > 0)
      has_new_prefixes_ = true;
    for (size_t group = 0; group < num_groups; ++group) {
      const std::span<const BlockId> ids = scheduler_output.new_block_ids.at(i, group);
      if (request.row < 0) {
        auto& held = request.block_ids[group];
        if (replaces) held.clear();
        held.insert(held.end(), ids.begin(), ids.end());
      } else if (replaces) {
        batch_->block_table(group).set(request.state_index, ids);
      } else {
        batch_->block_table(group).append(request.state_index, ids);
      }
    }
    if (request.row < 0) batch_->add(request);
  }
  QUIRE_CHECK(static_cast<size_t>(batch_->size()) == scheduled_.size(), batch_->size(), " rows for ",
              scheduled_.size(), " requests");
  for (size_t i = 0; i < scheduled_.size(); ++i) {
    const ScheduledRequest& scheduled = scheduler_output.scheduled_reqs[i];
    num_scheduled_[static_cast<size_t>(scheduled_[i]->row)] = scheduled.num_tokens;
    // Tokens that were sampled from what had not come are nobody's.
    if (scheduled.samples != 0) {
      InputBatch::truncate(*scheduled_[i],
                           scheduled.num_computed_tokens + scheduled.num_tokens - scheduled.num_spec_tokens);
    }
  }
  if (!scheduler_output.spec_token_ids.empty()) set_drafts(scheduler_output);
  if (ops_.decodes_first) place_decodes_first();
}

// Rows of one token before all others: each row that is out of place changes places with one from the other
// end.
void ModelRunner::place_decodes_first() {
  int32_t first = 0, last = batch_->size() - 1;
  const auto is_decode = [this](int32_t row) { return num_scheduled_[static_cast<size_t>(row)] == 1; };
  while (true) {
    while (first < last && is_decode(first)) ++first;
    while (first < last && !is_decode(last)) --last;
    if (first >= last) return;
    std::swap(num_scheduled_[static_cast<size_t>(first)], num_scheduled_[static_cast<size_t>(last)]);
    batch_->swap_rows(first, last);
  }
}

ForwardContext ModelRunner::forward_context() {
  return {.ops = ops_,
          .launch = launch_,
          .communicator = communicator_,
          .arena = *arena_,
          .kv_caches = kv_caches_,
          .kv_cache_groups = kv_cache_groups_,
          .attention_metadata = buffers_->inputs().attention_metadata(),
          .planning_layers = planning_layers_,
          .expert_counts = expert_counters_.data(),
          .lora = lora_use_ != LoraUse::kNone ? &lora_step_ : nullptr};
}

// Fills sampled_rows_ and sampling_rows_, in the rows' order, and the step's record.
void ModelRunner::prepare_sampling(const SchedulerOutput& scheduler_output) {
  StepRecord& step = record(ring_index_);
  step.begin(scheduler_output.step_id);
  std::fill_n(result_index_.begin(), batch_->size(), -1);
  for (size_t i = 0; i < scheduled_.size(); ++i) {
    step.entries.push_back({.request_id = scheduled_[i]->request_id, .sampled = -1});
    if (scheduler_output.scheduled_reqs[i].samples)
      result_index_[static_cast<size_t>(scheduled_[i]->row)] = static_cast<int32_t>(i);
  }
  sampled_rows_.clear();
  sampling_rows_.clear();
  for (int32_t row = 0; row < batch_->size(); ++row) {
    const int32_t index = result_index_[static_cast<size_t>(row)];
    if (index < 0) continue;
    const CachedRequestState& request = batch_->request(row);
    StepRecord::Entry& entry = step.entries[static_cast<size_t>(index)];
    entry.sampled = static_cast<int32_t>(sampling_rows_.size());
    entry.is_processed = request.logits_processors != 0;
    sampled_rows_.push_back(row);
    if (request.num_drafts > 0) {
      entry.first_draft = step.draft_token_ids.size();
      entry.num_drafts = request.num_drafts;
      step.draft_token_ids.insert(step.draft_token_ids.end(), request.draft_token_ids.begin(),
                                  request.draft_token_ids.end());
    }
    const int32_t num_tokens = request.num_computed_tokens + num_scheduled_[static_cast<size_t>(row)];
    for (int32_t i = num_tokens - request.num_drafts; i <= num_tokens; ++i) {
      // All fields at once: clearing them first would take longer.
      sampling_rows_.push_back({.sampling = request.sampling,
                                .params = &*request.sampling_params,
                                .eos_token_ids = &*request.eos_token_ids,
                                .bans = request.bans.get(),
                                .token_ids = nullptr,
                                .token_place = nullptr,
                                .num_prompt_tokens = request.num_prompt_tokens,
                                .num_tokens = i,
                                .result_index = static_cast<uint32_t>(index)});
    }
  }
}

bool ModelRunner::find_common_prefixes(int32_t num_decode_rows) {
  bool uses_cascade = false;
  for (size_t group = 0; group < may_cascade_.size(); ++group) {
    int32_t& length = common_prefix_lens_[group];
    length = may_cascade_[group] ? common_prefix_len(*batch_, group, num_decode_rows) : 0;
    const KVCacheView& cache = kv_caches_[static_cast<size_t>(planning_layers_[group])];
    uses_cascade = uses_cascade || (length > 0 && ops_.use_cascade_attention(cache, num_decode_rows, length));
  }
  return uses_cascade;
}

void ModelRunner::execute_model(const SchedulerOutput& scheduler_output) {
  // There is a place for each in flight and one more, in which the host writes now.
  QUIRE_CHECK(num_unfinished_ <= config_.max_in_flight_steps, num_unfinished_.load(), " unfinished steps");
  is_sampled_by_graph_ = false;
  is_repeat_ = repeats_last_step(scheduler_output);
  repeatable_.clear();  // in case this one fails
  if (is_repeat_) {
    stage_repeat(scheduler_output);
  } else {
    settle_repeats();
    update_requests(scheduler_output);
    if (scheduled_.empty()) {
      batch_->condense();
      prepare_sampling(scheduler_output);
      return;
    }
    update_batch(scheduler_output);
    stage_step(scheduler_output);
  }
  const auto choice = dispatcher_.dispatch(scheduler_output.total_num_scheduled_tokens, uniform_query_len_);
  record(ring_index_).mode = choice.mode;
  StepInputs& inputs = buffers_->inputs();
  const bool is_one_graph = choice.mode == CudagraphMode::kFull;
  const auto found = is_one_graph ? full_graphs_.find(full_graph_key(choice)) : full_graphs_.end();
  StepGraph* const graph = found != full_graphs_.end() ? &found->second : nullptr;
  const GraphNode first = graph != nullptr ? graph->graph.first() : GraphNode{};
  LaunchContext launch = launch_;
  if (graph != nullptr) launch.into = &first;
  inputs.build(launch, is_one_graph ? choice.num_tokens / choice.query_len : batch_->size(),
               choice.num_tokens, choice.query_len, uses_cascade_);
  run_forward(choice, graph);
  if (lora_use_ != LoraUse::kNone) loras_->end_step();
  remember_repeatable(scheduler_output);
}

// Says what the step reads and samples; build sends it.
void ModelRunner::stage_step(const SchedulerOutput& scheduler_output) {
  prepare_sampling(scheduler_output);
  prepare_prompt_logprobs();
  const auto counts = std::span(num_scheduled_).first(static_cast<size_t>(batch_->size()));
  StepShape step;
  step.batch = batch_.get();
  if (loras_) step.loras = loras_->prepare(*batch_, counts);
  lora_use_ = lora_use_of(step.loras);
  step.num_scheduled = counts;
  step.sampling_rows = sampled_rows_;
  step.num_tokens = scheduler_output.total_num_scheduled_tokens;
  step.num_decode_rows =
      ops_.decodes_first
          ? static_cast<int32_t>(
                std::find_if(counts.begin(), counts.end(), [](int32_t n) { return n != 1; }) - counts.begin())
          : 0;
  uses_cascade_ = find_common_prefixes(step.num_decode_rows);
  step.common_prefix_lens = common_prefix_lens_;
  step.has_new_prefixes = has_new_prefixes_;
  // One graph would not hear of new prefixes; pieces do, as attention is between them.
  uniform_query_len_ = has_new_prefixes_ ? 0 : uniform_query_len(scheduler_output);

  StepInputs& inputs = buffers_->inputs();
  buffers_->begin_step();
  inputs.stage(launch_, step);
  if (lora_use_ != LoraUse::kNone) lora_step_ = loras_->step(inputs.lora_batch(), lora_use_);
  auto row = sampling_rows_.begin();
  for (int32_t sampled_row : sampled_rows_) {
    const CachedRequestState& request = batch_->request(sampled_row);
    int32_t* token_ids = inputs.token_ids(request);
    for (const auto end = row + 1 + request.num_drafts; row != end; ++row) {
      row->token_ids = token_ids;
      // The last token allowed has no place and needs none: nothing follows it.
      row->token_place = row->num_tokens < config_.max_model_len ? token_ids + row->num_tokens : nullptr;
    }
  }
  buffers_->sampler().stage(ring_index_, sampling_rows_);
  buffers_->sampler().prompt_logprobs().stage(ring_index_, prompt_chunks_);
}

void ModelRunner::run_full_graph(StepGraph& step) {
  is_sampled_by_graph_ = num_logits_processor_reqs_ == 0 && buffers_->sampler().is_one_kernel();
  if (is_sampled_by_graph_) tell_sampling(step);
  // Kernels that were not told do what they did before, which is another step's.
  if (launch_.error == nullptr || !launch_.error->failed)
    step.graph.replay(launch_.stream, is_sampled_by_graph_);
}

void ModelRunner::tell_sampling(const StepGraph& step) {
  Sampler& sampler = buffers_->sampler();
  LaunchContext launch = launch_;
  GraphNode kernel = step.graph.sampling(0);
  launch.into = &kernel;
  if (step.of_part.data == nullptr)
    return sampler.sample(launch, *arena_, logits_, ring_index_, /*grammar=*/nullptr);
  const SamplingArgs args =
      sampler.score(launch, step.of_part.rows(0, logits_.shape[0]), step.first_token_id, ring_index_);
  kernel = step.graph.sampling(1);
  communicator_.choose_tokens(launch, args);
}

// Whether of the step's rows only those are wanted that logits come from. A device's short steps may be
// graphs, which compute all, and give the same bits where they are not. Adapters are told which of all rows
// are whose.
bool ModelRunner::may_leave_out_rows(int32_t num_tokens) const {
  const int32_t longest_graph = platform_.runtime() != nullptr ? CudagraphDispatcher::kMaxPiecewiseTokens : 0;
  return num_tokens > longest_graph && 2 * std::ssize(sampling_rows_) <= num_tokens &&
         prompt_chunks_.empty() && lora_use_ == LoraUse::kNone;
}

void ModelRunner::run_forward(const CudagraphDispatcher::Choice& choice, StepGraph* graph) {
  const auto num_logits = static_cast<int64_t>(sampling_rows_.size());
  logits_ = all_logits_.rows(0, num_logits);
  QUIRE_CHECK(choice.mode != CudagraphMode::kFull || prompt_chunks_.empty(),
              "a graph has no prompts' logits");
  if (choice.mode == CudagraphMode::kFull)
    return run_full_graph(graph != nullptr ? *graph : capture_full_graph(full_graph_key(choice)));
  arena_->release(activations_begin_);
  ForwardContext ctx = forward_context();
  ctx.kv_connector = layer_hooks_;
  TensorView hidden;
  if (choice.mode == CudagraphMode::kPiecewise) {
    const PiecewiseGraph& graph = piecewise_graphs_.at({compute_hash_, choice.num_tokens, 1, lora_use_});
    hidden = graph.replay(ctx);
    arena_->reserve(hidden);
  } else {
    ModelInput input = buffers_->inputs().model_input();
    if (may_leave_out_rows(choice.num_tokens)) input.wanted_rows = buffers_->inputs().logits_index();
    hidden = model_.forward(ctx, input);
  }
  if (!prompt_chunks_.empty()) compute_prompt_logprobs(ctx, hidden);
  if (num_logits > 0) {
    TensorView last = hidden;  // where the model has left out the others
    if (hidden.shape[0] == choice.num_tokens) {
      last = arena_->take(hidden.dtype, num_logits, model_.hidden_size());
      ops_.gather_rows(launch_, last, hidden, buffers_->inputs().logits_index());
    }
    model_.compute_logits(ctx, logits_, last);
  }
  arena_->release(activations_begin_);
}

void ModelRunner::sample_tokens(const SchedulerOutput& scheduler_output, const GrammarOutput* grammar) {
  StepRecord& step = record(ring_index_);
  QUIRE_CHECK(step.step_id == scheduler_output.step_id, "step ", scheduler_output.step_id,
              " was not executed");
  const size_t n = sampling_rows_.size();
  if (is_sampled_by_graph_) {
    QUIRE_CHECK(grammar == nullptr || grammar->result_indices.empty(), "masks for rows without grammar");
  } else if (n > 0) {
    buffers_->sampler().sample(launch_, *arena_, logits_, ring_index_, grammar);
  }
  platform_.check();  // or the step has no result to be taken
  buffers_->end_step(ring_index_);
  // The batch grows now, whoever knows the tokens.
  if (is_repeat_) {
    ++num_unsettled_repeats_;
  } else {
    buffers_->append_sampled_tokens(*batch_, sampled_rows_, ring_index_);
  }
  step.num_sampled = n;
  ring_index_ = next_ring_index(ring_index_);
  ++num_unfinished_;
}

}  // namespace quire
