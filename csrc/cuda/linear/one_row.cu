#include "linear/one_row.h"

#include "linear/one_row.cuh"

namespace quire::cuda {
bool has_one_row_kernel(TensorView out, TensorView x, const LinearWeight& weight) {
  const auto aligned = [](const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; };
  return x.shape[0] == 1 && weight.scales == nullptr && dtype_bytes(x.dtype) == 2 &&
         weight.dtype == x.dtype && (out.dtype == x.dtype || out.dtype == DType::kFloat32) &&
         weight.k % 8 == 0 && aligned(x.data) && aligned(weight.data);
}

void linear_one_row(const LaunchContext& ctx, TensorView out, TensorView x, const LinearWeight& weight,
                    const float* bias) {
  if (x.dtype == DType::kBFloat16) {
    launch_rows(ctx, rows_of<bf16>(out, x, weight, bias));
  } else {
    launch_rows(ctx, rows_of<fp16>(out, x, weight, bias));
  }
  check_launch(ctx, "linear_one_row", out);
}

void linear_one_row_gated(const LaunchContext& ctx, TensorView out, TensorView x, const LinearWeight& weight,
                          const float* bias, Activation activation) {
  if (x.dtype == DType::kBFloat16) {
    launch_rows(ctx, GatedLinearRows<bf16>{rows_of<bf16>(out, x, weight, bias), activation});
  } else {
    launch_rows(ctx, GatedLinearRows<fp16>{rows_of<fp16>(out, x, weight, bias), activation});
  }
  check_launch(ctx, "linear_one_row_gated", out);
}

}  // namespace quire::cuda
