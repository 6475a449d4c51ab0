// Weights in the form that a table reads, and what multiplies by them.
#pragma once

#include "kernel_test.h"

namespace quire {

class LinearFixture : public KernelTest {
 protected:
  struct Packed {
    Memory memory;
    LinearWeight weight;
  };
  // The weight in the form that the table wants to read.
  Packed pack(const Tensor& rows, DType dtype) {
    const int64_t n = rows.view().shape[0], k = rows.view().shape[1];
    Packed packed{Memory(kernels().linear_weight_bytes(n, k, dtype), 0), {}};
    const bool packs = kernels().linear_pack_rows != nullptr;
    packed.weight = {.data = packed.memory.data(), .n = n, .k = k, .dtype = dtype, .packed = packs};
    if (packs) {
      kernels().linear_pack_rows(context(), packed.weight, 0, rows);
    } else {
      rows.store_to(packed.memory.data(), dtype);
    }
    return packed;
  }
  void run(const LaunchContext& ctx, const Tensor& out, TensorView x, const LinearWeight& weight,
           const float* bias = nullptr) {
    kernels().linear(ctx, out, x, weight, bias);
  }
  void reserve(int64_t m, int64_t n, int64_t k, DType dtype) {
    set_workspace(kernels().linear_workspace_bytes(m, {.n = n, .k = k, .dtype = dtype}));
  }
};

}  // namespace quire
