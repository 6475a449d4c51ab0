// Runs a step of the scheduler's: applies it to the persistent batch, builds the attention metadata, runs the
// model, samples.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "layers/linear.h"
#include "messages/model_runner_output.h"
#include "models/model.h"
#include "worker/cudagraph_dispatcher.h"
#include "worker/drafter.h"
#include "worker/expert_counters.h"
#include "worker/graph_runner.h"
#include "worker/input_batch.h"
#include "worker/logits_processors.h"
#include "worker/lora_slots.h"
#include "worker/platform.h"

namespace quire {

struct ModelRunnerConfig {
  int32_t max_num_seqs = 0;
  int32_t max_num_batched_tokens = 0;
  int32_t max_model_len = 0;
  int32_t max_in_flight_steps = 1;
  bool use_graphs = true;   // on devices that have them
  uint64_t model_hash = 0;  // BuildContext::compute_hash
  // A request has at most num_speculative_tokens drafts a step. With a drafter one step at most is in flight.
  Speculation speculation = {};
  std::vector<ExpertLoad> expert_loads = {};  // BuildContext's
  int32_t max_loras = 0;                      // adapters of one batch; 0: there are none
  int32_t max_lora_rank = 0;
  bool have_lora_experts = false;  // adapters may change the experts of mixtures
  bool use_cascade = true;         // where attention may hear of what rows share

  int32_t max_num_logits() const { return speculation.max_num_logits(max_num_seqs, max_num_batched_tokens); }
};

// What a configuration comes to on a backend; `max_model_len` is resolved.
ModelRunnerConfig model_runner_config(const EngineConfig& config, const Backend& backend,
                                      int32_t max_model_len);

// One per worker, on its thread, except for finish_step. The buffers are sized once: a step that brings no
// new request and no log-probabilities allocates nothing. On a device a step is only enqueued: the host
// neither waits for it nor sees its tokens before finish_step.
class ModelRunner {
 public:
  // All of them outlive it.
  ModelRunner(const ModelRunnerConfig& config, const Model& model, Platform& platform,
              Communicator& communicator);
  ~ModelRunner();

  // Activations of the largest step.
  size_t activation_bytes() const;
  // What inputs, results and counts of experts take of the arena besides. `block_sizes`: of each KV cache
  // group.
  size_t batch_bytes(std::span<const int32_t> block_sizes) const;

  // The caches, per layer, and the groups they belong to. Takes activation_bytes and batch_bytes of `arena`.
  // Called once, before the first step.
  void set_kv_cache(const KVCacheConfig& config, std::vector<KVCacheView> layers, DeviceArena& arena);

  // The steps call this connector's per-layer hooks; it lives longer. Before warm_up.
  void set_layer_hooks(KVConnectorWorker* connector) { layer_hooks_ = connector; }

  // Requests may use these. Before the first step.
  void set_logits_processors(std::unique_ptr<LogitsProcessors> processors);

  // Requests may have adapters. Before the first step.
  void set_loras(std::unique_ptr<LoraSlots> loras) { loras_ = std::move(loras); }
  // Before execute_model of the step that they are for. Throws as LoraSlots::apply.
  void load_loras(std::span<const LoraLoad> loads) {
    if (!loads.empty()) loras_->apply(loads);
  }

  // On a device: runs every size of step that matters once, so that nothing is chosen or loaded during a
  // request, and captures the graphs. Exchanges nothing with other ranks.
  void warm_up();
  // A step of padding, as far as the logits, with all exchanges. Waits for it. By all ranks, warmed up.
  void run_padding();

  // Forward pass up to the logits of the rows to sample from. A step without requests only changes the batch.
  void execute_model(const SchedulerOutput& scheduler_output);
  // Samples the step executed last, and feeds the tokens back into the batch.
  void sample_tokens(const SchedulerOutput& scheduler_output, const GrammarOutput* grammar);
  // Waits for the oldest step that was sampled and not finished, and fills `output`. On any thread, but one
  // at a time. When a step is executed, at most max_in_flight_steps others are sampled and unfinished.
  void finish_step(ModelRunnerOutput& output);

  // As ExpertCounters::read.
  std::vector<ExpertLoad> expert_loads() const { return expert_counters_.read(); }

  // A hash of everything that a captured graph has frozen: shapes, addresses, the choice of kernels.
  uint64_t compute_hash() const;
  const CudagraphDispatcher& cudagraph_dispatcher() const { return dispatcher_; }

