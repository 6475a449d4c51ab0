#include "scheduler/lora_manager.h"

#include <algorithm>

#include "util/check.h"

namespace quire {

LoraManager::LoraManager(int32_t max_loras) : slots_(static_cast<size_t>(max_loras)), num_idle_(max_loras) {}

bool LoraManager::is_running(LoraId id) const {
  const auto found = slot_by_id_.find(id);
  return found != slot_by_id_.end() && slots_[static_cast<size_t>(found->second)].num_running > 0;
}

void LoraManager::begin(LoraId id) {
  QUIRE_CHECK(has_room(id), "no slot for adapter ", id);
  place(id);
  resume(id);
}

// Into the slot that was used least recently, unless it has one.
void LoraManager::place(LoraId id) {
  if (!slot_by_id_.contains(id)) {
    auto oldest = slots_.end();
    for (auto slot = slots_.begin(); slot != slots_.end(); ++slot) {
      if (slot->num_running == 0 && !slot->is_coming &&
          (oldest == slots_.end() || slot->last_used < oldest->last_used))
        oldest = slot;
    }
    QUIRE_CHECK(oldest != slots_.end(), "no slot for adapter ", id);
    const auto index = static_cast<int32_t>(oldest - slots_.begin());
    slot_by_id_.erase(oldest->id);
    slot_by_id_.emplace(id, index);
    oldest->id = id;
    loads_.push_back({.lora_id = id, .slot = index});
  }
  slot_of(id).last_used = ++num_uses_;
}

bool LoraManager::bring(LoraId id) {
  if (is_running(id)) return true;
  const bool is_there = slot_by_id_.contains(id);
  if (is_there && slot_of(id).is_coming) return true;
  if (!is_there && num_coming_ == num_idle_) return false;
  place(id);
  slot_of(id).is_coming = true;
  ++num_coming_;
  return true;
}

void LoraManager::end(LoraId id) {
  QUIRE_CHECK(is_running(id), "no request runs with adapter ", id);
  Slot& slot = slot_of(id);
  --slot.num_running;
  num_idle_ += slot.num_running == 0;
}

void LoraManager::take_loads(std::vector<LoraLoad>& out) {
  out.clear();
  out.swap(loads_);
  if (num_coming_ == 0) return;
  for (Slot& slot : slots_) slot.is_coming = false;
  num_coming_ = 0;
}

void LoraManager::save(LoraSlotsSnapshot& out) const {
  out.num_uses = num_uses_;
  for (const Slot& slot : slots_) {
    out.ids.push_back(slot.id);
    out.last_used.push_back(slot.last_used);
  }
  out.loads = loads_;
}

void LoraManager::restore(const LoraSlotsSnapshot& snapshot) {
  const auto require = [](bool ok) {
    if (!ok) throw InvalidArgument("snapshot: slots of adapters that there are not");
  };
  require(snapshot.ids.size() == slots_.size() && snapshot.last_used.size() == slots_.size());
  num_uses_ = snapshot.num_uses;
  for (size_t i = 0; i < slots_.size(); ++i) {
    require(snapshot.last_used[i] <= num_uses_);
    slots_[i] = {snapshot.ids[i], 0, snapshot.last_used[i]};
    if (slots_[i].id != 0) require(slot_by_id_.emplace(slots_[i].id, static_cast<int32_t>(i)).second);
  }
  for (const LoraLoad& load : snapshot.loads)
    require(load.lora_id != 0 && load.slot >= 0 && load.slot < max_loras());
  loads_ = snapshot.loads;
}

bool LoraManager::resume(LoraId id) {
  if (!slot_by_id_.contains(id)) return false;
  Slot& slot = slot_of(id);
  num_idle_ -= slot.num_running == 0;
  ++slot.num_running;
  return true;
}

}  // namespace quire
