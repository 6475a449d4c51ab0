// Where the adapters of a batch lie for the kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "device/device_arena.h"
#include "layers/lora.h"
#include "worker/lora_store.h"

namespace quire {

// One per worker, on its thread.
class LoraMemory {
 public:
  virtual ~LoraMemory() = default;

  // Every step that is enqueued from now on finds this adapter in the slot; those that were go on with what
  // lay there.
  virtual void bring(int32_t slot, std::shared_ptr<const LoraWeights> weights) = 0;
  // Before anything of a step that reads these slots is enqueued: it waits for what is still on its way
  // there.
  virtual void begin_step(std::span<const LoraSegment> segments) = 0;
  // When all of a step that reads these slots was enqueued.
  virtual void end_step(std::span<const LoraSegment> segments) = 0;
  // [max_loras, targets] in the kernels' memory, at an address that stays.
  virtual const LoraSlot* table() const = 0;
};

// Where the kernels' memory is the host's: an adapter lies in a slot as it lies in the store.
std::unique_ptr<LoraMemory> make_host_lora_memory(const LoraTargets& targets);

// What make_device_lora_memory takes of its arena.
size_t device_lora_memory_bytes(const LoraTargets& targets, DType dtype);
// A device's: each slot has room for the largest adapter, and is filled by copies beside the computing, which
// waits only where a step is about to read what is still on its way. `stream` is where every step runs.
std::unique_ptr<LoraMemory> make_device_lora_memory(const LoraTargets& targets, const DeviceRuntime& runtime,
                                                    void* stream, DType dtype, DeviceArena& arena);

}  // namespace quire
