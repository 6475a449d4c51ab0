// Builds a rank's model, and says what that takes.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "distributed/communicator.h"
#include "formats/hf_config.h"
#include "layers/lora.h"
#include "models/model.h"
#include "worker/memory_plan.h"
#include "worker/model_runner.h"
#include "worker/platform.h"

namespace quire {

struct BuiltModel {
  std::unique_ptr<Model> model;
  size_t workspace_bytes = 0;                 // scratch that its ops ask for
  uint64_t hash = 0;                          // BuildContext::compute_hash
  std::vector<ExpertLoad> expert_loads;       // BuildContext's
  std::unique_ptr<LoraTargets> lora_targets;  // null: there are no adapters
};

// One rank's model, any number of times, from and to different places.
class ModelBuilder {
 public:
  // Throws InvalidArgument for quantized weights that cannot be computed with. `platform` and `communicator`
  // live longer.
  ModelBuilder(const EngineConfig& config, const HfConfig& hf_config, const ModelRunnerConfig& runner_config,
               Platform& platform, Communicator& communicator);

  // Takes all that the model keeps from the arena, and has the loader write it: the model is ready when the
  // loader has finished. Throws as the model does for the checkpoint.
  BuiltModel build(DType dtype, Checkpoint& checkpoint, DeviceArena& arena, WeightLoader& loader) const;

  // What all but the KV cache takes, and what layers ask of that, before any of it is taken.
  struct Measure {
    DeviceMemoryPlan plan;
    std::vector<KVCacheSpec> kv_cache_specs;
  };
  Measure measure(DType dtype, Checkpoint& checkpoint) const;

 private:
  HfConfig hf_config_;
  std::shared_ptr<const QuantizationConfig> quantization_;
  ModelRunnerConfig runner_config_;
  int32_t block_size_;
  Platform& platform_;
  Communicator& communicator_;
};

}  // namespace quire
