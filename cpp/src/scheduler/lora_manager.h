// Which adapter lies in which of the workers' slots.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "messages/recording.h"
#include "messages/scheduler_output.h"

namespace quire {

// The adapters of running requests keep their slots. Others stay where they are until their slot is needed,
// the one that was used least recently first. Not thread-safe.
class LoraManager {
 public:
  explicit LoraManager(int32_t max_loras);

  // Whether a request with this adapter may begin to run: it has a slot, or there is one to be had.
  bool has_room(LoraId id) const { return num_idle_ > 0 || is_running(id); }
  bool has_slot(LoraId id) const { return slot_by_id_.contains(id); }
  // A request with it begins to run; there is room. What the workers must do is kept for take_loads.
  void begin(LoraId id);
  // It runs no more.
  void end(LoraId id);
  // A request with it is going to run: it gets a slot, or keeps the one that it has, until take_loads.
  // Returns false, and changes nothing, when those of running requests and of others that come have all
  // slots.
  bool bring(LoraId id);
  // What has to be done before the next step, in order. `out` is overwritten.
  void take_loads(std::vector<LoraLoad>& out);
  int32_t num_loads() const { return static_cast<int32_t>(loads_.size()); }

  int32_t max_loras() const { return static_cast<int32_t>(slots_.size()); }
  // With running requests.
  int32_t num_running() const { return max_loras() - num_idle_; }
  bool is_running(LoraId id) const;

  void save(LoraSlotsSnapshot& out) const;
  // Throws InvalidArgument for what no manager can have saved. What runs is said by `resume`, which returns
  // false for an adapter that has no slot.
  void restore(const LoraSlotsSnapshot& snapshot);
  bool resume(LoraId id);

 private:
  struct Slot {
    LoraId id = 0;  // 0: nothing lies there
    int32_t num_running = 0;
    uint64_t last_used = 0;
    bool is_coming = false;  // by `bring`; not running
  };
  void place(LoraId id);
  Slot& slot_of(LoraId id) { return slots_[static_cast<size_t>(slot_by_id_.at(id))]; }

  std::vector<Slot> slots_;
  std::unordered_map<LoraId, int32_t> slot_by_id_;
  int32_t num_idle_;        // slots without running requests
  int32_t num_coming_ = 0;  // of these
  uint64_t num_uses_ = 0;
  std::vector<LoraLoad> loads_;
};

}  // namespace quire
