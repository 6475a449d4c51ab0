// What adapters add to the products of experts.
#pragma once

#include "experts/plan.h"
#include "quire/kernels/expert_ops.h"
#include "quire/kernels/launch_context.h"

namespace quire::cuda {

// Each token's row to its slots, of any width and alignment. The next kernel may read the plan at once.
void spread_to_slots(const LaunchContext& ctx, const ExpertPlan& plan, TensorView slots, TensorView x,
                     int top_k);

// out[slot] += b (a x[slot]) of the slot's expert and its token's adapter. Rows of out and x lie one behind
// the other. `row_slots`: of the plan's tokens; `h`: [slots, product.max_total_rank] of x's dtype, scratch.
// The next kernel may read the plan at once.
void add_expert_loras(const LaunchContext& ctx, const ExpertLoraArgs::Product& product, int64_t slot_stride,
                      const int32_t* row_slots, const ExpertPlan& plan, TensorView out, TensorView x,
                      void* h);

}  // namespace quire::cuda
