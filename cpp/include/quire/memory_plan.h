// What an engine's memory goes to: of one that runs, and of one that is only thought of.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "quire/engine_config.h"
#include "quire/export.h"

namespace quire {

// Bytes of one rank; the ranks of a model take the same.
struct RankMemory {
  int64_t weights = 0;
  int64_t activations = 0;  // of the largest step, its logits included
  int64_t workspace = 0;    // scratch of the kernels
  int64_t batch = 0;        // a device's tables, inputs and results
  int64_t adapters = 0;     // a device's slots of low-rank adapters
  int64_t graphs = 0;       // set aside for a device's captured graphs, which the driver keeps
  int64_t exchange = 0;     // what ranks of devices exchange through
  int64_t kv_cache = 0;     // the CPU's takes it as blocks are used

  int64_t total() const {
    return weights + activations + workspace + batch + adapters + graphs + exchange + kv_cache;
  }
  bool operator==(const RankMemory&) const = default;
};

// "weights 14.96 GiB, activations 0.41 GiB, ...": each item that is not zero, as in errors and the log.
QUIRE_API std::string memory_text(const RankMemory& memory);
// The same as in plans and, with a refusal, in the log: a line for each item with its share, and the sum. No
// newline at the end.
QUIRE_API std::string memory_table(const RankMemory& memory);

// Where an engine would run.
struct PlannedDevice {
  std::string name;          // "cpu", "H200", "cuda:0 (NVIDIA H200)"
  int64_t memory_bytes = 0;  // of one device, as its driver tells; of the host, what is free
  // Of a CUDA device; 0: the CPU.
  int32_t compute_capability = 0;  // 90 for 9.0
  int32_t num_sms = 0;
  int32_t max_shared_bytes_per_block = 0;

  bool is_cuda() const { return compute_capability > 0; }
};

// The CUDA devices that are known by name: "A100", "H100", "H200", "L40S".
QUIRE_API const std::vector<PlannedDevice>& known_devices();
// Where config.device means. A CUDA device is the one that is there, or of the kind that `name` says (any
// case; empty: an H100 where there is none); with `memory_bytes` it has so much memory. Throws
// InvalidArgument for a name that is not known, and for a CUDA device in a build without CUDA.
QUIRE_API PlannedDevice find_planned_device(const EngineConfig& config, const std::string& name = "",
                                            int64_t memory_bytes = 0);

// What to change, and to what; planned again with that, the model fits.
struct PlanSuggestion {
  std::string field;  // of EngineConfig, or "device_memory"
  int64_t value = 0;
};

struct MemoryPlan {
  std::string architecture;
  std::string dtype;
  PlannedDevice device;
  int32_t tensor_parallel_size = 1;
  int32_t max_model_len = 0;
  int32_t max_num_seqs = 0;
  int32_t max_num_batched_tokens = 0;
  RankMemory memory;               // of each rank
  int64_t budget_bytes = 0;        // that each may take; on the CPU, of what is free
  int64_t kv_bytes_per_token = 0;  // of each rank, in all layers
  int64_t kv_bytes_per_block = 0;  // the same of block_size tokens
  int32_t block_size = 0;
  int64_t num_blocks = 0;       // of every group of layers
  int64_t kv_bytes_of_one = 0;  // what one sequence of max_model_len takes
  double max_concurrency = 0;   // sequences of max_model_len that generate at once
  std::string problem;          // why an engine would refuse to start; empty: it would not
  std::vector<PlanSuggestion> suggestions;

  bool fits() const { return problem.empty(); }
  // What all ranks of one device or host take at most.
  int64_t peak_bytes() const { return memory.total() * (device.is_cuda() ? 1 : tensor_parallel_size); }
};

// What an engine of this configuration would take, found by the code that it plans with itself. Reads the
// model's configuration and the headers of its weights; needs no device and no memory to speak of.
// Thread-safe. Throws InvalidArgument as an engine does for what has nothing to do with memory: a model that
// is not there, say.
QUIRE_API MemoryPlan plan_memory(const EngineConfig& config, const PlannedDevice& device);
// The table, what it comes to, the problem and the suggestions, as lines of text.
QUIRE_API std::string plan_text(const MemoryPlan& plan);

}  // namespace quire
