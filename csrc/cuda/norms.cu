// Norms over the last dimension. A row is read once, kept in registers, and written once.
//
// A row takes a block; a head, of up to 64 vectors, a group of up to 32 lanes. Which threads add up which
// elements depends on the row's length alone, never on alignment or on how many rows there are, so that a
// row's result is its own, bitwise, and that one kernel and those that it stands for agree.
#include <algorithm>

#include "common/dependent_launch.cuh"
#include "common/rms_norm.cuh"
#include "ops.h"

namespace quire::cuda {
namespace {

enum class Norm { kRms, kAddRms, kNormAddRms, kLayer };

struct NormArgs {
  void* out = nullptr;
  const void* x = nullptr;
  void* residual = nullptr;        // kAddRms, kNormAddRms
  const void* x_weight = nullptr;  // kNormAddRms
  const void* weight = nullptr;
  const void* bias = nullptr;  // kLayer, may be null
  // Strides of tokens and heads, in elements.
  int64_t out_stride[2] = {}, x_stride[2] = {}, residual_stride = 0;
  int64_t rows = 0;
  int32_t heads = 1, n = 0;
  float eps = 0.0F, weight_offset = 0.0F;
  float x_eps = 0.0F, x_weight_offset = 0.0F;  // kNormAddRms
};

// Elements [first, first + kSize) of a row of n, zeros beyond its end.
template <bool kAligned, typename T>
__device__ __forceinline__ Vec<T> load_part(const T* row, int first, int n) {
  Vec<T> v;
  if constexpr (kAligned) {
    // As words until its elements are needed: two of 16 bits have a register then, not each its own.
    uint4 words{};
    if (first < n) words = *reinterpret_cast<const uint4*>(row + first);
    v = __builtin_bit_cast(Vec<T>, words);
  } else {
#pragma unroll
    for (int j = 0; j < Vec<T>::kSize; ++j) v.x[j] = first + j < n ? row[first + j] : from_float<T>(0.0F);
  }
  return v;
}

template <bool kAligned, typename T>
__device__ __forceinline__ void store_part(T* row, int first, int n, const Vec<T>& v) {
  if constexpr (kAligned) {
    if (first < n) v.store(row + first);
  } else {
#pragma unroll
    for (int j = 0; j < Vec<T>::kSize; ++j)
      if (first + j < n) row[first + j] = v.x[j];
  }
}

// One block per row; thread i holds vectors i, i + blockDim.x, ...
template <typename T, int kVectors, bool kAligned, Norm kNorm>
__global__ void __launch_bounds__(1024) norm_kernel(NormArgs a) {
  constexpr int kSize = Vec<T>::kSize;
  constexpr bool kAdds = kNorm == Norm::kAddRms || kNorm == Norm::kNormAddRms;
  // Early loads hide behind the kernel in front, or behind a sum, where registers allow.
  constexpr bool kEarly = kVectors <= 2;
  __shared__ float shared[33];
  let_next_start();
  const int64_t token = a.heads == 1 ? blockIdx.x : blockIdx.x / a.heads;
  const int64_t head = a.heads == 1 ? 0 : blockIdx.x % a.heads;
  const T* x = static_cast<const T*>(a.x) + token * a.x_stride[0] + head * a.x_stride[1];
  T* out = static_cast<T*>(a.out) + token * a.out_stride[0] + head * a.out_stride[1];
  T* residual = static_cast<T*>(a.residual) + token * a.residual_stride;
  const T* x_weight = static_cast<const T*>(a.x_weight);
  const T* weight = static_cast<const T*>(a.weight);
  const auto first = [](int i) {
    return (static_cast<int>(threadIdx.x) + i * static_cast<int>(blockDim.x)) * kSize;
  };

  const auto load = [&](Vec<T>* to, const T* row) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) to[i] = load_part<kAligned>(row, first(i), a.n);
  };
  // The i-th vector of a row that was loaded early where there is room for it.
  const auto loaded = [&](const Vec<T>* early, const T* row, int i) {
    if constexpr (kEarly) {
      return early[i];
    } else {
      return load_part<kAligned>(row, first(i), a.n);
    }
  };

