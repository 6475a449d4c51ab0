// Where one worker computes: the host, or a device. All that the two do differently is behind this and what
// it makes; nobody who has one asks which it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "device/buffer.h"
#include "device/device_arena.h"
#include "device/thread_pool.h"
#include "messages/kv_cache_spec.h"
#include "messages/scheduler_output.h"
#include "quire/engine_config.h"
#include "weights/packed_file.h"
#include "weights/weight_loader.h"
#include "worker/backend.h"
#include "worker/lora_memory.h"
#include "worker/memory_plan.h"
#include "worker/step_buffers.h"

namespace quire {

// What a worker keeps. They are apart because they come and go apart.
struct WorkerMemory {
  std::unique_ptr<DeviceArena> weights;
  std::unique_ptr<DeviceArena> steps;     // workspace, activations, batch: stays
  std::unique_ptr<DeviceArena> kv_cache;  // a device's
};

// One per worker, on its thread but for `select` and `loss`. Outlives everything that it makes.
class Platform {
 public:
  virtual ~Platform() = default;
  Platform(const Platform&) = delete;
  Platform& operator=(const Platform&) = delete;

  const KernelTable& ops() const { return *backend_.ops; }
  const std::string& name() const { return name_; }  // "cuda:0 (sm_90)"
  // What every op of this worker is launched with. The reference stays good.
  const LaunchContext& launch() const { return launch_; }
  void set_workspace(std::byte* data, size_t bytes) {
    launch_.workspace = data;
    launch_.workspace_bytes = bytes;
  }
  // Null on the host: there nothing is chosen by measuring, loaded late or captured.
  const DeviceRuntime* runtime() const { return backend_.runtime; }

  // Before this thread uses it. Throws InternalError when it cannot.
  virtual void select() = 0;
  // Launches of the step before that failed are forgotten.
  virtual void begin_step() = 0;
  // Throws InternalError when a launch has failed since then.
  virtual void check() const = 0;
  // After an error, when all that was enqueued is over: why nothing works here any more; empty when all is
  // well.
  virtual std::string loss() = 0;

  virtual std::unique_ptr<WeightLoader> make_loader() = 0;
  // Where everything that the worker keeps will lie. `measure` says what it takes besides the KV cache; a
  // host does without. Throws as DeviceMemoryPlan and make_device_arena do, and InvalidArgument for a
  // kv_arena where the KV cache is no host memory.
  virtual WorkerMemory make_memory(const EngineConfig& config,
                                   const std::function<DeviceMemoryPlan()>& measure) = 0;

  // The weights of a file, where they can be used as they lie there; else null.
  virtual std::unique_ptr<DeviceArena> map_weights(const std::shared_ptr<const PackedFile>&) {
    return nullptr;
  }

  // What the KV cache may have when `world_size` ranks share the host.
  virtual int64_t available_kv_cache_bytes(const WorkerMemory& memory, int32_t world_size) const = 0;
  // Whether blocks take memory only when they are used.
  virtual bool maps_kv_cache_on_demand() const = 0;
  // Where block 0 of each group begins. Called once. Throws InvalidArgument for more than is available.
  virtual std::vector<std::byte*> allocate_kv_cache(const KVCacheConfig& config, WorkerMemory& memory) = 0;
  // Blocks get or lose their memory, where that is done while they are used.
  virtual void apply(std::span<const KVExtent> extents) = 0;
  // All blocks lose their memory, and get it back at the same addresses, with unspecified contents. Throw as
  // DeviceArena::discard and restore do.
  virtual void discard_kv_cache(WorkerMemory& memory) = 0;
  virtual void restore_kv_cache(WorkerMemory& memory) = 0;

  // A copy, in host memory, of what a device has in an arena; empty where that is host memory already. Throws
  // ResourceExhausted when the host has no room.
  virtual Buffer copy_to_host(const DeviceArena& arena) = 0;
  // Its way back.
  virtual void copy_from_host(const DeviceArena& arena, const Buffer& copy) = 0;

  // What make_lora_memory takes of its arena.
  virtual size_t lora_memory_bytes(const LoraTargets& targets, DType dtype) const = 0;
  virtual std::unique_ptr<LoraMemory> make_lora_memory(const LoraTargets& targets, DType dtype,
                                                       DeviceArena& arena) = 0;

  // What make_step_buffers takes of its arena.
  virtual size_t step_buffers_bytes(const StepBuffersConfig& config) const = 0;
  virtual std::unique_ptr<StepBuffers> make_step_buffers(const StepBuffersConfig& config,
                                                         DeviceArena& arena) = 0;

 protected:
  Platform(const Backend& backend, int32_t num_threads)
      : backend_(backend), name_(backend.name()), threads_(num_threads) {
    launch_.host = threads_.host_parallel();
  }

  Backend backend_;
  std::string name_;
  ThreadPool threads_;
  LaunchContext launch_;
};

// What a rank's KV cache has on the host, of which so much is free, where nobody says.
int64_t default_host_kv_cache_bytes(size_t free, int32_t world_size);
// For plans: a platform of the backend's kind that computes nothing. A device need not be there.
std::unique_ptr<Platform> make_planning_platform(const Backend& backend);
// What an engine may ask of a device's memory, when nobody else has taken any.
size_t planned_free_bytes(size_t total);

// `num_threads` compute where the host does.
std::unique_ptr<Platform> make_platform(const Backend& backend, int32_t num_threads);

std::unique_ptr<Platform> make_host_platform(const Backend& backend, int32_t num_threads);
// Throws InvalidArgument when the backend cannot use the device.
std::unique_ptr<Platform> make_device_platform(const Backend& backend);

}  // namespace quire