 private:
  // What a step leaves for finish_step.
  struct StepRecord {
    StepId step_id = 0;
    struct Entry {
      RequestId request_id;
      int32_t sampled;  // index of its first token, or -1
      size_t first_draft = 0;
      int32_t num_drafts = 0;     // to verify; one token more was sampled
      bool is_processed = false;  // by logits processors
    };
    std::vector<Entry> entries;  // in the scheduler's order
    std::vector<int32_t> draft_token_ids;
    size_t num_sampled = 0;
    CudagraphMode mode = CudagraphMode::kNone;
    std::vector<std::pair<uint32_t, std::string>> processor_errors;  // of results, by their index

    // Empty; buffers keep their memory.
    void begin(StepId id) {
      step_id = id;
      entries.clear();
      draft_token_ids.clear();
      num_sampled = 0;
      mode = CudagraphMode::kNone;
      processor_errors.clear();
    }
  };

  // Changes what is known of the requests; fills scheduled_.
  void update_requests(const SchedulerOutput& scheduler_output);
  CachedRequestState& add_request(const NewRequestData& data);
  void forget_request(RequestId id);
  void remove_from_batch(CachedRequestState& request, bool keeps);
  void remove_unscheduled();
  // Makes the rows of the batch those of scheduled_.
  void update_batch(const SchedulerOutput& scheduler_output);
  void place_decodes_first();
  void set_drafts(const SchedulerOutput& scheduler_output);
  // Counts the drafts of the request's last step, as far as the host has not heard of them.
  void settle_drafts(CachedRequestState& request, const ScheduledRequest& scheduled);
  void settle_by_tokens(CachedRequestState& request);
  std::span<const int32_t> propose(RequestId id, std::span<const int32_t> new_token_ids);
  // The tokens of every row of this step, when all have as many and are sampled at each; else 0.
  int32_t uniform_query_len(const SchedulerOutput& scheduler_output) const;
  void stage_step(const SchedulerOutput& scheduler_output);
  // Whether the step is the one before once more, with each request one token further; it counts as that.
  bool repeats_last_step(const SchedulerOutput& scheduler_output);
  // stage_step for such a step.
  void stage_repeat(const SchedulerOutput& scheduler_output);
  // Whether the step at hand may be repeated, and what the scheduler would say then.
  void remember_repeatable(const SchedulerOutput& scheduler_output);
  // Counts the steps that were repeated in the requests.
  void settle_repeats();
  // Says which rows are sampled from, and with what.
  void prepare_sampling(const SchedulerOutput& scheduler_output);
  // Says which log-probabilities of prompts this step computes.
  void prepare_prompt_logprobs();
  void compute_prompt_logprobs(const ForwardContext& ctx, TensorView hidden);
  void finish_prompt_logprobs(CachedRequestState& request);
  void change_logits(TensorView& logits);
  void move_logits();
  void add_results(const StepRecord& step, std::span<const int32_t> tokens, ModelRunnerOutput& output);
  static void add_tokens(const StepRecord& step, std::span<const int32_t> tokens, ModelRunnerOutput& output);
  // What is wrong with a row that has this instead of a token (SamplingArgs::host_token_ids).
  static std::string why_no_token(int32_t token, bool is_processed);
  // Finds out what the first rows share; whether attention is to hear of it.
  bool find_common_prefixes(int32_t num_decode_rows);
  bool may_leave_out_rows(int32_t num_tokens) const;
  // A graph of a step. Unless all ranks have all logits: where those of this rank's part of the vocabulary
  // come to, without padding, and the first one's token.
  struct StepGraph {
    FullGraph graph;
    TensorView of_part = {};
    int32_t first_token_id = 0;
  };
  // `graph`: the one to replay, where there is one already.
  void run_forward(const CudagraphDispatcher::Choice& choice, StepGraph* graph);
  void run_full_graph(StepGraph& step);
  void tell_sampling(const StepGraph& step);  // what its kernels do in this step
  ForwardContext forward_context();
  SamplerConfig sampler_config() const;
  StepBuffersConfig step_buffers_config(std::span<const int32_t> block_sizes) const;
  StepRecord& record(int32_t ring_index) { return records_[static_cast<size_t>(ring_index)]; }
  int32_t next_ring_index(int32_t ring_index) const {
    return (ring_index + 1) % static_cast<int32_t>(records_.size());
  }
  int32_t last_ring_index(int32_t ring_index) const {
    return (ring_index == 0 ? static_cast<int32_t>(records_.size()) : ring_index) - 1;
  }
  void warm_up_size(int32_t num_tokens, int32_t query_len = 1, bool has_cascade = false);
  void warm_up_sampling();
  void capture_graphs(std::span<const int32_t> full, std::span<const int32_t> piecewise,
                      std::span<const int32_t> with_drafts);
  // Runs `run` for steps without adapters and, where there are any, once more for steps with them, and once
  // more for steps with those of experts.
  template <typename Run>
  void with_and_without_loras(const Run& run) {
    run();
    if (!loras_) return;
    for (const LoraUse use : {LoraUse::kLinears, LoraUse::kExperts}) {
      if (use > loras_->max_use()) break;
      lora_use_ = use;
      lora_step_ = loras_->step(buffers_->inputs().lora_batch(), use);
      run();
    }
    lora_use_ = LoraUse::kNone;
  }
  GraphKey full_graph_key(const CudagraphDispatcher::Choice& choice) const {
    return {compute_hash_, choice.num_tokens, choice.query_len, lora_use_, uses_cascade_};
  }
  // Of the inputs that were built, and does not make them again unless it is told to. Those of steps that
  // share a prefix are captured when the first comes.
  StepGraph& capture_full_graph(const GraphKey& key);
  // Of the vocabulary this rank's, where ranks choose tokens without telling each other their logits.
  std::optional<Shard> vocab_part() const;
  void capture_piecewise_graph(int32_t num_tokens);
  int32_t draft_query_len() const { return 1 + config_.speculation.num_speculative_tokens; }