  Vec<T> v[kVectors], r[kVectors], w[kEarly ? kVectors : 1], xw[kEarly ? kVectors : 1];
  if constexpr (kEarly && kNorm == Norm::kNormAddRms) load(xw, x_weight);
  if constexpr (kEarly) load(w, weight);
  wait_for_inputs();
  load(v, x);
  if constexpr (kEarly && kAdds) load(r, residual);
  if constexpr (kNorm == Norm::kNormAddRms) {
    float sum = 0.0F;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) sum = squares(v[i], sum);
    const float scale = inverse_rms(block_sum(sum, shared), a.n, a.x_eps);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) v[i] = scaled(v[i], loaded(xw, x_weight, i), scale, a.x_weight_offset);
  }
  if constexpr (kAdds) {
    if constexpr (!kEarly) load(r, residual);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
#pragma unroll
      for (int j = 0; j < kSize; ++j)  // `+` and the fp32 product in front of it would be rounded once
        v[i].x[j] = from_float<T>(__fadd_rn(to_float(v[i].x[j]), to_float(r[i].x[j])));
      store_part<kAligned>(residual, first(i), a.n, v[i]);
    }
  }

  if constexpr (kNorm == Norm::kLayer) {
    float sum = 0.0F, square = 0.0F;
#pragma unroll
    for (int i = 0; i < kVectors; ++i)
#pragma unroll
      for (int j = 0; j < kSize; ++j) sum += to_float(v[i].x[j]);
    const float mean = block_sum(sum, shared) / static_cast<float>(a.n);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        const float d = first(i) + j < a.n ? to_float(v[i].x[j]) - mean : 0.0F;
        square = fmaf(d, d, square);
      }
    }
    const float scale = inverse_rms(block_sum(square, shared), a.n, a.eps);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const Vec<T> weights = loaded(w, weight, i);
      const Vec<T> biases =
          load_part<kAligned>(static_cast<const T*>(a.bias), first(i), a.bias != nullptr ? a.n : 0);
#pragma unroll
      for (int j = 0; j < kSize; ++j)
        v[i].x[j] = from_float<T>(
            fmaf((to_float(v[i].x[j]) - mean) * scale, to_float(weights.x[j]), to_float(biases.x[j])));
      store_part<kAligned>(out, first(i), a.n, v[i]);
    }
  } else {
    float sum = 0.0F;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) sum = squares(v[i], sum);
    const float scale = inverse_rms(block_sum(sum, shared), a.n, a.eps);
#pragma unroll
    for (int i = 0; i < kVectors; ++i)
      store_part<kAligned>(out, first(i), a.n, scaled(v[i], loaded(w, weight, i), scale, a.weight_offset));
  }
}

// `lanes` (a power of two) neighbours share a row of at most 2 * lanes vectors.
template <typename T, bool kAligned>
__global__ void __launch_bounds__(256) head_rms_norm_kernel(NormArgs a, int lanes) {
  constexpr int kSize = Vec<T>::kSize;
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  const int64_t rows_per_block = static_cast<int>(blockDim.x) / lanes;
  const int64_t row = blockIdx.x * rows_per_block + static_cast<int>(threadIdx.x) / lanes;
  // Lanes without a row stay for the shuffles.
  const int n = row < a.rows ? a.n : 0;
  const int64_t token = row / a.heads, head = row % a.heads;
  const T* x = static_cast<const T*>(a.x) + token * a.x_stride[0] + head * a.x_stride[1];
  T* out = static_cast<T*>(a.out) + token * a.out_stride[0] + head * a.out_stride[1];
  const T* weight = static_cast<const T*>(a.weight);
  const int first = lane * kSize, second = (lane + lanes) * kSize;
  let_next_start();
  const Vec<T> w0 = load_part<kAligned>(weight, first, n), w1 = load_part<kAligned>(weight, second, n);
  wait_for_inputs();
  const Vec<T> v0 = load_part<kAligned>(x, first, n), v1 = load_part<kAligned>(x, second, n);
  float sum = squares(v1, squares(v0, 0.0F));
  for (int offset = lanes / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xFFFFFFFFU, sum, offset);
  const float scale = inverse_rms(sum, a.n, a.eps);
  store_part<kAligned>(out, first, n, scaled(v0, w0, scale, a.weight_offset));
  store_part<kAligned>(out, second, n, scaled(v1, w1, scale, a.weight_offset));
}

template <typename T>
bool aligned(const NormArgs& a) {
  const auto at = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  const int64_t strides =
      a.x_stride[0] | a.x_stride[1] | a.out_stride[0] | a.out_stride[1] | a.residual_stride | a.n;
  return at(a.out) && at(a.x) && at(a.residual) && at(a.x_weight) && at(a.weight) && at(a.bias) &&
         strides % Vec<T>::kSize == 0;
}

constexpr int kHeadVectors = 64;

