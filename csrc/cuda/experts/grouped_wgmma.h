// Products of experts with many tokens each, on Hopper's asynchronous tensor cores.
#pragma once

#include "experts/product.cuh"
#include "quire/kernels/launch_context.h"

namespace quire::cuda {

// Of an item, at most.
constexpr int kWgmmaItemSlots = 128;

// Whether the device has them. T is 16-bit; x has a row for each slot, whether the product is gated or not;
// rows of x, of the weights and of the outputs begin at multiples of 16 bytes.
bool has_grouped_wgmma();

template <typename T>
void multiply_grouped_wgmma(const LaunchContext& ctx, const ExpertProduct<T>& product, int num_experts,
                            bool is_gated);

}  // namespace quire::cuda