  ModelRunnerConfig config_;
  const Model& model_;
  Platform& platform_;
  const KernelTable& ops_;
  const LaunchContext& launch_;
  Communicator& communicator_;
  KVConnectorWorker* layer_hooks_ = nullptr;  // null: nobody's
  ExpertCounters expert_counters_;
  std::unique_ptr<StepBuffers> buffers_;
  Drafter* drafter_ = nullptr;     // of the configuration, while requests are a scheduler's
  std::vector<int32_t> proposed_;  // by it
  std::unordered_map<RequestId, CachedRequestState> requests_;
  std::unique_ptr<InputBatch> batch_;
  std::unique_ptr<ActivationArena> arena_;
  size_t activations_begin_ = 0;  // behind the logits, which have a place of their own
  std::vector<KVCacheView> kv_caches_;
  std::vector<int32_t> kv_cache_groups_;  // per layer
  std::vector<int32_t> planning_layers_;  // per group
  std::vector<bool> may_cascade_;         // per group
  CudagraphDispatcher dispatcher_;
  uint64_t compute_hash_ = 0;
  std::map<GraphKey, StepGraph> full_graphs_;
  std::map<GraphKey, PiecewiseGraph> piecewise_graphs_;

  std::unique_ptr<LogitsProcessors> logits_processors_;  // null: none
  int32_t num_logits_processor_reqs_ = 0;                // that use one
  // What processors are given the memory of: on the host that of all_logits_, on a device that of copies. One
  // of them may keep it.
  std::shared_ptr<void> logits_memory_;
  size_t num_pinned_logits_ = 0;          // rows of a device's
  std::unique_ptr<LoraSlots> loras_;      // null: there are none
  int32_t num_prompt_logprobs_reqs_ = 0;  // those of which some are still to be computed

  std::atomic<int32_t> num_unfinished_{0};  // steps that were sampled
  std::vector<StepRecord> records_;         // by ring index: used in turn
  int32_t ring_index_ = 0;                  // of the step at hand
  int32_t finish_ring_index_ = 0;           // of the step that finish_step takes next

  // The step at hand.
  std::vector<CachedRequestState*> scheduled_;  // in the scheduler's order
  std::vector<CachedRequestState*> scheduled_before_;
  std::vector<int32_t> num_scheduled_;      // per row: tokens to compute
  std::vector<int32_t> result_index_;       // per row: of its result, or -1: does not sample
  std::vector<int32_t> sampled_rows_;       // ascending
  std::vector<SamplingRow> sampling_rows_;  // of each of those: its last token, then its drafts
  std::vector<PromptChunk> prompt_chunks_;
  std::vector<int32_t> common_prefix_lens_;  // per group
  bool uses_cascade_ = false;
  bool has_new_prefixes_ = false;  // AttentionMetadata's
  bool is_sampled_by_graph_ = false;
  int32_t uniform_query_len_ = 0;  // of all rows; 0: they differ, or may not be one graph

  // Repeats. Until they are settled, num_tokens and num_computed_tokens of the requests lack them.
  std::vector<ScheduledRequest>
      repeatable_;  // of the last step, without what makes it a first one; empty: none
  std::vector<ScheduledRequest> repeated_;  // the same of the step at hand, while it may fail
  int32_t max_num_tokens_ = 0;              // of a row of it, the tokens that it computes included
  bool is_repeat_ = false;                  // the step at hand
  int32_t num_unsettled_repeats_ = 0;
  std::vector<GrownState> grown_states_;  // by the step at hand
  std::vector<LogitsProcessors::Row> processor_rows_;
  std::vector<int64_t> changed_rows_;  // of logits: theirs
  LoraUse lora_use_ = LoraUse::kNone;  // of the step at hand
  LoraStep lora_step_;                 // of steps that have
  TensorView all_logits_, logits_;
};

}  // namespace quire
