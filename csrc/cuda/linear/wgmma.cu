#include "linear/wgmma.h"

#include "linear/wgmma.cuh"

namespace quire::cuda {
namespace {

// Of fewer rows the kernel of few_rows.cu is as quick, of more the library's.
constexpr int kMinRows = 9, kMaxRows = 64;

}  // namespace

bool has_wgmma_linear(TensorView out, TensorView x, const LinearWeight& weight) {
  const auto aligned = [](const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; };
  return device_limits().compute_capability / 10 == 9 && has_clusters() && x.shape[0] >= kMinRows &&
         x.shape[0] <= kMaxRows && weight.scales == nullptr && dtype_bytes(x.dtype) == 2 &&
         weight.dtype == x.dtype && (out.dtype == x.dtype || out.dtype == DType::kFloat32) &&
         weight.n % 16 == 0 && weight.k % 8 == 0 && x.stride[0] % 8 == 0 && out.stride[0] % 8 == 0 &&
         aligned(x.data) && aligned(out.data) && aligned(weight.data);
}

void linear_wgmma(const LaunchContext& ctx, TensorView out, TensorView x, const LinearWeight& weight,
                  const float* bias) {
  wgmma_linear::launch<false>(ctx, {out, x, weight, bias, Activation::kSilu});
}

void linear_wgmma_gated(const LaunchContext& ctx, TensorView out, TensorView x, const LinearWeight& weight,
                        const float* bias, Activation activation) {
  wgmma_linear::launch<true>(ctx, {out, x, weight, bias, activation});
}

}  // namespace quire::cuda
