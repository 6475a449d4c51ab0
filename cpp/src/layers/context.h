// What layers are built from, and what a forward pass carries through them. State travels here, never in
// globals.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "device/activation_arena.h"
#include "device/device_arena.h"
#include "distributed/communicator.h"
#include "quire/expert_load.h"
#include "quire/export.h"
#include "quire/kernels/ops.h"
#include "quire/kv_connector.h"
#include "util/fnv.h"
#include "weights/checkpoint.h"
#include "weights/weight_loader.h"

namespace quire QUIRE_MODEL_API {

class LoraTargets;
class QuantizationConfig;
struct LoraStep;

// While a model is built. `workspace_bytes` grows to the largest scratch any layer's ops will ask for.
struct BuildContext {
  const KernelTable& ops;
  const LaunchContext& launch;
  Checkpoint& checkpoint;
  DeviceArena& arena;    // what the layers keep; they do not outlive it
  WeightLoader& loader;  // writes it: only after loader.finish() is the model ready
  DType dtype;           // of weights, activations and KV cache
  int32_t rank = 0;      // of world_size, which share each layer
  int32_t world_size = 1;
  int32_t max_model_len = 0;
  int32_t max_num_tokens = 0;  // rows of the largest batch
  int32_t max_num_seqs = 0;    // rows of the largest batch of logits
  int32_t block_size = 16;
  std::shared_ptr<const QuantizationConfig> quantization = {};  // null: none
  LoraTargets* lora_targets = nullptr;                          // null: there are no adapters
  size_t workspace_bytes = 0;
  // Ends of names of tensors that nobody reads: some exporters write what can be derived.
  std::vector<std::string> ignored_weights = {};
  // Beginnings of names of tensors that nobody reads: layers that predict more than the next token.
  std::vector<std::string> ignored_parts = {};
  Fnv compute_hash = {};  // layers add what they choose and a captured graph freezes: their kernels
  std::vector<ExpertLoad> expert_loads = {};  // of the layers that count, as they begin

  // Where a layer counts the tokens of its experts in ForwardContext::expert_counts.
  size_t add_expert_counts(const std::string& layer, int32_t num_experts) {
    size_t first = 0;
    for (const ExpertLoad& load : expert_loads) first += load.num_tokens.size();
    expert_loads.push_back({layer, std::vector<uint64_t>(static_cast<size_t>(num_experts))});
    return first;
  }
};

struct ForwardContext;

// A forward pass that becomes several graphs: what must not be in one runs between two of them, now and at
// every replay, with the context of that time.
class GraphPieces {
 public:
  using Between = std::function<void(const ForwardContext&)>;

  virtual ~GraphPieces() = default;
  virtual void run_between(Between between) = 0;
};

struct ForwardContext {
  const KernelTable& ops;
  const LaunchContext& launch;
  Communicator& communicator;
  ActivationArena& arena;
  std::span<const KVCacheView> kv_caches;                 // per layer
  std::span<const int32_t> kv_cache_groups;               // per layer: index into attention_metadata
  std::span<const AttentionMetadata> attention_metadata;  // per group
  std::span<const int32_t> planning_layers;               // per group: the first, which plans for all of them
  GraphPieces* pieces = nullptr;                          // while one is captured in pieces
  KVConnectorWorker* kv_connector = nullptr;              // of a step, when it has per-layer hooks
  TensorView num_tokens = {};                             // ModelInput's
  uint64_t* expert_counts = nullptr;                      // of all experts of all layers; null: nobody counts
  const LoraStep* lora = nullptr;                         // null: no row has an adapter
  std::optional<TensorView> wanted_rows = {};             // ModelInput's, of the last layer; else all are
};

}  // namespace quire
