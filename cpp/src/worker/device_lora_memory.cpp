#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "device/runtime_handles.h"
#include "worker/lora_memory.h"

namespace quire {
namespace {

struct Places {
  Places(const LoraTargets& targets, DType dtype, DeviceArena& arena)
      : table(arena.take<LoraSlot>(targets.all().size() * static_cast<size_t>(targets.max_loras()))) {
    const size_t bytes = targets.max_adapter_bytes(dtype);
    for (int32_t slot = 0; slot < targets.max_loras(); ++slot) slots.push_back(arena.allocate(bytes));
  }
  LoraSlot* table;
  std::vector<std::byte*> slots;
};

class DeviceLoraMemory final : public LoraMemory {
 public:
  DeviceLoraMemory(const LoraTargets& targets, const DeviceRuntime& runtime, void* stream, DType dtype,
                   DeviceArena& arena)
      : runtime_(runtime),
        stream_(stream),
        num_targets_(targets.all().size()),
        places_(targets, dtype, arena),
        copies_(make_stream(runtime)),
        entries_(make_pinned(runtime, places_.slots.size() * entries_bytes())) {
    for (size_t slot = 0; slot < places_.slots.size(); ++slot) slots_.push_back({{}, make_event(runtime)});
    for (DeviceEvent& event : steps_) event = make_event(runtime);
    check(runtime.fill(places_.table, 0, places_.slots.size() * entries_bytes(), stream), "clearing slots");
    // Copies do not wait for that stream.
    check(runtime.synchronize_stream(stream), "clearing slots");
  }
  // Copies read what goes now.
  ~DeviceLoraMemory() override { runtime_.synchronize_stream(copies_.get()); }

  void bring(int32_t slot, std::shared_ptr<const LoraWeights> weights) override {
    const auto index = static_cast<size_t>(slot);
    Slot& to = slots_[index];
    // What came there before has most likely come: but what it is copied from is about to change.
    if (to.weights) check(runtime_.synchronize_event(to.is_there.get()), "waiting for an adapter");
    to.weights = std::move(weights);
    LoraSlot* entries = static_cast<LoraSlot*>(entries_.get()) + index * num_targets_;
    for (size_t target = 0; target < num_targets_; ++target)
      entries[target] = moved(to.weights->at(target), to.weights->data(), places_.slots[index]);
    // Steps that read the slot go first.
    if (to.last_step > 0) {
      const uint64_t step = std::max(to.last_step, num_steps_ - std::min(num_steps_, kSteps - 1));
      check(runtime_.wait_event(steps_[step % kSteps].get(), copies_.get()), "waiting for a slot");
    }
    copy(places_.slots[index], to.weights->data(), to.weights->bytes());
    copy(places_.table + index * num_targets_, entries, entries_bytes());
    check(runtime_.record_event(to.is_there.get(), copies_.get()), "bringing an adapter");
    to.is_awaited = false;
  }

  void begin_step(std::span<const LoraSegment> segments) override {
    for (const LoraSegment& segment : segments) {
      if (segment.slot < 0) continue;
      Slot& slot = slots_[static_cast<size_t>(segment.slot)];
      if (!slot.is_awaited)
        check(runtime_.wait_event(slot.is_there.get(), stream_), "waiting for an adapter");
      slot.is_awaited = true;
    }
  }

  void end_step(std::span<const LoraSegment> segments) override {
    ++num_steps_;
    for (const LoraSegment& segment : segments)
      if (segment.slot >= 0) slots_[static_cast<size_t>(segment.slot)].last_step = num_steps_;
    check(runtime_.record_event(steps_[num_steps_ % kSteps].get(), stream_), "recording an event");
  }

  const LoraSlot* table() const override { return places_.table; }

 private:
  struct Slot {
    std::shared_ptr<const LoraWeights> weights;  // which are copied, or were
    DeviceEvent is_there;
    bool is_awaited = true;  // by the stream of the steps
    uint64_t last_step = 0;  // that read it; steps are counted from 1
  };
  // A step's event stands for those before it too.
  static constexpr uint64_t kSteps = 4;

  size_t entries_bytes() const { return num_targets_ * sizeof(LoraSlot); }
  void check(int code, const char* what) const { check_device(runtime_, code, what); }
  void copy(void* to, const void* from, size_t bytes) {
    check(runtime_.copy(to, from, bytes, copies_.get()), "bringing an adapter");
  }
  static LoraSlot moved(LoraSlot slot, const std::byte* from, const std::byte* to) {
    const auto move = [&](const void*& data) {
      if (data != nullptr) data = to + (static_cast<const std::byte*>(data) - from);
    };
    move(slot.a);
    for (const void*& b : slot.b) move(b);
    return slot;
  }

  const DeviceRuntime& runtime_;
  void* stream_;
  size_t num_targets_;
  Places places_;
  DeviceStream copies_;
  PinnedMemory entries_;
  std::vector<Slot> slots_;
  std::array<DeviceEvent, kSteps> steps_;
  uint64_t num_steps_ = 0;
};

}  // namespace

size_t device_lora_memory_bytes(const LoraTargets& targets, DType dtype) {
  const auto counter = make_measuring_arena();
  const Places measured(targets, dtype, *counter);
  return counter->used();
}

std::unique_ptr<LoraMemory> make_device_lora_memory(const LoraTargets& targets, const DeviceRuntime& runtime,
                                                    void* stream, DType dtype, DeviceArena& arena) {
  return std::make_unique<DeviceLoraMemory>(targets, runtime, stream, dtype, arena);
}

}  // namespace quire
