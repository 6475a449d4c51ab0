#include "quire/memory_plan.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <optional>

#include "engine/kv_cache_demand.h"
#include "executor/executor.h"
#include "quire/error.h"
#include "quire/model_directory.h"
#include "util/str.h"

namespace quire {
namespace {

// Without suggestions. `config` is located.
MemoryPlan plan_once(const EngineConfig& config, const PlannedDevice& device) {
  const PlannedRank rank = plan_rank(config, device);
  const ModelInfo& model = rank.model_info;
  MemoryPlan plan;
  plan.architecture = model.architecture;
  plan.dtype = model.dtype;
  plan.device = device;
  plan.tensor_parallel_size = config.tensor_parallel_size;
  plan.max_model_len = model.max_model_len;
  plan.max_num_seqs = model.max_num_seqs;
  plan.max_num_batched_tokens = model.max_num_batched_tokens;
  plan.memory = model.memory;
  plan.budget_bytes = rank.budget_bytes;
  plan.block_size = config.block_size;
  plan.problem = rank.refusal;

  KVCacheDemand demand = kv_cache_demand(config, model, rank.kv_cache_specs, rank.max_in_flight_steps,
                                         rank.maps_kv_cache_on_demand, rank.available_kv_cache_bytes);
  // What the layers ask for does not depend on what there is.
  KVCacheDemand plenty = demand;
  plenty.bytes = int64_t{1} << 60;
  plenty.num_blocks = 0;
  const KVCacheConfig wanted = plan_kv_cache(rank.kv_cache_specs, plenty);
  for (const KVCacheGroup& group : wanted.groups) {
    plan.kv_bytes_per_block += group.block_bytes();
    plan.kv_bytes_per_token += group.block_bytes() / group.spec.block_size;
  }
  plan.kv_bytes_of_one = wanted.min_bytes;
  if (!plan.problem.empty()) return plan;
  try {
    const KVCacheConfig kv_cache = plan_engine_kv_cache(config, rank.kv_cache_specs, demand);
    plan.num_blocks = kv_cache.groups[0].num_blocks;
    plan.max_num_seqs = seqs_at_once(config, model, kv_cache.groups[0].num_blocks - 1);
    const int64_t used = kv_cache.memory_bytes(rank.maps_kv_cache_on_demand);
    if (device.is_cuda() && used > rank.available_kv_cache_bytes) {
      plan.problem = str("kv_cache_memory_bytes ", used, " is more than the ", rank.available_kv_cache_bytes,
                         " bytes that are left for it");
    }
    // A device's is taken at once, whether blocks use all of it or not.
    plan.memory.kv_cache = device.is_cuda() ? rank.available_kv_cache_bytes : used;
    plan.max_concurrency = sequences_at_once(kv_cache, demand);
  } catch (const InvalidArgument& refused) {
    plan.problem = refused.what();
    return plan;
  }
  if (!device.is_cuda() && plan.peak_bytes() > device.memory_bytes)
    plan.problem =
        str("all of it takes ", plan.peak_bytes(), " bytes, and ", device.memory_bytes, " are free");
  return plan;
}

// Whether a configuration fits; what is wrong with it otherwise makes it unfit too.
bool fits(const EngineConfig& config, const PlannedDevice& device) {
  try {
    return plan_once(config, device).fits();
  } catch (const InvalidArgument&) {
    return false;
  }
}

// The largest value in [low, high] that is permitted, if low is and those above a limit are not.
int64_t largest(int64_t low, int64_t high, const std::function<bool(int64_t)>& permitted) {
  while (low < high) {
    const int64_t middle = low + (high - low + 1) / 2;
    if (permitted(middle)) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

class Suggestions {
 public:
  Suggestions(const EngineConfig& config, const MemoryPlan& plan) : config_(config), plan_(plan) {}

  std::vector<PlanSuggestion> find() {
    // Whole blocks, at least one.
    const int64_t most_blocks = plan_.max_model_len / plan_.block_size;
    try_largest("max_model_len", 1, most_blocks, plan_.block_size, [](EngineConfig& config, int64_t value) {
      config.max_model_len = static_cast<int32_t>(value);
    });
    try_largest("max_num_batched_tokens", 1, plan_.max_num_batched_tokens / kTokensAtOnce, kTokensAtOnce,
                [](EngineConfig& config, int64_t value) {
                  config.max_num_batched_tokens = static_cast<int32_t>(value);
                  if (config.max_num_seqs)
                    config.max_num_seqs = std::min(*config.max_num_seqs, *config.max_num_batched_tokens);
                });
    try_largest("max_num_seqs", 1, plan_.max_num_seqs - 1, 1, [](EngineConfig& config, int64_t value) {
      config.max_num_seqs = static_cast<int32_t>(value);
    });
    for (int32_t ranks = 2 * plan_.tensor_parallel_size; plan_.device.is_cuda() && ranks <= 8; ranks *= 2) {
      EngineConfig config = config_;
      config.tensor_parallel_size = ranks;
      if (!fits(config, plan_.device)) continue;
      found_.push_back({"tensor_parallel_size", ranks});
      break;
    }
    if (config_.kv_cache_memory_bytes > 0) {
      EngineConfig config = config_;
      config.kv_cache_memory_bytes =
          std::max(plan_.kv_bytes_of_one, config_.max_num_seqs.value_or(1) * plan_.kv_bytes_per_block) +
          plan_.kv_bytes_per_block;
      if (fits(config, plan_.device))
        found_.push_back({"kv_cache_memory_bytes", config.kv_cache_memory_bytes});
    }
    find_device_memory();
    return std::move(found_);
  }

 private:
  static constexpr int64_t kTokensAtOnce = 64;

  void try_largest(const char* field, int64_t low, int64_t high, int64_t unit,
                   const std::function<void(EngineConfig&, int64_t)>& set) {
    const auto permitted = [&](int64_t value) {
      EngineConfig config = config_;
      set(config, value * unit);
      return fits(config, plan_.device);
    };
    if (low > high || !permitted(low)) return;
    found_.push_back({field, largest(low, high, permitted) * unit});
  }
  void find_device_memory() {
    constexpr int64_t kGiB = int64_t{1} << 30, kMost = 4096;
    const auto too_small = [&](int64_t gib) {
      PlannedDevice device = plan_.device;
      device.memory_bytes = gib * kGiB;
      return !fits(config_, device);
    };
    if (!too_small(kMost)) found_.push_back({"device_memory", (largest(0, kMost, too_small) + 1) * kGiB});
  }

  const EngineConfig& config_;
  const MemoryPlan& plan_;
  std::vector<PlanSuggestion> found_;
};

}  // namespace

MemoryPlan plan_memory(const EngineConfig& config, const PlannedDevice& device) {
  config.validate();
  const EngineConfig located = locate_model(config);
  MemoryPlan plan = plan_once(located, device);
  if (!plan.fits()) plan.suggestions = Suggestions(located, plan).find();
  return plan;
}

}  // namespace quire
