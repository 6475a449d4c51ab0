// Linears whose weights are int8.
#include "linear/int8.h"

#include "common/launch.h"
#include "common/tensor_core.cuh"

namespace quire::cuda {
namespace {

// ---- few rows ---------------------------------------------------------------------------------------

constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;
constexpr int kOutputs = 16;    // of one block
constexpr int kTileTokens = 8;  // of one product of the tensor cores
constexpr int kStepDepth = 64;  // of one warp: 16 bytes of a row for each of four lanes
constexpr int64_t kMaxFewRows = 64;

// Four int8, of which `offset` is subtracted, as two pairs of 16-bit: exact, because what comes out is a
// whole number below 256. The bytes become the low bits of a large floating-point number, and what makes it
// large is subtracted with the offset.
template <typename T>
struct Unpack;

template <>
struct Unpack<bf16> {
  explicit __device__ Unpack(float zero_point) : offset(8388608.0F + 128.0F + zero_point) {}
  __device__ __forceinline__ void operator()(uint32_t bytes, uint32_t& low, uint32_t& high) const {
    bytes ^= 0x80808080U;
    uint32_t x[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t large = __byte_perm(bytes, 0x4B000000U, 0x7540U + static_cast<uint32_t>(i));
      x[i] = __float_as_uint(__uint_as_float(large) - offset);
    }
    low = __byte_perm(x[0], x[1], 0x7632U);
    high = __byte_perm(x[2], x[3], 0x7632U);
  }
  float offset;
};

template <>
struct Unpack<fp16> {
  explicit __device__ Unpack(float zero_point) : offset(__float2half2_rn(1024.0F + 128.0F + zero_point)) {}
  __device__ __forceinline__ void operator()(uint32_t bytes, uint32_t& low, uint32_t& high) const {
    bytes ^= 0x80808080U;
    low = minus_offset(__byte_perm(bytes, 0x64646464U, 0x4140U));
    high = minus_offset(__byte_perm(bytes, 0x64646464U, 0x4342U));
  }
  __device__ __forceinline__ uint32_t minus_offset(uint32_t pair) const {
    const __half2 x = __hsub2(*reinterpret_cast<const __half2*>(&pair), offset);
    return *reinterpret_cast<const uint32_t*>(&x);
  }
  __half2 offset;
};

template <typename T>
struct FewRows {
  const int8_t* weight;
  const float *scales, *zero_points, *bias;
  const T* x;
  int64_t x_stride;
  void* out;
  int64_t out_stride;
  bool out_is_fp32;
  int m, n, k;
};

// A block has 16 outputs and all rows of x; its warps take steps of the depth in turn, and their sums are
// added in the warps' order. Within a step a lane has 16 neighbouring weights of two outputs. The tensor
// cores do not mind which depths meet, as long as weights and x agree: product s takes each lane's depths
// 4 s to 4 s + 3, where its places would be 2 t, 2 t + 1, 2 t + 8 and 2 t + 9.
template <typename T, int kTiles>
__global__ void __launch_bounds__(kThreads) few_rows_kernel(const FewRows<T> p) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int g = lane / 4, t = lane % 4;
  const int first = static_cast<int>(blockIdx.x) * kOutputs;
  const int upper = min(first + g, p.n - 1), lower = min(first + g + 8, p.n - 1);
  const auto zero_point = [&](int row) { return p.zero_points != nullptr ? p.zero_points[row] : 0.0F; };
  const Unpack<T> unpack_upper(zero_point(upper)), unpack_lower(zero_point(lower));
  const int8_t* upper_row = p.weight + static_cast<int64_t>(upper) * p.k;
  const int8_t* lower_row = p.weight + static_cast<int64_t>(lower) * p.k;
  float sums[kTiles][4] = {};
#pragma unroll 2
  for (int depth = warp * kStepDepth; depth < p.k; depth += kWarps * kStepDepth) {
    const int at = depth + 16 * t;
    const bool inside = at < p.k;
    uint4 a0{}, a1{};
    if (inside) {
      a0 = __ldcs(reinterpret_cast<const uint4*>(upper_row + at));
      a1 = __ldcs(reinterpret_cast<const uint4*>(lower_row + at));
    }
    uint4 b[kTiles][2];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const int token = tile * kTileTokens + g;
      b[tile][0] = b[tile][1] = uint4{};
      if (inside && token < p.m) {
        const auto* row = reinterpret_cast<const uint4*>(p.x + token * p.x_stride + at);
        b[tile][0] = row[0];
        b[tile][1] = row[1];
      }
    }
    const uint32_t words0[4] = {a0.x, a0.y, a0.z, a0.w}, words1[4] = {a1.x, a1.y, a1.z, a1.w};
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      uint32_t a[4];
      unpack_upper(words0[s], a[0], a[2]);
      unpack_lower(words1[s], a[1], a[3]);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const uint4& half = b[tile][s / 2];
        multiply_add<T>(sums[tile], a, s % 2 == 0 ? half.x : half.z, s % 2 == 0 ? half.y : half.w);
      }
    }
  }
  __shared__ float parts[kWarps][kOutputs][kTiles * kTileTokens + 1];
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      parts[warp][g + 8 * (i / 2)][tile * kTileTokens + 2 * t + i % 2] = sums[tile][i];
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kOutputs * kTiles * kTileTokens; i += kThreads) {
    const int row = i % kOutputs, token = i / kOutputs;
    if (first + row >= p.n || token >= p.m) continue;
    float sum = 0.0F;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += parts[w][row][token];
    sum *= p.scales[first + row];
    if (p.bias != nullptr) sum += p.bias[first + row];
    const int64_t place = token * p.out_stride + first + row;
    if (p.out_is_fp32) {
      static_cast<float*>(p.out)[place] = sum;
    } else {
      static_cast<T*>(p.out)[place] = from_float<T>(sum);
    }
  }
}

