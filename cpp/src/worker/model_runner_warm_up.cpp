// What is done once, before the first request: linears are chosen, kernels loaded, graphs captured.
#include <algorithm>
#include <chrono>
#include <utility>

#include "util/fnv.h"
#include "util/log.h"
#include "util/seconds_since.h"
#include "worker/model_runner.h"

namespace quire {
namespace {

// Above this, linears are not chosen by measuring.
constexpr int32_t kMaxWarmUpTokens = 1024;

constexpr RequestId kWarmUpRequest = ~RequestId{0};

}  // namespace

void ModelRunner::warm_up() {
  if (platform_.runtime() == nullptr) return;
  const DeviceRuntime& runtime = *platform_.runtime();
  // Padding only: no cache is written, nothing is attended to. The largest sizes first, so that the memory
  // that libraries take is taken.
  const auto begin = std::chrono::steady_clock::now();
  const int32_t max_tokens = config_.max_num_batched_tokens;
  std::vector<int32_t> sizes = CudagraphDispatcher::default_sizes(std::min(max_tokens, kMaxWarmUpTokens));
  if (max_tokens > kMaxWarmUpTokens) sizes.push_back(max_tokens);
  std::reverse(sizes.begin(), sizes.end());
  communicator_.set_rehearsal(true);
  for (int32_t size : sizes) with_and_without_loras([&] { warm_up_size(size); });
  // What graphs of rows with drafts hold.
  const int32_t query_len = draft_query_len();
  std::vector<int32_t> with_drafts;
  if (query_len > 1 && max_tokens >= query_len) {
    with_drafts = CudagraphDispatcher::default_sizes(std::min(config_.max_num_seqs, max_tokens / query_len));
    for (int32_t& size : with_drafts) size *= query_len;
    for (auto size = with_drafts.rbegin(); size != with_drafts.rend(); ++size)
      with_and_without_loras([&] { warm_up_size(*size, query_len); });
  }
  if (std::ranges::count(may_cascade_, true) > 0)
    warm_up_size(std::min(config_.max_num_seqs, max_tokens), /*query_len=*/1, /*has_cascade=*/true);
  Drafter* const drafter = std::exchange(drafter_, nullptr);
  auto processors = std::exchange(logits_processors_, nullptr);
  warm_up_sampling();
  expert_counters_.clear();
  drafter_ = drafter;
  logits_processors_ = std::move(processors);
  check_device(runtime, runtime.synchronize_stream(launch_.stream), "warming up");
  communicator_.set_rehearsal(false);
  log(LogLevel::kInfo, "warmed up in ", seconds_since(begin), " s");
  if (!config_.use_graphs) return;

  // Hooks are called between graphs, so nothing that calls them is one graph.
  const auto full = layer_hooks_ != nullptr
                        ? std::vector<int32_t>{}
                        : CudagraphDispatcher::default_sizes(std::min(config_.max_num_seqs, max_tokens));
  const auto piecewise =
      CudagraphDispatcher::default_sizes(std::min(CudagraphDispatcher::kMaxPiecewiseTokens, max_tokens));
  capture_graphs(full, piecewise, with_drafts);
  dispatcher_ = CudagraphDispatcher(full, piecewise, query_len, with_drafts);
}

void ModelRunner::run_padding() {
  const DeviceRuntime* runtime = platform_.runtime();
  if (runtime == nullptr) return;
  warm_up_size(1);
  check_device(*runtime, runtime->synchronize_stream(launch_.stream), "meeting the other ranks");
}

// Runs what a step of this size would without graphs.
void ModelRunner::warm_up_size(int32_t num_tokens, int32_t query_len, bool has_cascade) {
  buffers_->inputs().build(launch_, std::min(num_tokens / query_len, config_.max_num_seqs), num_tokens,
                           query_len, has_cascade);
  arena_->release(activations_begin_);
  const ForwardContext ctx = forward_context();
  const TensorView hidden = model_.forward(ctx, buffers_->inputs().model_input());
  if (num_tokens <= all_logits_.shape[0]) model_.compute_logits(ctx, all_logits_.rows(0, num_tokens), hidden);
  arena_->release(activations_begin_);
}

// Short prompts, sampled in the ways that take different kernels. They use block 0, which is nobody's.
void ModelRunner::warm_up_sampling() {
  const int32_t length = std::min({2, config_.max_num_batched_tokens, config_.max_model_len - 1});
  if (length < 1) return;
  SamplingParams plain;
  plain.temperature = 0;
  SamplingParams random = plain;
  random.temperature = 1;
  SamplingParams all = random;
  all.top_p = 0.9F;
  all.repetition_penalty = 1.1F;
  all.logit_bias = {{0, 1.0F}};
  all.logprobs = 1;
  ModelRunnerOutput output;
  SchedulerOutput scheduler_output;
  for (const SamplingParams& params : {plain, random, all}) {
    scheduler_output.scheduled_reqs = {{kWarmUpRequest, length, 0, 0, /*samples=*/1, /*is_new=*/1, 0, 0}};
    scheduler_output.scheduled_new_reqs.resize(1);
    NewRequestData& request = scheduler_output.scheduled_new_reqs[0];
    request.request_id = kWarmUpRequest;
    request.prompt_token_ids = std::vector<int32_t>(static_cast<size_t>(length), 0);
    request.sampling_params = params;
    scheduler_output.total_num_scheduled_tokens = length;
    scheduler_output.new_block_ids.clear(batch_->num_groups());
    for (size_t group = 0; group < batch_->num_groups(); ++group) {
      scheduler_output.new_block_ids.push(kNullBlock);
      scheduler_output.new_block_ids.end_list();
    }
    execute_model(scheduler_output);
    sample_tokens(scheduler_output, nullptr);
    finish_step(output);
    scheduler_output.finished_req_ids = {kWarmUpRequest};
  }
  scheduler_output.scheduled_reqs.clear();
  scheduler_output.scheduled_new_reqs.clear();
  scheduler_output.total_num_scheduled_tokens = 0;
  scheduler_output.new_block_ids.clear(batch_->num_groups());
  execute_model(scheduler_output);
  sample_tokens(scheduler_output, nullptr);
  finish_step(output);
}

std::optional<Shard> ModelRunner::vocab_part() const {
  const int64_t vocab_size = model_.vocab_size();
  const int32_t world_size = communicator_.world_size();
  const Shard part = even_shard(vocab_size, communicator_.rank(), world_size);
  const bool has_each_rank_one = (world_size - 1) * part.count < vocab_size;
  constexpr int64_t kTogether = 4;  // tokens whose noise is one's
  if (!communicator_.chooses_tokens() || !has_each_rank_one || part.count % kTogether != 0)
    return std::nullopt;
  return part;
}

ModelRunner::StepGraph& ModelRunner::capture_full_graph(const GraphKey& key) {
  PrepareInputsArgs nothing;
  nothing.padded_rows = -1;
  SamplingArgs any{};  // a step that samples so says what
  any.logits = all_logits_.rows(0, 1);
  any.all_greedy = true;
  const TensorView logits = all_logits_.rows(0, key.num_tokens);
  const std::optional<Shard> part = vocab_part();
  TensorView of_part;
  FullGraph::Parts parts{.first = [&] { ops_.batch->prepare_inputs(launch_, nothing); },
                         .between =
                             [&] {
                               arena_->release(activations_begin_);
                               const ForwardContext ctx = forward_context();
                               const TensorView hidden =
                                   model_.forward(ctx, buffers_->inputs().model_input());
                               if (part) of_part = arena_->take(DType::kFloat32, key.num_tokens, part->count);
                               model_.compute_logits(ctx, part ? of_part : logits, hidden);
                             },
                         .logits = {},
                         .sampling = {[&] { ops_.sample(launch_, any); }}};
  LaunchContext last = launch_;
  last.waits_for_all = true;
  if (part) {
    parts.logits = [&] { communicator_.all_gather_columns(last, logits, of_part); };
    parts.sampling.emplace_back([&] { communicator_.choose_tokens(last, any); });
  }
  StepGraph step{FullGraph(*platform_.runtime(), launch_.stream, parts)};
  if (part) {
    step.of_part = of_part.columns(0, std::min(part->count, model_.vocab_size() - part->begin));
    step.first_token_id = static_cast<int32_t>(part->begin);
  }
  arena_->release(activations_begin_);
  if (key.has_cascade)
    log(LogLevel::kInfo, "captured the graph of ", key.num_tokens, " requests that share what is in front");
  return full_graphs_.emplace(key, std::move(step)).first->second;
}

void ModelRunner::capture_piecewise_graph(int32_t num_tokens) {
  buffers_->inputs().build(launch_, 0, num_tokens);
  arena_->release(activations_begin_);
  const ForwardContext ctx = forward_context();
  piecewise_graphs_.emplace(GraphKey{compute_hash_, num_tokens, 1, lora_use_},
                            PiecewiseGraph(*platform_.runtime(), ctx, [&](const ForwardContext& pieces) {
                              return model_.forward(pieces, buffers_->inputs().model_input());
                            }));
}

void ModelRunner::capture_graphs(std::span<const int32_t> full, std::span<const int32_t> piecewise,
                                 std::span<const int32_t> with_drafts) {
  const auto begin = std::chrono::steady_clock::now();
  const DeviceRuntime& runtime = *platform_.runtime();
  size_t free_before = 0, free_after = 0, total = 0;
  check_device(runtime, runtime.memory_info(&free_before, &total), "asking for the free memory");
  compute_hash_ = compute_hash();
  // The largest first: the driver uses their memory again for the smaller ones.
  const auto capture_full = [&](int32_t num_tokens, int32_t query_len) {
    buffers_->inputs().build(launch_, num_tokens / query_len, num_tokens, query_len);
    capture_full_graph({compute_hash_, num_tokens, query_len, lora_use_});
  };
  with_and_without_loras([&] {
    for (auto size = with_drafts.rbegin(); size != with_drafts.rend(); ++size)
      capture_full(*size, draft_query_len());
    for (auto size = full.rbegin(); size != full.rend(); ++size) capture_full(*size, /*query_len=*/1);
    for (auto size = piecewise.rbegin(); size != piecewise.rend(); ++size) capture_piecewise_graph(*size);
  });
  arena_->release(activations_begin_);
  check_device(runtime, runtime.synchronize_stream(launch_.stream), "capturing graphs");
  check_device(runtime, runtime.memory_info(&free_after, &total), "asking for the free memory");
  log(LogLevel::kInfo, "captured ", full_graphs_.size(), " full and ", piecewise_graphs_.size(),
      " piecewise graphs in ", seconds_since(begin), " s, ",
      (free_before - std::min(free_after, free_before)) >> 20, " MiB");
}

uint64_t ModelRunner::compute_hash() const {
  Fnv hash;
  hash.add(ops_.backend).add(ops_.variant).add(config_.model_hash);
  hash.add(config_.max_num_seqs).add(config_.max_num_batched_tokens).add(config_.max_model_len);
  hash.add(config_.speculation.num_speculative_tokens);
  hash.add(config_.max_loras).add(config_.max_lora_rank);
  hash.add(model_.vocab_size()).add(model_.hidden_size());
  hash.add(launch_.workspace).add(all_logits_.data);
  for (size_t layer = 0; layer < kv_caches_.size(); ++layer) {
    const KVCacheView& cache = kv_caches_[layer];
    hash.add(kv_cache_groups_[layer]).add(cache.data).add(cache.page_stride_bytes).add(cache.num_blocks);
    hash.add(cache.block_size).add(cache.num_kv_heads).add(cache.head_size).add(cache.dtype);
  }
  return hash.value();
}

}  // namespace quire
