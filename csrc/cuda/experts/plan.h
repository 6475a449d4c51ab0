// Tokens sorted by expert, in the device's memory.
#pragma once

#include <vector_types.h>

#include <cstdint>

#include "quire/kernels/expert_ops.h"
#include "quire/kernels/launch_context.h"

namespace quire::cuda {

// Slots of one expert that are computed together. Its items are neighbours.
struct alignas(16) ExpertItem {
  int32_t expert;  // -1 beyond the last item
  int32_t first_slot, count;
  int16_t index, of;  // among its expert's items, which are so many
};

// A slot is a token at one of its experts; slots of one expert lie together, and are cut into items of so
// many.
struct ExpertPlan {
  int32_t* token;         // [slots] of each slot
  int32_t* slot;          // [choices] of each choice; -1: none
  ExpertItem* items;      // [max_items]
  int32_t* num_items;     // [1]
  int32_t* first_slot;    // [E + 1] of each expert
  int32_t* num_segments;  // [2] 0: for who counts on (expert_loras.h)
  int32_t* block_counts;  // [sorting blocks, E] choices of each expert
  int num_slots;          // room for so many
  int max_items;
  int item_slots;  // at most, of an item
};

// Items of `choices` choices among `num_experts`, at most.
int max_expert_items(int64_t choices, int num_experts, int item_slots);
// Rounded up to 256.
size_t expert_plan_bytes(int64_t choices, int num_experts, int max_items);
ExpertPlan place_expert_plan(void* memory, int64_t choices, int num_experts, int max_items, int item_slots);

// In the order of experts; within one the order is any.
void sort_by_expert(const LaunchContext& ctx, const ExpertPlan& plan, const int32_t* expert_ids,
                    int64_t choices, int top_k, int num_experts);

// Tokens' rows, each of which is copied to its slots: in vectors of 16 bytes.
struct SpreadRows {
  uint4* out;  // [slots, n]
  const uint4* x;
  int64_t x_stride;
  int n;
};

// The same, and the rows that go with it, where one kernel does both sooner than two; else false, and
// nothing.
bool sort_and_spread(const LaunchContext& ctx, const ExpertPlan& plan, const int32_t* expert_ids,
                     int64_t choices, int top_k, int num_experts, const SpreadRows& rows);

// The same of tokens that choose first, as route_to_experts has them; where they are few enough that one
// block does it sooner than two kernels.
bool can_choose_and_sort(const ExpertRoutingArgs& routing);
void choose_and_sort(const LaunchContext& ctx, const ExpertPlan& plan, const ExpertRoutingArgs& routing);

}  // namespace quire::cuda
