// The adapters of the requests in the batch, and which rows of a step have which.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "layers/lora.h"
#include "worker/input_batch.h"
#include "worker/lora_store.h"

namespace quire {

// One per worker, on its thread. Where the kernels' memory is the host's, an adapter lies in a slot as it
// lies in the store.
class LoraSlots {
 public:
  // `targets` and `store` live longer. `max_num_batched_tokens`: rows of the largest step.
  LoraSlots(const LoraTargets& targets, const LoraStore& store, int32_t max_num_batched_tokens);

  // Throws InternalError for an adapter that the store has not.
  void apply(std::span<const LoraLoad> loads);
  // Which adapters the rows of the batch have, with so many tokens each. Null when none has one; else valid
  // until the next call.
  const LoraStep* prepare(InputBatch& batch, std::span<const int32_t> num_scheduled);

 private:
  struct Slot {
    LoraId id = 0;
    std::shared_ptr<const LoraWeights> weights;
  };
  const LoraTargets& targets_;
  const LoraStore& store_;
  std::vector<Slot> slots_;
  std::unordered_map<LoraId, int32_t> slot_by_id_;
  std::vector<LoraSlot> table_;  // [targets, slots]
  LoraStep step_;

  // Of the step at hand.
  std::vector<int32_t> row_slots_;   // of each row of the batch; -1: none
  std::vector<int32_t> num_tokens_;  // of each slot, then where its next one goes
  std::vector<int32_t> rows_, begin_, segment_slots_;
};

}  // namespace quire
