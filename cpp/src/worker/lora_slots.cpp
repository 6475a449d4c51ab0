#include "worker/lora_slots.h"

#include <algorithm>
#include <utility>

#include "util/check.h"

namespace quire {

LoraSlots::LoraSlots(const LoraTargets& targets, const LoraStore& store, int32_t max_num_batched_tokens)
    : targets_(targets),
      store_(store),
      slots_(static_cast<size_t>(targets.max_loras())),
      table_(targets.all().size() * slots_.size()),
      num_tokens_(slots_.size()) {
  rows_.reserve(static_cast<size_t>(max_num_batched_tokens));
  begin_.reserve(slots_.size() + 1);
  segment_slots_.reserve(slots_.size());
  step_.targets = &targets_;
  step_.slots = table_.data();
}

void LoraSlots::apply(std::span<const LoraLoad> loads) {
  for (const LoraLoad& load : loads) {
    const auto index = static_cast<size_t>(load.slot);
    QUIRE_CHECK(load.slot >= 0 && index < slots_.size(), "slot ", load.slot);
    auto weights = store_.find(load.lora_id);
    Slot& slot = slots_[index];
    if (slot.id != 0) slot_by_id_.erase(slot.id);
    slot = {load.lora_id, std::move(weights)};
    slot_by_id_[load.lora_id] = load.slot;
    for (size_t target = 0; target < targets_.all().size(); ++target)
      table_[target * slots_.size() + index] = slot.weights->at(target);
  }
}

const LoraStep* LoraSlots::prepare(InputBatch& batch, std::span<const int32_t> num_scheduled) {
  row_slots_.assign(num_scheduled.size(), -1);
  std::fill(num_tokens_.begin(), num_tokens_.end(), 0);
  for (int32_t row = 0; row < batch.size(); ++row) {
    const LoraId id = batch.request(row).lora_id;
    if (id == 0) continue;
    const auto found = slot_by_id_.find(id);
    QUIRE_CHECK(found != slot_by_id_.end(), "adapter ", id, " is in no slot");
    row_slots_[static_cast<size_t>(row)] = found->second;
    num_tokens_[static_cast<size_t>(found->second)] += num_scheduled[static_cast<size_t>(row)];
  }
  begin_.assign(1, 0);
  segment_slots_.clear();
  for (size_t slot = 0; slot < slots_.size(); ++slot) {
    const int32_t count = num_tokens_[slot];
    if (count == 0) continue;
    num_tokens_[slot] = begin_.back();
    segment_slots_.push_back(static_cast<int32_t>(slot));
    begin_.push_back(begin_.back() + count);
  }
  if (segment_slots_.empty()) return nullptr;
  rows_.resize(static_cast<size_t>(begin_.back()));
  int32_t token = 0;
  for (size_t row = 0; row < row_slots_.size(); ++row) {
    const int32_t slot = row_slots_[row];
    for (const int32_t end = token + num_scheduled[row]; token < end; ++token) {
      if (slot >= 0) rows_[static_cast<size_t>(num_tokens_[static_cast<size_t>(slot)]++)] = token;
    }
  }
  step_.batch = {rows_.data(), begin_.data(), segment_slots_.data(),
                 static_cast<int32_t>(segment_slots_.size())};
  return &step_;
}

}  // namespace quire
