#include "worker/lora_slots.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "util/check.h"

namespace quire {

LoraSlots::LoraSlots(const LoraTargets& targets, const LoraStore& store, std::unique_ptr<LoraMemory> memory,
                     int32_t max_num_batched_tokens)
    : targets_(targets),
      store_(store),
      memory_(std::move(memory)),
      ids_(static_cast<size_t>(targets.max_loras())),
      slot_changes_experts_(ids_.size()),
      num_tokens_(ids_.size()) {
  if (targets.has_mixtures()) token_slots_.reserve(static_cast<size_t>(max_num_batched_tokens));
  rows_.reserve(static_cast<size_t>(max_num_batched_tokens));
  segments_.reserve(static_cast<size_t>(targets.max_segments(max_num_batched_tokens)));
}

void LoraSlots::apply(std::span<const LoraLoad> loads) {
  for (const LoraLoad& load : loads) {
    const auto index = static_cast<size_t>(load.slot);
    QUIRE_CHECK(load.slot >= 0 && index < ids_.size(), "slot ", load.slot);
    auto weights = store_.find(load.lora_id);
    if (ids_[index] != 0) slot_by_id_.erase(ids_[index]);
    ids_[index] = load.lora_id;
    slot_by_id_[load.lora_id] = load.slot;
    slot_changes_experts_[index] = weights->changes_experts();
    memory_->bring(load.slot, std::move(weights));
  }
}

LoraRows LoraSlots::prepare(InputBatch& batch, std::span<const int32_t> num_scheduled) {
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
  segments_.clear();
  int32_t num_rows = 0;
  bool changes_experts = false;
  for (size_t slot = 0; slot < ids_.size(); ++slot) {
    const int32_t end = num_rows + num_tokens_[slot];
    changes_experts |= end > num_rows && slot_changes_experts_[slot];
    num_tokens_[slot] = num_rows;
    add_segments(static_cast<int32_t>(slot), num_rows, end);
    num_rows = end;
  }
  const auto num_with_adapter = static_cast<int32_t>(segments_.size());
  if (num_with_adapter == 0) return {};
  token_slots_.clear();
  int32_t without = num_rows;  // where the next row goes that has none
  if (targets_.lists_all_rows()) {
    num_rows = std::accumulate(num_scheduled.begin(), num_scheduled.end(), 0);
    add_segments(-1, without, num_rows);
  }
  rows_.resize(static_cast<size_t>(num_rows));
  int32_t token = 0;
  for (size_t row = 0; row < row_slots_.size(); ++row) {
    const int32_t slot = row_slots_[row];
    if (changes_experts)
      token_slots_.insert(token_slots_.end(), static_cast<size_t>(num_scheduled[row]), slot);
    for (const int32_t end = token + num_scheduled[row]; token < end; ++token) {
      if (slot >= 0) {
        rows_[static_cast<size_t>(num_tokens_[static_cast<size_t>(slot)]++)] = token;
      } else if (targets_.lists_all_rows()) {
        rows_[static_cast<size_t>(without++)] = token;
      }
    }
  }
  memory_->begin_step(segments_);
  return {rows_, segments_, num_with_adapter, token_slots_};
}

void LoraSlots::add_segments(int32_t slot, int32_t begin, int32_t end) {
  while (begin < end) {
    const int32_t count = std::min(end - begin, targets_.segment_rows());
    segments_.push_back({slot, begin, begin + count});
    begin += count;
  }
}

}  // namespace quire
