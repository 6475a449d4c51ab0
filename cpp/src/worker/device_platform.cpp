#include "device/runtime_handles.h"
#include "messages/memory_log.h"
#include "util/check.h"
#include "util/gib_text.h"
#include "util/log.h"
#include "worker/platform.h"

namespace quire {
namespace {

// How often a device's memory is asked for anew when a neighbour was quicker.
constexpr int kMaxTries = 8;
// What is never asked for: the driver needs room for a kernel's local memory, and for modules loaded later.
constexpr size_t kDriverBytes = size_t{256} << 20;

size_t askable_bytes(size_t free) { return free > kDriverBytes ? free - kDriverBytes : 0; }

// What a process takes of a device before it asks for anything.
constexpr size_t kContextBytes = size_t{600} << 20;

class DevicePlatform final : public Platform {
 public:
  // A device computes by itself: one thread of the host is enough.
  explicit DevicePlatform(const Backend& backend)
      : Platform(backend, /*num_threads=*/1), runtime_(*backend.runtime) {
    DevicePlatform::select();
    stream_ = make_stream(runtime_);
    launch_.stream = stream_.get();
    launch_.error = &launch_error_;
    if (ops().create_state == nullptr) return;
    void* state = ops().create_state(&launch_error_);
    if (state == nullptr)
      throw InvalidArgument(str("device '", name(), "' cannot be used: ", launch_error_.text));
    state_ = {state, ops().destroy_state};
    launch_.state = state;
  }

  void select() override { check_device(runtime_, runtime_.select(backend_.device), "selecting the device"); }
  void begin_step() override { launch_error_ = {}; }
  void check() const override { check_launches(launch_error_); }
  // On a device that has failed nothing works any more; a launch that was refused is over. Not the whole
  // device is waited for: another engine may be capturing a graph.
  std::string loss() override {
    const int code = runtime_.synchronize_stream(launch_.stream);
    return code == 0 ? std::string() : runtime_.error_text(code);
  }

  std::unique_ptr<WeightLoader> make_loader() override {
    return make_device_loader(runtime_, backend_.device, ops());
  }
  WorkerMemory make_memory(const EngineConfig& config,
                           const std::function<DeviceMemoryPlan()>& measure) override;

  int64_t available_kv_cache_bytes(const WorkerMemory& memory, int32_t) const override {
    return static_cast<int64_t>(memory.kv_cache->remaining());
  }
  bool maps_kv_cache_on_demand() const override { return false; }
  std::vector<std::byte*> allocate_kv_cache(const KVCacheConfig& config, WorkerMemory& memory) override;
  // A device's blocks have their memory for good.
  void apply(std::span<const KVExtent>) override {}
  void discard_kv_cache(WorkerMemory& memory) override { memory.kv_cache->discard(); }
  void restore_kv_cache(WorkerMemory& memory) override { memory.kv_cache->restore(); }

  Buffer copy_to_host(const DeviceArena& arena) override {
    const std::span<std::byte> memory = arena.device_memory();
    Buffer copy(memory.size());
    move(copy.data(), memory.data(), memory.size(), "copying weights to the host");
    return copy;
  }
  void copy_from_host(const DeviceArena& arena, const Buffer& copy) override {
    move(arena.device_memory().data(), copy.data(), copy.size(), "copying weights to the device");
  }

  size_t lora_memory_bytes(const LoraTargets& targets, DType dtype) const override {
    return device_lora_memory_bytes(targets, dtype);
  }
  std::unique_ptr<LoraMemory> make_lora_memory(const LoraTargets& targets, DType dtype,
                                               DeviceArena& arena) override {
    return make_device_lora_memory(targets, runtime_, launch_.stream, dtype, arena);
  }

  size_t step_buffers_bytes(const StepBuffersConfig& config) const override {
    return device_step_buffers_bytes(config);
  }
  std::unique_ptr<StepBuffers> make_step_buffers(const StepBuffersConfig& config,
                                                 DeviceArena& arena) override {
    return make_device_step_buffers(ops(), runtime_, launch_, config, arena);
  }

 private:
  void move(std::byte* to, const std::byte* from, size_t bytes, const char* what) {
    check_device(runtime_, runtime_.copy(to, from, bytes, launch_.stream), what);
    check_device(runtime_, runtime_.synchronize_stream(launch_.stream), what);
  }

