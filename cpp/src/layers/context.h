// What layers are built from, and what a forward pass carries through them. State travels here, never in
// globals.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "device/activation_arena.h"
#include "device/device_arena.h"
#include "distributed/communicator.h"
#include "quire/kernels/ops.h"
#include "weights/checkpoint.h"
#include "weights/weight_loader.h"

namespace quire {

class QuantizationConfig;

// While a model is built. `workspace_bytes` grows to the largest scratch any layer's ops will ask for.
struct BuildContext {
  const KernelTable& ops;
  const LaunchContext& launch;
  Checkpoint& checkpoint;
  DeviceArena& arena;    // what the layers keep; they do not outlive it
  WeightLoader& loader;  // writes it: only after loader.finish() is the model ready
  DType dtype;           // of weights, activations and KV cache
  int32_t rank = 0;      // of the tensor-parallel group
  int32_t world_size = 1;
  int32_t max_model_len = 0;
  int32_t max_num_tokens = 0;  // rows of the largest batch
  int32_t max_num_seqs = 0;    // rows of the largest batch of logits
  int32_t block_size = 16;
  std::shared_ptr<const QuantizationConfig> quantization = {};  // null: none
  size_t workspace_bytes = 0;
};

// The batch as attention sees it, for one KV cache group.
struct AttentionMetadata {
  TensorView block_table;      // [R, max_blocks] int32
  TensorView slot_mapping;     // [T] int64
  TensorView query_start_loc;  // [R + 1] int32
  TensorView seq_lens;         // [R] int32
  int32_t num_decode_rows = 0;
  int32_t max_query_len = 0;
  int32_t max_seq_len = 0;
  void* attention_plan = nullptr;  // where the backend's plan goes; made by the group's first layer
  int32_t first_layer = 0;
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
  GraphPieces* pieces = nullptr;                          // while one is captured in pieces
};

}  // namespace quire
