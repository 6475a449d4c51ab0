#include "worker/memory_plan.h"

#include <algorithm>

#include "quire/error.h"
#include "util/gib_text.h"
#include "util/str.h"

namespace quire {

void DeviceMemoryPlan::set_budget(const EngineConfig& config, size_t free, size_t total) {
  free += exchange;
  budget = static_cast<size_t>(config.gpu_memory_bytes);
  if (budget > 0) {
    if (budget > free) {
      throw InvalidArgument(str("gpu_memory_bytes ", budget, " is more than the ", free,
                                " bytes that are free on the device: lower it"));
    }
  } else {
    budget = std::min(free, static_cast<size_t>(static_cast<double>(total) * config.gpu_memory_utilization));
  }
  kv_cache = 0;
  const size_t rest = arena_bytes() + graphs + exchange;
  // Whole megabytes: what the device hands out is rounded too.
  kv_cache = (budget > rest ? budget - rest : 0) >> 20 << 20;
  if (kv_cache == 0) {
    throw ResourceExhausted(
        str("the model does not fit: ", memory_text(rank_memory()), ", and the budget is ",
            gib_text(static_cast<int64_t>(budget)),
            ": raise gpu_memory_utilization, or lower max_num_batched_tokens or max_num_seqs",
            adapters > 0 ? ", or max_loras or max_lora_rank, or clear enable_lora_experts" : ""));
  }
}

void DeviceMemoryPlan::check_host(size_t free) const {
  if (arena_bytes() - kv_cache <= free) return;
  throw ResourceExhausted(str("the model does not fit: ", memory_text(rank_memory()), ", and ",
                              gib_text(static_cast<int64_t>(free)),
                              " of memory are free: free some, choose a smaller model or dtype, or lower "
                              "max_num_batched_tokens or max_num_seqs"));
}

RankMemory DeviceMemoryPlan::rank_memory() const {
  const auto bytes = [](size_t value) { return static_cast<int64_t>(value); };
  return {bytes(weights),  bytes(activations), bytes(workspace), bytes(batch),
          bytes(adapters), bytes(graphs),      bytes(exchange),  bytes(kv_cache)};
}

std::vector<int32_t> group_block_sizes(std::span<const KVCacheSpec> layers) {
  std::vector<KVCacheSpec> groups;
  std::vector<int32_t> sizes;
  for (const KVCacheSpec& spec : layers) {
    if (std::find(groups.begin(), groups.end(), spec) != groups.end()) continue;
    groups.push_back(spec);
    sizes.push_back(spec.block_size);
  }
  return sizes;
}

}  // namespace quire
