#include "worker/memory_plan.h"

#include <algorithm>
#include <iomanip>
#include <sstream>

#include "quire/error.h"
#include "util/log.h"
#include "util/str.h"

namespace quire {
namespace {

std::string gib(size_t bytes) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(2) << static_cast<double>(bytes) / (1 << 30) << " GiB";
  return text.str();
}

}  // namespace

void DeviceMemoryPlan::set_budget(const EngineConfig& config, size_t free, size_t total) {
  free += exchange;
  size_t budget = static_cast<size_t>(config.gpu_memory_bytes);
  if (budget > 0) {
    if (budget > free) {
      throw InvalidArgument(str("gpu_memory_bytes ", budget, " is more than the ", free,
                                " bytes that are free on the device: lower it"));
    }
  } else {
    budget = static_cast<size_t>(static_cast<double>(total) * config.gpu_memory_utilization);
    if (budget > free) {
      log(LogLevel::kWarning, "gpu_memory_utilization ", config.gpu_memory_utilization, " asks for ",
          gib(budget), ", and only ", gib(free), " are free: using those");
      budget = free;
    }
  }
  kv_cache = 0;
  const size_t rest = arena_bytes() + graphs + exchange;
  // Whole megabytes: what the device hands out is rounded too.
  kv_cache = (budget > rest ? budget - rest : 0) >> 20 << 20;
  if (kv_cache == 0) {
    throw ResourceExhausted(
        str("the model does not fit: ", text(), ", and the budget is ", gib(budget),
            ": raise gpu_memory_utilization, or lower max_num_batched_tokens or max_num_seqs"));
  }
}

std::string DeviceMemoryPlan::text() const {
  return str("weights ", gib(weights), ", activations ", gib(activations), ", workspace ", gib(workspace),
             ", batch ", gib(batch), ", graphs ", gib(graphs),
             exchange > 0 ? str(", exchange ", gib(exchange)) : std::string(), ", KV cache ", gib(kv_cache));
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
