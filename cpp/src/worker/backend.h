// Where a worker computes, as EngineConfig::device says.
#pragma once

#include <cstdint>
#include <string>

#include "quire/engine_config.h"
#include "quire/kernels/device_runtime.h"
#include "quire/kernels/ops.h"
#include "quire/memory_plan.h"
#include "weights/checkpoint.h"
#include "worker/drafter.h"

namespace quire {

struct Backend {
  const KernelTable* ops = nullptr;
  const DeviceRuntime* runtime = nullptr;  // null: the host
  int32_t device = 0;                      // index
  int64_t memory_bytes = 0;                // of a device, all of it
  Speculation speculation = {};            // of what is computed there

  bool is_device() const { return runtime != nullptr; }
  std::string name() const;  // "cuda:0 (sm_90)"
};

// "auto": the first CUDA device that this build has machine code for, else the CPU. Throws InvalidArgument,
// saying what is there, when the device asked for is not, or not enough like it follow for the other ranks.
Backend find_backend(const EngineConfig& config);

// The same of a device that need not be there. Throws InvalidArgument when no code of this build runs on such
// a one.
Backend planned_backend(const PlannedDevice& device);

// Where a rank computes: devices follow each other, and the host is one for all.
Backend backend_of_rank(const Backend& first, int32_t rank);

// config.async_scheduling, or its default: on for devices, which compute without the host, but off with
// drafts, which are made of the tokens of the step before. Throws InvalidArgument when both are asked for.
bool uses_async_scheduling(const EngineConfig& config, const Backend& backend);

// What a step may have.
struct StepLimits {
  int32_t max_num_seqs = 0;
  int32_t max_num_batched_tokens = 0;
};
// What the configuration says; where it leaves them open, what vLLM has for a server on such a device, and
// less on the host. What is left open fits what is not. `max_model_len` is resolved.
StepLimits step_limits(const EngineConfig& config, const Backend& backend, int32_t max_model_len);

// The dtype that config.dtype and the checkpoint lead to. Throws InvalidArgument when the backend cannot
// compute in it.
DType resolve_dtype(const EngineConfig& config, const Checkpoint& checkpoint, const Backend& backend);

}  // namespace quire
