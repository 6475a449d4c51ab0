// Products of experts with several tokens each, on Hopper's asynchronous tensor cores.
#pragma once

#include "experts/product.cuh"
#include "quire/kernels/launch_context.h"

namespace quire::cuda {

// Whether the device has them. T is 16-bit; rows of x, of the weights and of the outputs begin at multiples
// of 16 bytes.
bool has_grouped_wgmma();

// Slots of an item, of so many choices.
int wgmma_item_slots(int64_t choices, int num_experts);
// Whether x of a gated product is tokens' rows then, else it is slots'.
bool wgmma_gathers(int item_slots);

template <typename T>
void multiply_grouped_wgmma(const LaunchContext& ctx, const ExpertProduct<T>& product, int num_experts,
                            bool is_gated);

}  // namespace quire::cuda
