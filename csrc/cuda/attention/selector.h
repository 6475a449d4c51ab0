// Which attention kernel runs, and why not another.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/launch.h"
#include "quire/kernels/attention_backend.h"

namespace quire::cuda {

// Best first.
enum class AttentionKernel : int32_t {  // AttentionLayer::kernel
  kWgmma,                               // prefill with Hopper's asynchronous tensor cores; decode as kMma
  kMma,                                 // mma.sync, sm_80 and later
  kSimt,                                // plain arithmetic in fp32, any dtype and head size; slow
};
constexpr AttentionKernel kAttentionKernels[] = {AttentionKernel::kWgmma, AttentionKernel::kMma,
                                                 AttentionKernel::kSimt};

const char* attention_kernel_name(AttentionKernel kernel);

// Null when `kernel` can do the layer on a device of these limits, else why not.
const char* attention_kernel_refusal(AttentionKernel kernel, const AttentionLayer& layer,
                                     const DeviceLimits& limits);

// The best kernel that does not refuse; kSimt when all do. The environment variable QUIRE_ATTENTION_KERNEL
// (wgmma, mma or simt) names one to prefer: it is read here, once for each layer, and at no launch.
AttentionKernel select_attention_kernel(const AttentionLayer& layer, const DeviceLimits& limits);

// Blocks of a cluster that share an item of prompts' keys: kPrefillPair where that is quicker, else 1, or,
// where there are such kernels, what the environment variable QUIRE_PREFILL_BLOCKS says. Of a batch's plan
// and its launches the same.
int prefill_blocks(const AttentionMetadata& batch, const AttentionLayer& layer);

// "mma (wgmma: head size is not 64 or 128)", for a log; at most `size` bytes with the final 0.
void explain_attention_kernel(const AttentionLayer& layer, const DeviceLimits& limits, char* text,
                              size_t size);

}  // namespace quire::cuda
