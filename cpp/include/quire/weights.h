// New weights for an engine that is there; see EngineBase::update_weights.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "quire/export.h"

namespace quire {

// A tensor in host memory: dense, row-major, in the machine's byte order. Does not own `data`, which is read
// until update_weights returns.
struct WeightTensor {
  std::string name;   // as checkpoints have it: "model.layers.0.self_attn.q_proj.weight"
  std::string dtype;  // "float32", "float16", "bfloat16"; for quantized weights also "int8", "int32", "int64"
  std::vector<int64_t> shape;
  const void* data = nullptr;
};

// What becomes of unfinished requests when an engine is to sleep or to take new weights.
enum class UnfinishedRequests : uint8_t {
  kRefuse = 0,  // InvalidArgument while there is one
  kWait = 1,    // no new ones are accepted, and it waits for the others to finish
  kAbort = 2,   // they end with FinishReason::kAbort
  // update_weights only: they stop between two steps and go on with the new weights, which compute the keys
  // and values of all their tokens anew. New ones are accepted.
  kKeep = 3,
};

struct UpdateWeightsOptions {
  bool partial = false;  // tensors that are not there stay as they are
  UnfinishedRequests unfinished = UnfinishedRequests::kRefuse;
};

struct EngineConfig;

// Writes config.model's weights as the kernels of config.device want them, in config.dtype, a file for each
// of config.tensor_parallel_size ranks, to an existing directory; returns the files' paths. An engine whose
// model is a directory with such files, and the model's other files, maps them: it is ready at once, and
// shares their memory with other processes. Needs the device, and memory for one rank. Thread-safe. Throws
// InvalidArgument as an engine for the model and the device, ResourceExhausted for a file that cannot be
// written.
QUIRE_API std::vector<std::string> pack_weights(const EngineConfig& config, const std::string& directory);

}  // namespace quire
