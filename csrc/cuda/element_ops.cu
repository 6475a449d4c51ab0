// Lookups, activations and other element by element operations. One thread per 16 bytes of output; a block
// covers a stretch of one row.
#include <algorithm>

#include "common/activation.cuh"
#include "common/dependent_launch.cuh"
#include "common/types.cuh"
#include "ops.h"

namespace quire::cuda {
namespace {

constexpr int kThreads = 256;

bool aligned(const void* data, int64_t stride_bytes) {
  return (reinterpret_cast<uintptr_t>(data) | static_cast<uintptr_t>(stride_bytes)) % 16 == 0;
}

// Row and first unit of the calling thread, with `chunks` blocks to a row, once the inputs are there.
struct Place {
  int64_t row, unit;
  __device__ explicit Place(int chunks)
      : row(blockIdx.x / chunks), unit(int64_t{blockIdx.x % chunks} * kThreads + threadIdx.x) {
    let_next_start();
    wait_for_inputs();
  }
};

// Launches `kernel`, which begins with a Place, with enough blocks for `rows` rows of `units` units.
template <typename... Params, typename... Args>
void launch_rows(const LaunchContext& ctx, void (*kernel)(int, Params...), int64_t rows, int64_t units,
                 Args... args) {
  const int64_t chunks = ceil_div<int64_t>(units, kThreads);
  if (rows * chunks == 0) return;
  launch_dependent(ctx, kernel, static_cast<unsigned>(rows * chunks), kThreads, 0, static_cast<int>(chunks),
                   args...);
}

// ---- lookups --------------------------------------------------------------------------------------

struct Lookup {
  void* out;
  const void* table;
  const int32_t* index;
  int64_t out_stride, table_stride, index_stride;  // in elements
  int64_t num_rows;                                // indices beyond them give zeros
  int32_t first;                                   // index of the table's first row
  int64_t n;                                       // elements of a row
};

// out[t, :] = table[index[t] - first, :], in units of 2, 4 or 16 bytes.
template <typename Unit>
__global__ void __launch_bounds__(kThreads) lookup_kernel(int chunks, Lookup a) {
  const Place at(chunks);
  if (at.unit >= a.n) return;
  const int64_t row = int64_t{a.index[at.row * a.index_stride]} - a.first;
  Unit value{};
  if (row >= 0 && row < a.num_rows) value = static_cast<const Unit*>(a.table)[row * a.table_stride + at.unit];
  static_cast<Unit*>(a.out)[at.row * a.out_stride + at.unit] = value;
}

template <typename From, typename To>
__global__ void __launch_bounds__(kThreads) converting_lookup_kernel(int chunks, Lookup a) {
  const Place at(chunks);
  if (at.unit >= a.n) return;
  const int64_t row = int64_t{a.index[at.row * a.index_stride]} - a.first;
  float value = 0.0F;
  if (row >= 0 && row < a.num_rows)
    value = to_float(static_cast<const From*>(a.table)[row * a.table_stride + at.unit]);
  static_cast<To*>(a.out)[at.row * a.out_stride + at.unit] = from_float<To>(value);
}

void copy_rows(const LaunchContext& ctx, Lookup a, int64_t rows, int64_t element_bytes) {
  const int64_t row_bytes = a.n * element_bytes;
  if (aligned(a.out, a.out_stride * element_bytes) && aligned(a.table, a.table_stride * element_bytes) &&
      row_bytes % 16 == 0) {
    const int64_t per_unit = 16 / element_bytes;
    a.out_stride /= per_unit;
    a.table_stride /= per_unit;
    a.n /= per_unit;
    launch_rows(ctx, lookup_kernel<uint4>, rows, a.n, a);
  } else if (element_bytes == 2) {
    launch_rows(ctx, lookup_kernel<uint16_t>, rows, a.n, a);
  } else {
    launch_rows(ctx, lookup_kernel<uint32_t>, rows, a.n, a);
  }
}

// ---- activations ----------------------------------------------------------------------------------

template <Activation kActivation, bool kMul>
__device__ __forceinline__ float activate_one(float x, float factor) {
  if constexpr (kMul) {
    return activate_gated<kActivation>(x, factor);
  } else {
    return activated<kActivation>(x);
  }
}

// With kMul the factors are n columns beyond what they are multiplied with. x and out may be the same.
template <typename T, Activation kActivation, bool kMul>
__global__ void __launch_bounds__(kThreads)
    activation_kernel(int chunks, T* out, int64_t out_stride, const T* x, int64_t x_stride, int64_t n) {
  constexpr int kSize = Vec<T>::kSize;
  const Place at(chunks);
  const int64_t i = at.unit * kSize;
  if (i >= n) return;
  const Vec<T> value = Vec<T>::load(x + at.row * x_stride + i);
  Vec<T> factor = value;
  if constexpr (kMul) factor = Vec<T>::load(x + at.row * x_stride + n + i);
  Vec<T> result;
#pragma unroll
  for (int j = 0; j < kSize; ++j) {
    result.x[j] = from_float<T>(activate_one<kActivation, kMul>(to_float(value.x[j]), to_float(factor.x[j])));
  }
  result.store(out + at.row * out_stride + i);
}

template <typename T, Activation kActivation, bool kMul>
__global__ void __launch_bounds__(kThreads)
    activation_scalar_kernel(int chunks, T* out, int64_t out_stride, const T* x, int64_t x_stride,
                             int64_t n) {
  const Place at(chunks);
  if (at.unit >= n) return;
  const T* row = x + at.row * x_stride;
  const float factor = kMul ? to_float(row[n + at.unit]) : 1.0F;
  out[at.row * out_stride + at.unit] =
      from_float<T>(activate_one<kActivation, kMul>(to_float(row[at.unit]), factor));
}

template <Activation kActivation, bool kMul>
void launch_activation(const LaunchContext& ctx, TensorView out, TensorView x) {
  const int64_t n = out.shape[1], bytes = static_cast<int64_t>(dtype_bytes(x.dtype));
  const bool vectors =
      aligned(out.data, out.stride[0] * bytes) && aligned(x.data, x.stride[0] * bytes) && n * bytes % 16 == 0;
  dispatch_float(x.dtype, [&](auto type) {
    using T = decltype(type);
    const auto kernel =
        vectors ? activation_kernel<T, kActivation, kMul> : activation_scalar_kernel<T, kActivation, kMul>;
    launch_rows(ctx, kernel, x.shape[0], vectors ? n / Vec<T>::kSize : n, out.as<T>(), out.stride[0],
                static_cast<const T*>(x.data), x.stride[0], n);
  });
}

template <bool kMul>
void activate(const LaunchContext& ctx, const char* name, TensorView out, TensorView x,
              Activation activation) {
  dispatch_activation(activation, [&](auto kind) {
    constexpr Activation kActivation = decltype(kind)::value;
    if constexpr (kMul || kActivation != Activation::kClampedSwiglu)
      launch_activation<kActivation, kMul>(ctx, out, x);
  });
  check_launch(ctx, name, x);
}

// ---- logits ---------------------------------------------------------------------------------------

__global__ void __launch_bounds__(kThreads)
    soft_cap_kernel(int chunks, float* x, int64_t stride, int64_t n, float cap, bool vectors) {
  const Place at(chunks);
  float* row = x + at.row * stride;
  const float inverse = 1.0F / cap;
  const auto capped = [&](float v) { return cap * tanhf(v * inverse); };
  const int64_t i = 4 * at.unit;
  if (vectors && i + 4 <= n) {
    Vec<float> v = Vec<float>::load(row + i);
#pragma unroll
    for (float& value : v.x) value = capped(value);
    v.store(row + i);
  } else {
    for (int64_t j = i; j < min(i + 4, n); ++j) row[j] = capped(row[j]);
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    scale_kernel(int chunks, T* x, int64_t stride, int64_t n, float factor) {
  const Place at(chunks);
  if (at.unit >= n) return;
  T& value = x[at.row * stride + at.unit];
  value = from_float<T>(to_float(value) * factor);
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    gate_rows_kernel(int chunks, T* x, int64_t x_stride, const float* gate, int64_t gate_stride, int64_t n) {
  const Place at(chunks);
  if (at.unit >= n) return;
  T& value = x[at.row * x_stride + at.unit];
  value = from_float<T>(__fdividef(to_float(value), 1.0F + __expf(-gate[at.row * gate_stride])));
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    add_kernel(int chunks, T* x, int64_t x_stride, const T* y, int64_t y_stride, int64_t n, bool vectors) {
  constexpr int kSize = Vec<T>::kSize;
  const Place at(chunks);
  T* row = x + at.row * x_stride;
  const T* addend = y + at.row * y_stride;
  const int64_t i = kSize * at.unit;
  if (vectors && i + kSize <= n) {
    Vec<T> sum = Vec<T>::load(row + i);
    const Vec<T> more = Vec<T>::load(addend + i);
#pragma unroll
    for (int j = 0; j < kSize; ++j) sum.x[j] = from_float<T>(to_float(sum.x[j]) + to_float(more.x[j]));
    sum.store(row + i);
  } else {
    for (int64_t j = i; j < min(i + kSize, n); ++j)
      row[j] = from_float<T>(to_float(row[j]) + to_float(addend[j]));
  }
}

// ---- random ---------------------------------------------------------------------------------------

__host__ __device__ uint64_t mix(uint64_t x) {  // the finaliser of SplitMix64 (Steele et al., 2014)
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31);
}

// Towards zero: rounding to nearest would reach the bound.
template <typename T>
__device__ T truncated(float x) {
  if constexpr (sizeof(T) == 4) {
    return x;
  } else if constexpr (std::is_same_v<T, bf16>) {
    return __float2bfloat16_rz(x);
  } else {
    return __float2half_rz(x);
  }
}

// Gives the numbers that the CPU's gives.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    fill_random_kernel(T* out, int64_t n, float scale, uint64_t base) {
  constexpr int kSize = Vec<T>::kSize;
  const int64_t step = int64_t{gridDim.x} * kThreads * kSize;
  const bool vectors = reinterpret_cast<uintptr_t>(out) % 16 == 0;
  for (int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kSize; i < n; i += step) {
    Vec<T> v;
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      const uint64_t bits = mix(base + static_cast<uint64_t>(i + j) * 0x9E3779B97F4A7C15U);
      // Not fused into one multiply-add, as the CPU's is not.
      const float unit =
          __fadd_rn(__fmul_rn(static_cast<float>(static_cast<uint32_t>(bits >> 40)), 0x1p-23F), -1.0F);
      v.x[j] = truncated<T>(__fmul_rn(unit, scale));
    }
    if (vectors && i + kSize <= n) {
      v.store(out + i);
    } else {
#pragma unroll
      for (int j = 0; j < kSize; ++j)
        if (i + j < n) out[i + j] = v.x[j];
    }
  }
}

}  // namespace

void embedding(const LaunchContext& ctx, TensorView out, TensorView ids, const LinearWeight& table,
               int32_t vocab_start) {
  const Lookup args = {.out = out.data,
                       .table = table.data,
                       .index = ids.as<int32_t>(),
                       .out_stride = out.stride[0],
                       .table_stride = table.k,
                       .index_stride = ids.stride[0],
                       .num_rows = table.n,
                       .first = vocab_start,
                       .n = table.k};
  if (table.dtype == out.dtype) {
    copy_rows(ctx, args, ids.shape[0], static_cast<int64_t>(dtype_bytes(out.dtype)));
  } else {
    dispatch_float(table.dtype, [&](auto from) {
      dispatch_float(out.dtype, [&](auto to) {
        launch_rows(ctx, converting_lookup_kernel<decltype(from), decltype(to)>, ids.shape[0], args.n, args);
      });
    });
  }
  check_launch(ctx, "embedding", out);
}

void gather_rows(const LaunchContext& ctx, TensorView out, TensorView x, TensorView index) {
  const Lookup args = {.out = out.data,
                       .table = x.data,
                       .index = index.as<int32_t>(),
                       .out_stride = out.stride[0],
                       .table_stride = x.stride[0],
                       .index_stride = index.stride[0],
                       .num_rows = x.shape[0],
                       .first = 0,
                       .n = x.shape[1]};
  copy_rows(ctx, args, out.shape[0], static_cast<int64_t>(dtype_bytes(x.dtype)));
  check_launch(ctx, "gather_rows", out);
}

void activate(const LaunchContext& ctx, TensorView out, TensorView x, Activation activation) {
  activate</*kMul=*/false>(ctx, "activate", out, x, activation);
}

void activate_and_mul(const LaunchContext& ctx, TensorView out, TensorView x, Activation activation) {
  activate</*kMul=*/true>(ctx, "activate_and_mul", out, x, activation);
}

void soft_cap(const LaunchContext& ctx, TensorView x, float cap) {
  const bool vectors = aligned(x.data, x.stride[0] * static_cast<int64_t>(sizeof(float)));
  launch_rows(ctx, soft_cap_kernel, x.shape[0], ceil_div<int64_t>(x.shape[1], 4), x.as<float>(), x.stride[0],
              x.shape[1], cap, vectors);
  check_launch(ctx, "soft_cap", x);
}

void scale(const LaunchContext& ctx, TensorView x, float factor) {
  dispatch_float(x.dtype, [&](auto type) {
    using T = decltype(type);
    launch_rows(ctx, scale_kernel<T>, x.shape[0], x.shape[1], x.as<T>(), x.stride[0], x.shape[1], factor);
  });
  check_launch(ctx, "scale", x);
}

void add(const LaunchContext& ctx, TensorView x, TensorView y) {
  const int64_t bytes = static_cast<int64_t>(dtype_bytes(x.dtype));
  const bool vectors = aligned(x.data, x.stride[0] * bytes) && aligned(y.data, y.stride[0] * bytes);
  dispatch_float(x.dtype, [&](auto type) {
    using T = decltype(type);
    launch_rows(ctx, add_kernel<T>, x.shape[0], ceil_div<int64_t>(x.shape[1], Vec<T>::kSize), x.as<T>(),
                x.stride[0], static_cast<const T*>(y.data), y.stride[0], x.shape[1], vectors);
  });
  check_launch(ctx, "add", x);
}

void gate_rows(const LaunchContext& ctx, TensorView x, TensorView gate) {
  dispatch_float(x.dtype, [&](auto type) {
    using T = decltype(type);
    launch_rows(ctx, gate_rows_kernel<T>, x.shape[0], x.shape[1], x.as<T>(), x.stride[0],
                static_cast<const float*>(gate.data), gate.stride[0], x.shape[1]);
  });
  check_launch(ctx, "gate_rows", x);
}

void fill_random(const LaunchContext& ctx, TensorView out, float scale, uint64_t seed) {
  const int64_t n = out.numel();
  if (n == 0) return;
  dispatch_float(out.dtype, [&](auto type) {
    using T = decltype(type);
    const int64_t blocks = ceil_div<int64_t>(n, kThreads * Vec<T>::kSize);
    fill_random_kernel<T><<<static_cast<unsigned>(std::min<int64_t>(blocks, 8 * device_limits().num_sms)),
                            kThreads, 0, stream_of(ctx)>>>(out.as<T>(), n, scale, mix(seed));
  });
  check_launch(ctx, "fill_random", out);
}

}  // namespace quire::cuda