  const DeviceRuntime& runtime_;
  LaunchError launch_error_;
  DeviceStream stream_;
  std::unique_ptr<void, void (*)(void*)> state_{nullptr, [](void*) {}};
};

WorkerMemory DevicePlatform::make_memory(const EngineConfig& config,
                                         const std::function<DeviceMemoryPlan()>& measure) {
  if (config.kv_arena) {
    throw InvalidArgument(
        "kv_arena is host memory; a CUDA device's KV cache is sized by gpu_memory_utilization");
  }
  DeviceMemoryPlan plan = measure();
  for (int attempt = 1;; ++attempt) {
    size_t free = 0, total = 0;
    check_device(runtime_, runtime_.memory_info(&free, &total), "asking for the free memory");
    try {
      plan.set_budget(config, askable_bytes(free), total);
    } catch (const ResourceExhausted&) {
      log_memory_table(plan.rank_memory());
      throw;
    }
    const double wanted = config.gpu_memory_utilization * static_cast<double>(total);
    if (config.gpu_memory_bytes == 0 && static_cast<double>(plan.budget) + 1 < wanted) {
      log(LogLevel::kWarning, "gpu_memory_utilization ", config.gpu_memory_utilization, " asks for ",
          gib_text(static_cast<int64_t>(wanted)), ", and only ", gib_text(static_cast<int64_t>(plan.budget)),
          " are free: using those");
    }
    try {
      WorkerMemory memory;
      memory.weights = make_device_arena(runtime_, plan.weights);
      memory.steps = make_device_arena(runtime_, plan.step_bytes());
      memory.kv_cache = make_device_arena(runtime_, plan.kv_cache);
      log(LogLevel::kInfo, name(), ": ", memory_text(plan.rank_memory()));
      return memory;
    } catch (const ResourceExhausted&) {
      // A neighbour took some between the question and this.
      if (attempt == kMaxTries) throw;
    }
  }
}

std::vector<std::byte*> DevicePlatform::allocate_kv_cache(const KVCacheConfig& config, WorkerMemory& memory) {
  const int64_t bytes = config.memory_bytes(maps_kv_cache_on_demand());
  const auto available = static_cast<int64_t>(memory.kv_cache->remaining());
  if (bytes > available) {
    throw InvalidArgument(str("kv_cache_memory_bytes ", bytes, " is more than the ", available,
                              " bytes that are left for it on ", name(),
                              ": lower it or num_gpu_blocks_override, or raise gpu_memory_utilization"));
  }
  std::vector<std::byte*> first_blocks;
  if (config.overlaid) {
    std::byte* all = memory.kv_cache->allocate(static_cast<size_t>(bytes));
    for (const KVCacheGroup& group : config.groups)
      first_blocks.push_back(all + config.overlaid_begin(group));
    return first_blocks;
  }
  for (const KVCacheGroup& group : config.groups) {
    first_blocks.push_back(memory.kv_cache->allocate(static_cast<size_t>(group.block_bytes()) *
                                                     static_cast<size_t>(group.num_blocks)));
  }
  return first_blocks;
}

// Says what a device's platform says of sizes.
class PlanningPlatform final : public Platform {
 public:
  explicit PlanningPlatform(const Backend& backend) : Platform(backend, /*num_threads=*/1) {}

  void select() override {}
  void begin_step() override {}
  void check() const override {}
  std::string loss() override { return {}; }
  std::unique_ptr<WeightLoader> make_loader() override { return make_measuring_loader(); }
  WorkerMemory make_memory(const EngineConfig&, const std::function<DeviceMemoryPlan()>&) override {
    refuse();
  }
  int64_t available_kv_cache_bytes(const WorkerMemory&, int32_t) const override { refuse(); }
  bool maps_kv_cache_on_demand() const override { return false; }
  std::vector<std::byte*> allocate_kv_cache(const KVCacheConfig&, WorkerMemory&) override { refuse(); }
  void apply(std::span<const KVExtent>) override {}
  void discard_kv_cache(WorkerMemory&) override {}
  void restore_kv_cache(WorkerMemory&) override {}
  Buffer copy_to_host(const DeviceArena&) override { refuse(); }
  void copy_from_host(const DeviceArena&, const Buffer&) override {}
  size_t lora_memory_bytes(const LoraTargets& targets, DType dtype) const override {
    return device_lora_memory_bytes(targets, dtype);
  }
  std::unique_ptr<LoraMemory> make_lora_memory(const LoraTargets&, DType, DeviceArena&) override { refuse(); }
  size_t step_buffers_bytes(const StepBuffersConfig& config) const override {
    return device_step_buffers_bytes(config);
  }
  std::unique_ptr<StepBuffers> make_step_buffers(const StepBuffersConfig&, DeviceArena&) override {
    refuse();
  }

 private:
  [[noreturn]] static void refuse() { throw InternalError("a plan has no memory"); }
};

}  // namespace

size_t planned_free_bytes(size_t total) {
  return askable_bytes(total > kContextBytes ? total - kContextBytes : 0);
}

std::unique_ptr<Platform> make_planning_platform(const Backend& backend) {
  if (!backend.is_device()) return make_host_platform(backend, /*num_threads=*/1);
  return std::make_unique<PlanningPlatform>(backend);
}

std::unique_ptr<Platform> make_device_platform(const Backend& backend) {
  return std::make_unique<DevicePlatform>(backend);
}

}  // namespace quire
