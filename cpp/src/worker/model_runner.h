// Runs one step's plan: applies it to the persistent batch, builds the attention metadata, runs the model,
// samples.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "messages/model_runner_output.h"
#include "models/model.h"
#include "sampler/sampler.h"
#include "worker/input_batch.h"

namespace quire {

struct ModelRunnerConfig {
  int32_t max_num_seqs = 0;
  int32_t max_num_batched_tokens = 0;
  int32_t max_model_len = 0;
};

// One per worker, on its thread. The buffers are sized once: a step that brings no new request and no
// log-probabilities allocates nothing.
class ModelRunner {
 public:
  ModelRunner(const ModelRunnerConfig& config, const Model& model, const KernelTable& ops,
              const LaunchContext& launch, Communicator& communicator);

  // Activations of the largest step.
  size_t activation_bytes() const;

  // The caches, per layer, and the groups they belong to. Called once, before the first step.
  void set_kv_cache(const KVCacheConfig& config, std::vector<KVCacheView> layers);

  // Forward pass up to the logits of the rows to sample from. A plan without requests only changes the batch.
  void execute_model(const SchedulerOutput& plan);
  // Of the plan executed last: samples, feeds the tokens back into the batch, and fills `output`.
  void sample_tokens(const SchedulerOutput& plan, const GrammarOutput* grammar, ModelRunnerOutput& output);

 private:
  // Changes what is known of the requests; fills planned_.
  void update_requests(const SchedulerOutput& plan);
  CachedRequestState& add_request(const NewRequestData& data);
  void forget_request(RequestId id);
  // Makes the rows of the batch those of planned_.
  void update_batch(const SchedulerOutput& plan);
  void place_decodes_first();
  void prepare_inputs(const SchedulerOutput& plan);

  ModelRunnerConfig config_;
  const Model& model_;
  const KernelTable& ops_;
  const LaunchContext& launch_;
  Communicator& communicator_;
  Sampler sampler_;
  std::unordered_map<RequestId, CachedRequestState> requests_;
  std::unique_ptr<InputBatch> batch_;
  std::unique_ptr<ActivationArena> arena_;
  std::vector<KVCacheView> kv_caches_;
  std::vector<int32_t> kv_cache_groups_;  // per layer

  // The step at hand. "Per entry" follows the plan, "per row" the batch.
  std::vector<CachedRequestState*> planned_;  // per entry
  std::vector<int32_t> num_scheduled_;        // per row: tokens to compute
  std::vector<int32_t> row_order_;            // scratch
  std::vector<int32_t> input_ids_, positions_, query_start_loc_, seq_lens_;
  std::vector<std::vector<int64_t>> slot_mappings_;  // per group
  std::vector<AttentionMetadata> attention_metadata_;
  std::vector<int32_t> logits_index_;  // per entry that samples: its last token
  std::vector<SamplingRow> sampling_rows_;
  TensorView logits_;
};

}  // namespace quire
