// The rows (rows.cuh) of a linear of one row.
#pragma once

#include "common/activation.cuh"
#include "common/rows.cuh"
#include "quire/kernels/ops.h"

namespace quire::cuda {

template <typename T>
struct LinearRows {
  using Element = T;
  struct Shared {};
  using Constants = float;
  static constexpr int kRowsOfOutput = 1;
  static constexpr bool kSegmented = false;

  const T* matrix;  // [n, k]
  const T* x;       // [k]
  const float* bias;
  void* out;  // [n]: T, or float
  int n, k;
  bool is_float_out;

  __host__ __device__ int num_outputs() const { return n; }
  __host__ __device__ int segments() const { return 1; }
  __host__ __device__ int depth() const { return k; }
  __device__ void start(Shared& /*shared*/) const { let_next_start(); }
  __device__ void started(Shared& /*shared*/) const {}
  __device__ int run(int output) const { return n - output; }
  __device__ const T* weight(const Shared& /*shared*/, int output, int /*segment*/, int /*row*/) const {
    return matrix + static_cast<int64_t>(output) * k;
  }
  __device__ const T* values() const { return x; }
  __device__ float scale(const Shared& /*shared*/, int /*segment*/) const { return 1.0F; }
  __device__ float constants(const Shared& /*shared*/, int output) const {
    return bias != nullptr ? bias[output] : 0.0F;
  }
  __device__ void finish(const Shared& /*shared*/, int output, const float (&sums)[1], float added) const {
    const float y = sums[0] + added;
    if (is_float_out) {
      static_cast<float*>(out)[output] = y;
    } else {
      static_cast<T*>(out)[output] = from_float<T>(y);
    }
  }
};

// The same of a gate and what it is a gate of, which lies n / 2 rows behind.
template <typename T>
struct GatedLinearRows {
  using Element = T;
  struct Shared {};
  using Constants = float2;
  static constexpr int kRowsOfOutput = 2;
  static constexpr bool kSegmented = false;

  LinearRows<T> all;
  Activation activation;

  __host__ __device__ int num_outputs() const { return all.n / 2; }
  __host__ __device__ int segments() const { return 1; }
  __host__ __device__ int depth() const { return all.k; }
  __device__ void start(Shared& /*shared*/) const { let_next_start(); }
  __device__ void started(Shared& /*shared*/) const {}
  __device__ int run(int output) const { return num_outputs() - output; }
  __device__ const T* weight(const Shared& /*shared*/, int output, int /*segment*/, int row) const {
    return all.matrix + static_cast<int64_t>(output + row * num_outputs()) * all.k;
  }
  __device__ const T* values() const { return all.x; }
  __device__ float scale(const Shared& /*shared*/, int /*segment*/) const { return 1.0F; }
  __device__ float2 constants(const Shared& /*shared*/, int output) const {
    if (all.bias == nullptr) return {};
    return {all.bias[output], all.bias[output + num_outputs()]};
  }
  __device__ void finish(const Shared& /*shared*/, int output, const float (&sums)[2], float2 added) const {
    const float gate = to_float(from_float<T>(sums[0] + added.x));
    const float up = to_float(from_float<T>(sums[1] + added.y));
    static_cast<T*>(all.out)[output] = from_float<T>(activate_gated(gate, up, activation));
  }
};

template <typename T>
LinearRows<T> rows_of(TensorView out, TensorView x, const LinearWeight& weight, const float* bias) {
  return {.matrix = static_cast<const T*>(weight.data),
          .x = static_cast<const T*>(x.data),
          .bias = bias,
          .out = out.data,
          .n = static_cast<int>(weight.n),
          .k = static_cast<int>(weight.k),
          .is_float_out = out.dtype == DType::kFloat32};
}

}  // namespace quire::cuda
