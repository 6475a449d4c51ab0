// As the table's op, with scratch of the caller's.
#pragma once

#include "quire/kernels/launch_context.h"
#include "quire/kernels/lora_ops.h"

namespace quire::cuda {

// Modules may have outputs in common, as long as no two of them that one slot has do. `h`: [T,
// max_total_rank] of x's dtype. What the batch has was there before the kernel in front let this one start.
// Up to `few_rows`, how many segments there are decides who has what.
void add_lora(const LaunchContext& ctx, const LoraArgs& args, void* h, int64_t few_rows);

}  // namespace quire::cuda
