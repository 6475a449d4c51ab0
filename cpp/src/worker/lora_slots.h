// The adapters of the requests in the batch, and which rows of a step have which.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "layers/lora.h"
#include "worker/input_batch.h"
#include "worker/lora_memory.h"
#include "worker/lora_store.h"

namespace quire {

// One per worker, on its thread.
class LoraSlots {
 public:
  // `targets` and `store` live longer. `max_num_batched_tokens`: rows of the largest step.
  LoraSlots(const LoraTargets& targets, const LoraStore& store, std::unique_ptr<LoraMemory> memory,
            int32_t max_num_batched_tokens);

  // Throws InternalError for an adapter that the store has not.
  void apply(std::span<const LoraLoad> loads);
  // Which adapters the rows of the batch have, with so many tokens each; valid until the next call.
  LoraRows prepare(InputBatch& batch, std::span<const int32_t> num_scheduled);
  // When all of the step that was prepared last was enqueued.
  void end_step() {
    if (!segments_.empty()) memory_->end_step(segments_);
  }
  // A step that has them where `batch` says, and changes so much.
  LoraStep step(const LoraBatch& batch, LoraUse use) const {
    return {&targets_, memory_->table(), batch, use == LoraUse::kExperts};
  }
  // The most that a step changes.
  LoraUse max_use() const { return targets_.has_mixtures() ? LoraUse::kExperts : LoraUse::kLinears; }

 private:
  void add_segments(int32_t slot, int32_t begin, int32_t end);

  const LoraTargets& targets_;
  const LoraStore& store_;
  std::unique_ptr<LoraMemory> memory_;
  std::vector<LoraId> ids_;                 // by slot; 0: nothing lies there
  std::vector<bool> slot_changes_experts_;  // by slot
  std::unordered_map<LoraId, int32_t> slot_by_id_;

  // Of the step at hand.
  std::vector<int32_t> row_slots_;   // of each row of the batch; -1: none
  std::vector<int32_t> num_tokens_;  // of each slot, then where its next one goes
  std::vector<int32_t> rows_;
  std::vector<int32_t> token_slots_;  // as LoraRows has them
  std::vector<LoraSegment> segments_;
};

}  // namespace quire