template <typename T>
void launch_few_rows(const LaunchContext& ctx, const FewRows<T>& args) {
  const auto blocks = static_cast<unsigned>(ceil_div(args.n, kOutputs));
  const auto launch = [&]<int kTiles>() {
    static std::atomic<uint64_t> prepared{0};
    keep_l1_cache(prepared, reinterpret_cast<const void*>(few_rows_kernel<T, kTiles>), kThreads, 0);
    few_rows_kernel<T, kTiles><<<blocks, kThreads, 0, stream_of(ctx)>>>(args);
  };
  if (args.m <= 8) {
    launch.template operator()<1>();
  } else if (args.m <= 16) {
    launch.template operator()<2>();
  } else if (args.m <= 32) {
    launch.template operator()<4>();
  } else {
    launch.template operator()<8>();
  }
}

// ---- dequantized --------------------------------------------------------------------------------------

constexpr int kBytesAtOnce = 16;

template <typename T>
__global__ void __launch_bounds__(256) dequantize_kernel(T* out, const int8_t* weight, const float* scales,
                                                         const float* zero_points, int k, bool vectors) {
  const int64_t row = blockIdx.y;
  const int8_t* from = weight + row * k;
  T* to = out + row * k;
  const float scale = scales[row], zero_point = zero_points != nullptr ? zero_points[row] : 0.0F;
  const auto value = [&](int8_t q) { return from_float<T>((static_cast<float>(q) - zero_point) * scale); };
  const int i = (static_cast<int>(blockIdx.x) * 256 + static_cast<int>(threadIdx.x)) * kBytesAtOnce;
  if (vectors && i < k) {
    const Vec<int8_t> bytes = Vec<int8_t>::load(from + i);
#pragma unroll
    for (int j = 0; j < kBytesAtOnce; j += Vec<T>::kSize) {
      Vec<T> values;
#pragma unroll
      for (int v = 0; v < Vec<T>::kSize; ++v) values.x[v] = value(bytes.x[j + v]);
      values.store(to + i + j);
    }
  } else {
    for (int j = i; j < min(i + kBytesAtOnce, k); ++j) to[j] = value(from[j]);
  }
}

bool aligned(const void* data, int64_t stride_bytes) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride_bytes % 16 == 0;
}

}  // namespace

bool has_few_rows_kernel(TensorView x, const LinearWeight& weight) {
  return x.shape[0] <= kMaxFewRows && x.dtype != DType::kFloat32 && aligned(weight.data, weight.k) &&
         aligned(x.data, x.stride[0] * static_cast<int64_t>(dtype_bytes(x.dtype)));
}

void linear_int8_few_rows(const LaunchContext& ctx, TensorView out, TensorView x, const LinearWeight& weight,
                          const float* bias) {
  const auto launch = [&](auto type) {
    using T = decltype(type);
    launch_few_rows<T>(ctx, {.weight = static_cast<const int8_t*>(weight.data),
                             .scales = weight.scales,
                             .zero_points = weight.zero_points,
                             .bias = bias,
                             .x = x.as<T>(),
                             .x_stride = x.stride[0],
                             .out = out.data,
                             .out_stride = out.stride[0],
                             .out_is_fp32 = out.dtype == DType::kFloat32,
                             .m = static_cast<int>(x.shape[0]),
                             .n = static_cast<int>(weight.n),
                             .k = static_cast<int>(weight.k)});
  };
  if (x.dtype == DType::kFloat16) {
    launch(fp16{});
  } else {
    launch(bf16{});
  }
  check_launch(ctx, "linear_int8", x);
}

void dequantize_rows(const LaunchContext& ctx, TensorView out, const LinearWeight& weight,
                     int64_t row_begin) {
  const auto k = static_cast<int>(weight.k);
  const unsigned columns = static_cast<unsigned>(ceil_div(ceil_div(k, kBytesAtOnce), 256));
  // Rows are a dimension of at most 65535 blocks.
  constexpr int64_t kRowsAtOnce = 32768;
  for (int64_t row = 0; row < out.shape[0]; row += kRowsAtOnce) {
    const int64_t count = std::min(kRowsAtOnce, out.shape[0] - row), first = row_begin + row;
    const auto* from = static_cast<const int8_t*>(weight.data) + first * weight.k;
    const bool vectors = aligned(from, weight.k) && aligned(out.data, weight.k);
    dispatch_float(out.dtype, [&](auto type) {
      using T = decltype(type);
      dequantize_kernel<T><<<dim3(columns, static_cast<unsigned>(count)), 256, 0, stream_of(ctx)>>>(
          out.rows(row, count).as<T>(), from, weight.scales + first,
          weight.zero_points != nullptr ? weight.zero_points + first : nullptr, k, vectors);
    });
  }
  check_launch(ctx, "dequantize_rows", out);
}

}  // namespace quire::cuda