template <Norm kNorm>
void launch(const LaunchContext& ctx, const char* name, const NormArgs& a, TensorView x) {
  if (a.rows == 0 || a.n == 0) return;
  dispatch_float(x.dtype, [&](auto type) {
    using T = decltype(type);
    const int vectors = ceil_div(a.n, Vec<T>::kSize);
    const bool fits_vectors = aligned<T>(a);
    if constexpr (kNorm == Norm::kRms) {
      if (x.rank == 3 && vectors <= kHeadVectors) {
        int lanes = 1;
        while (lanes < 32 && lanes < vectors) lanes *= 2;
        const auto blocks = static_cast<unsigned>(ceil_div<int64_t>(a.rows, 256 / lanes));
        if (fits_vectors) {
          launch_dependent(ctx, head_rms_norm_kernel<T, true>, blocks, 256, 0, a, lanes);
        } else {
          launch_dependent(ctx, head_rms_norm_kernel<T, false>, blocks, 256, 0, a, lanes);
        }
        return;
      }
    }
    if (vectors > 8 * 1024) return note_error(ctx, name, "", "the rows are too long");
    // Two vectors a thread, more only where a block has no more threads.
    const auto threads = static_cast<unsigned>(std::min(1024, ceil_div(ceil_div(vectors, 2), 32) * 32));
    const auto blocks = static_cast<unsigned>(a.rows);
    if (!fits_vectors) {
      launch_dependent(ctx, norm_kernel<T, 8, false, kNorm>, blocks, threads, 0, a);
    } else if (vectors <= 2 * static_cast<int>(threads)) {
      launch_dependent(ctx, norm_kernel<T, 2, true, kNorm>, blocks, threads, 0, a);
    } else {
      launch_dependent(ctx, norm_kernel<T, 8, true, kNorm>, blocks, threads, 0, a);
    }
  });
  check_launch(ctx, name, x);
}

}  // namespace

void rms_norm(const LaunchContext& ctx, TensorView out, TensorView x, TensorView weight, float eps,
              float weight_offset) {
  const bool has_heads = x.rank == 3;
  const NormArgs args = {.out = out.data,
                         .x = x.data,
                         .weight = weight.data,
                         .out_stride = {out.stride[0], has_heads ? out.stride[1] : 0},
                         .x_stride = {x.stride[0], has_heads ? x.stride[1] : 0},
                         .rows = has_heads ? x.shape[0] * x.shape[1] : x.shape[0],
                         .heads = has_heads ? static_cast<int32_t>(x.shape[1]) : 1,
                         .n = static_cast<int32_t>(has_heads ? x.shape[2] : x.shape[1]),
                         .eps = eps,
                         .weight_offset = weight_offset};
  launch<Norm::kRms>(ctx, "rms_norm", args, x);
}

void fused_add_rms_norm(const LaunchContext& ctx, TensorView out, TensorView residual, TensorView x,
                        TensorView weight, float eps, float weight_offset) {
  const NormArgs args = {.out = out.data,
                         .x = x.data,
                         .residual = residual.data,
                         .weight = weight.data,
                         .out_stride = {out.stride[0], 0},
                         .x_stride = {x.stride[0], 0},
                         .residual_stride = residual.stride[0],
                         .rows = x.shape[0],
                         .heads = 1,
                         .n = static_cast<int32_t>(x.shape[1]),
                         .eps = eps,
                         .weight_offset = weight_offset};
  launch<Norm::kAddRms>(ctx, "fused_add_rms_norm", args, x);
}

void fused_norm_add_rms_norm(const LaunchContext& ctx, TensorView out, TensorView residual, TensorView x,
                             const RmsNormParams& x_norm, const RmsNormParams& norm) {
  const NormArgs args = {.out = out.data,
                         .x = x.data,
                         .residual = residual.data,
                         .x_weight = x_norm.weight.data,
                         .weight = norm.weight.data,
                         .out_stride = {out.stride[0], 0},
                         .x_stride = {x.stride[0], 0},
                         .residual_stride = residual.stride[0],
                         .rows = x.shape[0],
                         .heads = 1,
                         .n = static_cast<int32_t>(x.shape[1]),
                         .eps = norm.eps,
                         .weight_offset = norm.weight_offset,
                         .x_eps = x_norm.eps,
                         .x_weight_offset = x_norm.weight_offset};
  launch<Norm::kNormAddRms>(ctx, "fused_norm_add_rms_norm", args, x);
}

void layer_norm(const LaunchContext& ctx, TensorView out, TensorView x, TensorView weight, TensorView bias,
                float eps) {
  const NormArgs args = {.out = out.data,
                         .x = x.data,
                         .weight = weight.data,
                         .bias = bias.data,
                         .out_stride = {out.stride[0], 0},
                         .x_stride = {x.stride[0], 0},
                         .rows = x.shape[0],
                         .heads = 1,
                         .n = static_cast<int32_t>(x.shape[1]),
                         .eps = eps};
  launch<Norm::kLayer>(ctx, "layer_norm", args, x);
}

}  // namespace quire::cuda
