// Which kernel tables this build and this machine offer.
#pragma once

#include <span>
#include <string_view>

#include "quire/kernels/ops.h"

namespace quire {

// The CPU tables that can run on this machine, best first: a subset of "amx", "avx512", "avx2",
// "generic" (always present). The tables live as long as the process. Thread-safe.
std::span<const KernelTable* const> cpu_kernel_tables();

// The table for CUDA device `index`; null when there is no such device, this build has no CUDA, or none of
// its machine code runs there.
const KernelTable* cuda_kernel_table(int32_t index);

// The table to use for `backend` ("cpu", or "cuda": device 0), or null when there is none. The environment
// variable QUIRE_CPU_ISA names a variant to use instead of the best; an unavailable one is ignored.
const KernelTable* find_kernel_table(std::string_view backend);

}  // namespace quire
