// How a device's memory is divided, or a host's used, before any of it is taken.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "messages/kv_cache_spec.h"
#include "quire/engine_config.h"
#include "quire/memory_plan.h"

namespace quire {

// What captured graphs may take, outside of our own memory.
inline constexpr size_t kGraphBytes = size_t{300} << 20;

struct DeviceMemoryPlan {
  size_t weights = 0;
  size_t workspace = 0;    // scratch of the ops
  size_t activations = 0;  // of the largest step, logits included
  size_t batch = 0;        // tables, inputs and results
  size_t adapters = 0;     // slots of them
  size_t graphs = 0;       // the driver's
  size_t exchange = 0;     // the communicator's, taken before
  size_t kv_cache = 0;     // the rest
  size_t budget = 0;       // for all of them

  // Sets budget and kv_cache from gpu_memory_bytes, or gpu_memory_utilization of `total`. A neighbour may
  // leave less `free`, besides the exchange, than that: then what is free is the budget. Throws
  // ResourceExhausted when nothing is left for the KV cache, and InvalidArgument when gpu_memory_bytes is
  // more than there is.
  void set_budget(const EngineConfig& config, size_t free, size_t total);
  // For a host, which takes memory as it is needed. Throws ResourceExhausted when all but the KV cache is
  // more than is free: else the system would find out when most of the weights are loaded.
  void check_host(size_t free) const;

  size_t step_bytes() const { return workspace + activations + batch + adapters; }
  // What is taken at once: everything but the graphs and the exchange.
  size_t arena_bytes() const { return weights + step_bytes() + kv_cache; }
  RankMemory rank_memory() const;
};

// The block sizes of the groups that layers with these demands form.
std::vector<int32_t> group_block_sizes(std::span<const KVCacheSpec> layers);

}  // namespace quire
