// The adapters that a rank has in the host's memory, as its linears multiply with them.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "device/buffer.h"
#include "device/runtime_handles.h"
#include "layers/lora.h"
#include "messages/scheduler_output.h"
#include "weights/lora_adapter.h"

namespace quire {

// One adapter; does not change.
class LoraWeights {
 public:
  // Reads all of it. Throws InvalidArgument, naming the adapter's file and the module, for what does not
  // fit the model: a module that it has not, or of other dimensions, and a rank above targets.max_rank(); and
  // for values that cannot be read or are not finite.
  // Null `runtime`: the kernels' memory is the host's.
  LoraWeights(const LoraAdapter& adapter, const LoraTargets& targets, const KernelTable& ops,
              const DeviceRuntime* runtime, DType dtype);

  const LoraSlot& at(size_t target) const { return slots_[target]; }
  // Of all targets, as one run.
  const std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  // Whether it has something for a mixture.
  bool changes_experts() const { return changes_experts_; }

 private:
  std::vector<LoraSlot> slots_;  // by target
  Buffer memory_;                // or, for a device's copies:
  PinnedMemory pinned_;
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  bool changes_experts_ = false;
};

// Thread-safe: adapters come and go while steps run.
class LoraStore {
 public:
  // `targets` and `ops` live longer.
  LoraStore(const LoraTargets& targets, const KernelTable& ops, const DeviceRuntime* runtime, DType dtype)
      : targets_(targets), ops_(ops), runtime_(runtime), dtype_(dtype) {}

  // Throws as LoraWeights. The device is selected on this thread.
  void load(LoraId id, const LoraAdapter& adapter);
  // Who uses it keeps it until it is used no more. An unknown one is ignored.
  void unload(LoraId id);
  // Throws InternalError for one that is not there.
  std::shared_ptr<const LoraWeights> find(LoraId id) const;

 private:
  const LoraTargets& targets_;
  const KernelTable& ops_;
  const DeviceRuntime* runtime_;
  DType dtype_;
  mutable std::mutex mutex_;
  std::unordered_map<LoraId, std::shared_ptr<const LoraWeights>> adapters_;
};

}  // namespace quire
