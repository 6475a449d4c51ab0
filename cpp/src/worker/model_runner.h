// Runs one step's plan: applies it to the persistent batch, builds the attention metadata, runs the model,
// samples.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "messages/model_runner_output.h"
#include "models/model.h"
#include "sampler/sampler.h"
#include "worker/cudagraph_dispatcher.h"
#include "worker/graph_runner.h"
#include "worker/input_batch.h"
#include "worker/step_inputs.h"

namespace quire {

struct ModelRunnerConfig {
  int32_t max_num_seqs = 0;
  int32_t max_num_batched_tokens = 0;
  int32_t max_model_len = 0;
  int32_t max_in_flight_steps = 1;
  bool use_graphs = true;   // on devices that have them
  uint64_t model_hash = 0;  // BuildContext::compute_hash
};

// One per worker, on its thread, except for finish_step. The buffers are sized once: a step that brings no
// new request and no log-probabilities allocates nothing. On a device a step is only enqueued: the host
// neither waits for it nor sees its tokens before finish_step.
class ModelRunner {
 public:
  // `runtime`: the device's, or null where the kernels' memory is the host's.
  ModelRunner(const ModelRunnerConfig& config, const Model& model, const KernelTable& ops,
              const LaunchContext& launch, Communicator& communicator,
              const DeviceRuntime* runtime = nullptr);
  ~ModelRunner();

  // Activations of the largest step.
  size_t activation_bytes() const;
  // Device memory that inputs and results take besides; 0 on the host. `block_sizes`: of each KV cache group.
  size_t batch_bytes(std::span<const int32_t> block_sizes) const;

  // The caches, per layer, and the groups they belong to. Takes activation_bytes and batch_bytes of `arena`.
  // Called once, before the first step.
  void set_kv_cache(const KVCacheConfig& config, std::vector<KVCacheView> layers, DeviceArena& arena);

  // On a device: runs every size of step that matters once, so that nothing is chosen or loaded during a
  // request, and captures the graphs.
  void warm_up();

  // Forward pass up to the logits of the rows to sample from. A plan without requests only changes the batch.
  void execute_model(const SchedulerOutput& plan);
  // Of the plan executed last: samples, and feeds the tokens back into the batch.
  void sample_tokens(const SchedulerOutput& plan, const GrammarOutput* grammar);
  // Waits for the oldest step that was sampled and not finished, and fills `output`. On any thread, but one
  // at a time. When a step is executed, at most max_in_flight_steps others are sampled and unfinished.
  void finish_step(ModelRunnerOutput& output);

  // Of everything that a captured graph has frozen: shapes, addresses, the choice of kernels.
  uint64_t compute_hash() const;
  const CudagraphDispatcher& cudagraph_dispatcher() const { return dispatcher_; }

 private:
  // What a step leaves for finish_step.
  struct StepRecord {
    StepId step_id = 0;
    struct Entry {
      RequestId request_id;
      int32_t sampled;  // index of its token, or -1
    };
    std::vector<Entry> entries;  // in the plan's order
    size_t num_sampled = 0;
    CudagraphMode mode = CudagraphMode::kNone;
    DeviceEvent done;
  };

  // Changes what is known of the requests; fills planned_.
  void update_requests(const SchedulerOutput& plan);
  CachedRequestState& add_request(const NewRequestData& data);
  void forget_request(RequestId id);
  void remove_from_batch(CachedRequestState& request, bool keeps);
  void remove_unplanned();
  // Makes the rows of the batch those of planned_.
  void update_batch(const SchedulerOutput& plan);
  void place_decodes_first();
  // Says which rows are sampled from, and with what.
  void prepare_sampling(const SchedulerOutput& plan);
  void run_forward(const CudagraphDispatcher::Choice& choice);
  ForwardContext forward_context();
  StepRecord& record(int32_t slot) { return records_[static_cast<size_t>(slot)]; }
  int32_t next_slot(int32_t slot) const { return (slot + 1) % static_cast<int32_t>(records_.size()); }
  void warm_up_size(int32_t num_tokens);
  void warm_up_sampling();
  void capture_graphs(std::span<const int32_t> full, std::span<const int32_t> piecewise);
  size_t staging_bytes() const;
  size_t attention_plan_bytes() const;

  ModelRunnerConfig config_;
  const Model& model_;
  const KernelTable& ops_;
  const LaunchContext& launch_;
  Communicator& communicator_;
  const DeviceRuntime* runtime_;
  std::unique_ptr<StagingRing> staging_;
  std::unique_ptr<Sampler> sampler_;
  std::unique_ptr<StepInputs> inputs_;
  std::unordered_map<RequestId, CachedRequestState> requests_;
  std::unique_ptr<InputBatch> batch_;
  std::unique_ptr<ActivationArena> arena_;
  size_t activations_begin_ = 0;  // behind the logits, which have a place of their own
  std::vector<KVCacheView> kv_caches_;
  std::vector<int32_t> kv_cache_groups_;  // per layer
  std::vector<int32_t> planning_layers_;  // per group
  CudagraphDispatcher dispatcher_;
  uint64_t compute_hash_ = 0;
  std::map<GraphKey, FullGraph> full_graphs_;
  std::map<GraphKey, PiecewiseGraph> piecewise_graphs_;

  std::atomic<int32_t> num_unfinished_{0};  // steps that were sampled
  std::vector<StepRecord> records_;         // by slot; used in turn
  int32_t slot_ = 0;                        // of the step at hand
  int32_t finish_slot_ = 0;                 // of the step that finish_step takes next

  // The step at hand.
  std::vector<CachedRequestState*> planned_;  // in the plan's order
  std::vector<CachedRequestState*> planned_before_;
  std::vector<int32_t> num_scheduled_;      // per row: tokens to compute
  std::vector<int32_t> plan_index_;         // per row, or -1: does not sample
  std::vector<int32_t> sampled_rows_;       // ascending
  std::vector<SamplingRow> sampling_rows_;  // of those
  TensorView all_logits_, logits_;
};

}  // namespace quire
