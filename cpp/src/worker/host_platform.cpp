#include <algorithm>

#include "messages/memory_log.h"
#include "quire/error.h"
#include "util/str.h"
#include "worker/kv_cache_memory.h"
#include "worker/platform.h"

namespace quire {
namespace {

// For all ranks together, where kv_cache_memory_bytes says nothing.
constexpr int64_t kMaxDefaultKvCacheBytes = int64_t{4} << 30;

class HostPlatform final : public Platform {
 public:
  HostPlatform(const Backend& backend, int32_t num_threads) : Platform(backend, num_threads) {}

  void select() override {}
  void begin_step() override {}
  void check() const override {}
  std::string loss() override { return {}; }

  std::unique_ptr<WeightLoader> make_loader() override { return make_host_loader(launch_.host); }
  WorkerMemory make_memory(const EngineConfig&, const std::function<DeviceMemoryPlan()>& measure) override {
    if (measure) {
      const DeviceMemoryPlan plan = measure();
      try {
        plan.check_host(available_host_memory());
      } catch (const ResourceExhausted&) {
        log_memory_table(plan.rank_memory());
        throw;
      }
    }
    return {make_host_arena(), make_host_arena(), make_host_arena()};
  }

  std::unique_ptr<DeviceArena> map_weights(const std::shared_ptr<const PackedFile>& file) override {
    return make_packed_arena(file);
  }

  // A part of what is free, for the host is shared with everyone.
  int64_t available_kv_cache_bytes(const WorkerMemory&, int32_t world_size) const override {
    return default_host_kv_cache_bytes(available_host_memory(), world_size);
  }
  bool maps_kv_cache_on_demand() const override { return true; }
  // Address space: blocks get memory when they are touched.
  std::vector<std::byte*> allocate_kv_cache(const KVCacheConfig& config, WorkerMemory&) override {
    std::vector<std::byte*> first_blocks;
    for (const KVCacheGroup& group : config.groups) {
      try {
        kv_cache_.emplace_back(group, /*may_all_be_mapped=*/!config.shared);
      } catch (const ResourceExhausted& refused) {
        throw ResourceExhausted(str("a KV cache of ", group.num_blocks, " blocks: ", refused.what(),
                                    ": lower num_gpu_blocks_override or kv_cache_memory_bytes"));
      }
      first_blocks.push_back(kv_cache_.back().first_block());
    }
    return first_blocks;
  }
  void apply(std::span<const KVExtent> extents) override {
    for (const KVExtent& extent : extents) kv_cache_.at(static_cast<size_t>(extent.group)).apply(extent);
  }
  void discard_kv_cache(WorkerMemory&) override {
    for (KVCacheMemory& group : kv_cache_) group.discard();
  }
  void restore_kv_cache(WorkerMemory&) override {}

  Buffer copy_to_host(const DeviceArena&) override { return {}; }
  void copy_from_host(const DeviceArena&, const Buffer&) override {}

  size_t lora_memory_bytes(const LoraTargets&, DType) const override { return 0; }
  std::unique_ptr<LoraMemory> make_lora_memory(const LoraTargets& targets, DType, DeviceArena&) override {
    return make_host_lora_memory(targets);
  }

  size_t step_buffers_bytes(const StepBuffersConfig&) const override { return 0; }
  std::unique_ptr<StepBuffers> make_step_buffers(const StepBuffersConfig& config, DeviceArena&) override {
    return make_host_step_buffers(ops(), config);
  }

 private:
  std::vector<KVCacheMemory> kv_cache_;  // per group
};

}  // namespace

int64_t default_host_kv_cache_bytes(size_t free, int32_t world_size) {
  return std::min(static_cast<int64_t>(free / 2), kMaxDefaultKvCacheBytes) / world_size;
}

std::unique_ptr<Platform> make_host_platform(const Backend& backend, int32_t num_threads) {
  return std::make_unique<HostPlatform>(backend, num_threads);
}

std::unique_ptr<Platform> make_platform(const Backend& backend, int32_t num_threads) {
  return backend.is_device() ? make_device_platform(backend) : make_host_platform(backend, num_threads);
}

}  // namespace quire
