#include "attention/selector.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "common/launch.h"
#include "ops.h"

namespace quire::cuda {
namespace {

bool is_power_of_two(int x) { return x > 0 && (x & (x - 1)) == 0; }

}  // namespace

const char* attention_kernel_name(AttentionKernel kernel) {
  switch (kernel) {
    case AttentionKernel::kWgmma: return "wgmma";
    case AttentionKernel::kMma: return "mma";
    default: return "simt";
  }
}

const char* attention_kernel_refusal(AttentionKernel kernel, const AttentionFeatures& features,
                                     int compute_capability) {
  const int d = features.head_size;
  // What the layout of a page asks for.
  if (features.block_size < 16 || !is_power_of_two(features.block_size))
    return "block size is not a power of two of at least 16";
  if (d <= 0 || d % 16 != 0) return "head size is not a multiple of 16";
  if (d > 256) return "head size is above 256";
  const bool is_16_bit = features.dtype == DType::kBFloat16 || features.dtype == DType::kFloat16;
  switch (kernel) {
    case AttentionKernel::kSimt:
      return is_16_bit || features.dtype == DType::kFloat32 ? nullptr
                                                            : "dtype is not float32, float16 or bfloat16";
    case AttentionKernel::kMma:
      if (!is_16_bit) return "dtype is not float16 or bfloat16";
      if (compute_capability < 80) return "compute capability is below 8.0";
      return d == 64 || d == 80 || d == 96 || d == 128 || d == 256
                 ? nullptr
                 : "head size is not 64, 80, 96, 128 or 256";
    case AttentionKernel::kWgmma:
      if (!is_16_bit) return "dtype is not float16 or bfloat16";
      if (compute_capability / 10 != 9) return "compute capability is not 9.x";
      return d == 64 || d == 128 ? nullptr : "head size is not 64 or 128";
  }
  return "unknown kernel";
}

AttentionKernel select_attention_kernel(const AttentionFeatures& features, int compute_capability) {
  const char* wanted = std::getenv("QUIRE_ATTENTION_KERNEL");
  AttentionKernel best = AttentionKernel::kSimt;
  bool found = false;
  for (const AttentionKernel kernel : kAttentionKernels) {
    if (attention_kernel_refusal(kernel, features, compute_capability) != nullptr) continue;
    if (wanted != nullptr && std::strcmp(wanted, attention_kernel_name(kernel)) == 0) return kernel;
    if (!found) best = kernel;
    found = true;
  }
  return best;
}

void explain_attention_kernel(const AttentionFeatures& features, int compute_capability, char* text,
                              size_t size) {
  const AttentionKernel chosen = select_attention_kernel(features, compute_capability);
  size_t used = 0;
  const auto append = [&](const char* format, const char* a, const char* b) {
    if (used >= size) return;
    const int written = std::snprintf(text + used, size - used, format, a, b);
    if (written > 0) used += static_cast<size_t>(written);
  };
  append("%s%s", attention_kernel_name(chosen), "");
  const char* separator = " (";
  for (const AttentionKernel kernel : kAttentionKernels) {
    const char* reason = attention_kernel_refusal(kernel, features, compute_capability);
    if (reason == nullptr) continue;
    append("%s%s: ", separator, attention_kernel_name(kernel));
    append("%s%s", reason, "");
    separator = "; ";
  }
  if (separator[0] == ';') append("%s%s", ")", "");
}

const char* attention_refusal(const AttentionFeatures& features) {
  const int compute_capability = device_limits().compute_capability;
  const char* reason = nullptr;
  for (const AttentionKernel kernel : kAttentionKernels) {
    reason = attention_kernel_refusal(kernel, features, compute_capability);
    if (reason == nullptr) return nullptr;
  }
  return reason;
}

}  // namespace quire::cuda
