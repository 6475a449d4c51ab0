// Rotary embedding and what writes the KV cache: one kernel that rotates, stores, or does both, of heads that
// it may norm before.
#include "attention/kv_layout.cuh"
#include "common/dependent_launch.cuh"
#include "common/rms_norm.cuh"
#include "ops.h"

namespace quire::cuda {
namespace {

constexpr int kThreads = 128;

struct RotateAndStore {
  void* q;
  void* k;
  const void* v;
  int64_t q_stride, k_stride, v_stride;  // elements between tokens
  int64_t q_head_stride, k_head_stride, v_head_stride;
  int num_heads, num_kv_heads, head_size;
  const int32_t* positions;
  const float* cos_sin;
  int64_t cos_sin_stride;
  int rotary_dim;
  bool interleaved;
  std::byte* cache;
  int64_t page_stride_bytes;
  int block_size;
  const void* slots;
  bool slots_are_64_bits;
  const void *q_weight, *k_weight;  // of the norms
  float eps, weight_offset;
};

// kVec consecutive elements, at an address that is a multiple of their size.
template <typename T, int kVec>
struct alignas(sizeof(T) * kVec) Elements {
  T x[kVec];
};

template <typename T, int kVec>
__device__ __forceinline__ Elements<T, kVec> load(const T* p) {
  return *reinterpret_cast<const Elements<T, kVec>*>(p);
}
template <typename T, int kVec>
__device__ __forceinline__ void store(T* p, const Elements<T, kVec>& x) {
  *reinterpret_cast<Elements<T, kVec>*>(p) = x;
}

// Where element d of a head lies in the cache.
template <typename T>
__device__ __forceinline__ T* cache_element(const RotateAndStore& p, int64_t slot, int values, int kv_head,
                                            int d) {
  constexpr int kChunk = 16 / sizeof(T);
  const auto block = static_cast<uint32_t>(slot) / static_cast<uint32_t>(p.block_size);
  const int token =
      static_cast<int>(static_cast<uint32_t>(slot) - block * static_cast<uint32_t>(p.block_size));
  std::byte* group = p.cache + block * p.page_stride_bytes +
                     kv_group_offset(values, kv_head, token, p.num_kv_heads, p.block_size,
                                     p.head_size * static_cast<int>(sizeof(T)));
  const int chunk = kv_group_chunk(kv_atom_shift(p.head_size, sizeof(T)), p.head_size / kChunk,
                                   token % kGroupTokens, d / kChunk);
  return reinterpret_cast<T*>(group) + chunk * kChunk + d % kChunk;
}

// Block (t, y) has the units [y * kThreads, ...) of token t. The units of a query head are its rotated pairs,
// of a key head those and what passes through unrotated, of a value head all it has; kVec elements (of each
// half) a unit. Which is which follows from the unit's index: q heads, then k, then v.
//
// With kNorm all of a head is rotated, by 2^i neighbours in a warp. The sum of its squares is added up in the
// order of rms_norm's kernel, whose lanes have one vector each of up to 32, or two of 64.
//
// Slots, positions and what is looked up by them do not change while a step's kernels run, so they are read
// before the kernel in front has ended (dependent_launch.cuh).
template <typename T, int kVec, bool kRotate, bool kStore, bool kNorm>
__global__ void __launch_bounds__(kThreads)
    rotate_and_store_kernel(const __grid_constant__ RotateAndStore p) {
  using Run = Elements<T, kVec>;
  let_next_start();
  const int64_t t = blockIdx.x;
  const int half = kRotate ? p.rotary_dim / 2 : 0;
  const int pairs = half / kVec;
  const int key_units = pairs + (kStore ? (p.head_size - 2 * half) / kVec : 0);
  const int value_units = kStore ? p.head_size / kVec : 0;

  int unit = static_cast<int>(blockIdx.y) * kThreads + static_cast<int>(threadIdx.x);
  const int query_units = p.num_heads * pairs;
  const bool is_query = unit < query_units;
  if (!is_query) unit -= query_units;
  const bool is_key = !is_query && unit < p.num_kv_heads * key_units;
  if (!is_query && !is_key) unit -= p.num_kv_heads * key_units;
  const int in_head = is_query ? unit % max(pairs, 1)
                      : is_key ? unit % key_units
                               : unit % max(value_units, 1);
  const bool rotates = kRotate && (is_query || is_key) && in_head < pairs;

  // Where the two runs of elements of pairs [i, i + kVec) begin.
  const int i = in_head * kVec;
  const int low_at = p.interleaved ? 2 * i : i, high_at = p.interleaved ? 2 * i + kVec : half + i;
  int64_t slot = 0;
  if constexpr (kStore)
    slot = p.slots_are_64_bits ? __ldcg(static_cast<const int64_t*>(p.slots) + t)
                               : __ldcg(static_cast<const int32_t*>(p.slots) + t);
  constexpr int kFloats = kVec < 4 ? kVec : 4;  // 16 bytes
  Elements<float, kFloats> cosines[kVec / kFloats], sines[kVec / kFloats];
  Run low_weights, high_weights;
  if (rotates) {
    const float* angles = p.cos_sin + __ldcg(p.positions + t) * p.cos_sin_stride + i;
#pragma unroll
    for (int j = 0; j < kVec / kFloats; ++j) {
      cosines[j] = load<float, kFloats>(angles + j * kFloats);
      sines[j] = load<float, kFloats>(angles + half + j * kFloats);
    }
    if constexpr (kNorm) {
      const auto* weight = static_cast<const T*>(is_query ? p.q_weight : p.k_weight);
      low_weights = load<T, kVec>(weight + low_at);
      high_weights = load<T, kVec>(weight + high_at);
    }
  }
  wait_for_inputs();

  const auto norm = [&](Run& low, Run& high) {
    const int lanes = kNorm ? pairs : 1;  // of a head
    float sum = lanes < 32 ? squares(low, 0.0F) + squares(high, 0.0F) : squares(high, squares(low, 0.0F));
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const unsigned mask = lanes < 32 ? ((1U << lanes) - 1) << (lane / lanes * lanes) : 0xFFFFFFFFU;
    for (int offset = lanes / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(mask, sum, offset);
    const float scale = inverse_rms(sum, p.head_size, p.eps);
    low = scaled(low, low_weights, scale, p.weight_offset);
    high = scaled(high, high_weights, scale, p.weight_offset);
  };
  const auto rotated = [&](const T* head, Run& low, Run& high) {
    low = load<T, kVec>(head + low_at);
    high = load<T, kVec>(head + high_at);
    if constexpr (kNorm) norm(low, high);
    const auto rotate = [&](T& first, T& second, int j) {
      const float a = to_float(first), b = to_float(second);
      const float c = cosines[j / kFloats].x[j % kFloats], s = sines[j / kFloats].x[j % kFloats];
      // Spelled out, so that the fused op and the two single ones round alike.
      first = from_float<T>(__fmaf_rn(a, c, -__fmul_rn(b, s)));
      second = from_float<T>(__fmaf_rn(b, c, __fmul_rn(a, s)));
    };
    if (kVec > 1 && p.interleaved) {
#pragma unroll
      for (int j = 0; j < kVec / 2; ++j) rotate(low.x[2 * j], low.x[2 * j + 1], j);
#pragma unroll
      for (int j = 0; j < kVec / 2; ++j) rotate(high.x[2 * j], high.x[2 * j + 1], kVec / 2 + j);
    } else {
#pragma unroll
      for (int j = 0; j < kVec; ++j) rotate(low.x[j], high.x[j], j);
    }
  };

  Run low, high;
  if constexpr (kRotate) {
    if (is_query) {
      T* head = static_cast<T*>(p.q) + t * p.q_stride + unit / pairs * p.q_head_stride;
      rotated(head, low, high);
      store<T, kVec>(head + low_at, low);
      store<T, kVec>(head + high_at, high);
      return;
    }
  }
  if (kStore && slot < 0) return;
  if (is_key) {
    const int kv_head = unit / key_units;
    T* head = static_cast<T*>(p.k) + t * p.k_stride + kv_head * p.k_head_stride;
    if (rotates) {
      rotated(head, low, high);
      store<T, kVec>(kStore ? cache_element<T>(p, slot, 0, kv_head, low_at) : head + low_at, low);
      store<T, kVec>(kStore ? cache_element<T>(p, slot, 0, kv_head, high_at) : head + high_at, high);
    } else if constexpr (kStore) {
      const int d = 2 * half + (in_head - pairs) * kVec;
      store<T, kVec>(cache_element<T>(p, slot, 0, kv_head, d), load<T, kVec>(head + d));
    }
    return;
  }
  if constexpr (kStore) {
    if (unit >= p.num_kv_heads * value_units) return;
    const int kv_head = unit / value_units, d = in_head * kVec;
    const T* head = static_cast<const T*>(p.v) + t * p.v_stride + kv_head * p.v_head_stride;
    store<T, kVec>(cache_element<T>(p, slot, 1, kv_head, d), load<T, kVec>(head + d));
  }
}

void set_rotation(RotateAndStore& p, TensorView q, TensorView k, TensorView positions, TensorView cos_sin,
                  bool interleaved) {
  p.q = q.data;
  p.q_stride = q.stride[0];
  p.q_head_stride = q.stride[1];
  p.num_heads = static_cast<int>(q.shape[1]);
  p.k = k.data;
  p.k_stride = k.stride[0];
  p.k_head_stride = k.stride[1];
  p.num_kv_heads = static_cast<int>(k.shape[1]);
  p.head_size = static_cast<int>(k.shape[2]);
  p.positions = positions.as<int32_t>();
  p.cos_sin = cos_sin.as<float>();
  p.cos_sin_stride = cos_sin.stride[0];
  p.rotary_dim = static_cast<int>(cos_sin.shape[1]);
  p.interleaved = interleaved;
}

void set_cache(RotateAndStore& p, const KVCacheView& cache, TensorView v, TensorView slot_mapping) {
  p.v = v.data;
  p.v_stride = v.stride[0];
  p.v_head_stride = v.stride[1];
  p.cache = static_cast<std::byte*>(cache.data);
  p.page_stride_bytes = cache.page_stride_bytes;
  p.block_size = cache.block_size;
  p.slots = slot_mapping.data;
  p.slots_are_64_bits = slot_mapping.dtype == DType::kInt64;
}

// Elements of a vector where the kernel can load them at once, else 1.
template <typename T>
int vector_size(const RotateAndStore& p, int half) {
  constexpr int kFull = 16 / sizeof(T);
  const auto aligned = [](const void* data, int64_t stride, int64_t head_stride) {
    return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride % kFull == 0 && head_stride % kFull == 0;
  };
  const bool vectors = half % kFull == 0 && p.head_size % kFull == 0 &&
                       aligned(p.q, p.q_stride, p.q_head_stride) &&
                       aligned(p.k, p.k_stride, p.k_head_stride) &&
                       aligned(p.v, p.v_stride, p.v_head_stride) && aligned(p.q_weight, 0, 0) &&
                       aligned(p.k_weight, 0, 0) && aligned(p.cos_sin, half, 0) && p.cos_sin_stride % 4 == 0;
  return vectors ? kFull : 1;
}

template <bool kRotate, bool kStore, bool kNorm = false>
void launch(const LaunchContext& ctx, const char* name, const RotateAndStore& p, TensorView k) {
  const int64_t num_tokens = k.shape[0];
  if (num_tokens == 0) return;
  dispatch_float(k.dtype, [&]<typename T>(T) {
    const int half = kRotate ? p.rotary_dim / 2 : 0;
    const int vec = vector_size<T>(p, half);
    const int units = (kRotate ? p.num_heads * (half / vec) : 0) +
                      p.num_kv_heads * ((half + (kStore ? 2 * (p.head_size - half) : 0)) / vec);
    if (units == 0) return;
    const dim3 grid(static_cast<unsigned>(num_tokens), static_cast<unsigned>(ceil_div(units, kThreads)));
    constexpr int kFull = 16 / sizeof(T);
    if (vec == kFull) {
      launch_dependent(ctx, rotate_and_store_kernel<T, kFull, kRotate, kStore, kNorm>, grid, kThreads, 0, p);
    } else if constexpr (!kNorm) {
      launch_dependent(ctx, rotate_and_store_kernel<T, 1, kRotate, kStore, false>, grid, kThreads, 0, p);
    }
    check_launch(ctx, name, k);
  });
}

// Whether the kernel can norm the heads that it rotates.
bool fuses_norms(const RotateAndStore& p, DType dtype) {
  bool fuses = false;
  dispatch_float(dtype, [&]<typename T>(T) {
    constexpr int kFull = 16 / sizeof(T);
    const int pairs = p.head_size / 2 / kFull;
    fuses = p.rotary_dim == p.head_size && !p.interleaved && vector_size<T>(p, p.rotary_dim / 2) == kFull &&
            pairs <= 32 && (pairs & (pairs - 1)) == 0;
  });
  return fuses;
}

}  // namespace

size_t kv_page_bytes(int32_t block_size, int32_t num_kv_heads, int32_t head_size, DType dtype) {
  return static_cast<size_t>(2) * static_cast<size_t>(block_size) * static_cast<size_t>(num_kv_heads) *
         static_cast<size_t>(head_size) * dtype_bytes(dtype);
}

void rotary_embedding(const LaunchContext& ctx, TensorView q, TensorView k, TensorView positions,
                      TensorView cos_sin, bool interleaved) {
  RotateAndStore p{};
  set_rotation(p, q, k, positions, cos_sin, interleaved);
  launch<true, false>(ctx, "rotary_embedding", p, k);
}

void write_kv_cache(const LaunchContext& ctx, const KVCacheView& kv_cache, TensorView k, TensorView v,
                    TensorView slot_mapping) {
  RotateAndStore p{};
  p.k = k.data;
  p.k_stride = k.stride[0];
  p.k_head_stride = k.stride[1];
  p.num_kv_heads = static_cast<int>(k.shape[1]);
  p.head_size = static_cast<int>(k.shape[2]);
  set_cache(p, kv_cache, v, slot_mapping);
  launch<false, true>(ctx, "write_kv_cache", p, k);
}

void rotary_embedding_and_write_kv(const LaunchContext& ctx, TensorView q, TensorView k, TensorView v,
                                   const HeadNorms* norms, TensorView positions, TensorView cos_sin,
                                   bool interleaved, const KVCacheView& kv_cache, TensorView slot_mapping) {
  RotateAndStore p{};
  set_rotation(p, q, k, positions, cos_sin, interleaved);
  set_cache(p, kv_cache, v, slot_mapping);
  constexpr const char* kName = "rotary_embedding_and_write_kv";
  if (norms == nullptr) return launch<true, true>(ctx, kName, p, k);
  p.q_weight = norms->q_weight.data;
  p.k_weight = norms->k_weight.data;
  p.eps = norms->eps;
  p.weight_offset = norms->weight_offset;
  if (fuses_norms(p, k.dtype)) return launch<true, true, true>(ctx, kName, p, k);
  rms_norm(ctx, q, q, norms->q_weight, norms->eps, norms->weight_offset);
  rms_norm(ctx, k, k, norms->k_weight, norms->eps, norms->weight_offset);
  launch<true, true>(ctx, kName, p, k);
}

}  // namespace quire::cuda
