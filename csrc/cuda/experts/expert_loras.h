// What adapters add to the products of experts: as to a linear's, of segments of an expert and an adapter.
#pragma once

#include "experts/plan.h"
#include "quire/kernels/expert_ops.h"
#include "quire/kernels/launch_context.h"

namespace quire::cuda {

// Of a plan's slots, those of one expert and adapter side by side, in segments that add_lora takes.
struct ExpertLoraBatch {
  int32_t* rows;          // [slots]
  LoraSegment* segments;  // [max_segments] whose slot is an index of:
  LoraSlot* gate_up;      // [max_segments] matrices of one expert, where an adapter's first segment is
  LoraSlot* down;
  int max_segments;
};

// Rounded up to 256.
size_t expert_lora_batch_bytes(int64_t choices, int num_experts, int max_loras);
ExpertLoraBatch place_expert_lora_batch(void* memory, int64_t choices, int num_experts, int max_loras);

// Each token's row to its slots, of any width and alignment. The next kernel may read the plan at once.
void spread_to_slots(const LaunchContext& ctx, const ExpertPlan& plan, TensorView slots, TensorView x,
                     int top_k);

// Of a plan that is sorted, once. `row_slots`: of its tokens. The next kernel may read the plan at once, but
// not the batch.
void segment_by_adapter(const LaunchContext& ctx, const ExpertPlan& plan, const ExpertLoraBatch& batch,
                        const ExpertLoraArgs& loras, const int32_t* row_slots, int num_experts);

// out[slot] += b (a x[slot]) of the slot's expert and its token's adapter, with `slots` gate_up's of the
// batch or down's. A kernel between this and segment_by_adapter has waited for its inputs before it let the
// next one start. `h`: [slots, product.max_total_rank] of x's dtype, scratch.
void add_expert_loras(const LaunchContext& ctx, const ExpertLoraArgs::Product& product,
                      const ExpertPlan& plan, const ExpertLoraBatch& batch, const LoraSlot* slots,
                      TensorView out, TensorView x, void* h);

}  // namespace quire::cuda
