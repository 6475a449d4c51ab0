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

// One per worker, on its thread. The buffers are sized once; a steady step does not allocate on the device.
class ModelRunner {
 public:
  ModelRunner(const ModelRunnerConfig& config, const Model& model, const KernelTable& ops,
              const LaunchContext& launch, Communicator& communicator);

  // Activations of the largest step.
  size_t activation_bytes() const;

  // The caches, per layer, and the groups they belong to. Called once, before the first step.
  void set_kv_cache(const KVCacheConfig& config, std::vector<KVCacheView> layers);

  // Forward pass up to the logits of the rows to sample from.
  void execute_model(const SchedulerOutput& plan);
  // Samples them, feeds the tokens back into the batch, and fills `output`.
  void sample_tokens(const SchedulerOutput& plan, const GrammarOutput* grammar, ModelRunnerOutput& output);

 private:
  void update_states(const SchedulerOutput& plan);
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

  // The step at hand.
  std::vector<int32_t> num_scheduled_;   // per row
  std::vector<int32_t> row_of_planned_;  // per entry of the plan
  std::vector<int32_t> input_ids_, positions_, query_start_loc_, seq_lens_, logits_index_;
  std::vector<std::vector<int64_t>> slot_mappings_;  // per group
  std::vector<AttentionMetadata> attention_metadata_;
  std::vector<int32_t> sampled_rows_;  // rows of the batch, one for each row of the logits
  std::vector<SamplingRow> sampling_rows_;
  std::vector<SampledTokens*> sampling_results_;
  std::vector<SampledTokens*> result_of_row_;
  TensorView logits_;
};

}  // namespace quire
