// Adapters of experts: two products of each slot's row with matrices that few rows share, so that what they
// wait for is memory. A block has an item of the plan, and a part of the ranks or of the outputs; rows of it
// that follow each other and have one adapter are taken together, up to four, and what they are multiplied by
// is read once for them.
#include <algorithm>

#include "common/dependent_launch.cuh"
#include "common/types.cuh"
#include "experts/expert_loras.h"
#include "ops.h"

namespace quire::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kRows = 4;

template <typename T>
struct ExpertLoraParams {
  ExpertPlan plan;
  const int32_t* row_slots;
  const LoraSlot* slots;
  int64_t slot_stride;
  const T* x;  // [slots, k]
  T* h;        // [slots, h_stride]
  T* out;      // [slots, n]
  int k, h_stride, n;
  int num_modules;
  LoraModule modules[kMaxLoraModules] = {};
};

// kSize elements at a time, where rows begin at multiples of what these take; else one.
template <typename T, bool kVectors>
struct Elements {
  static constexpr int kSize = kVectors ? Vec<T>::kSize : 1;
  T x[kSize];

  static __device__ __forceinline__ Elements load(const T* p) {
    if constexpr (kVectors) {
      return __builtin_bit_cast(Elements, *reinterpret_cast<const uint4*>(p));
    } else {
      return {*p};
    }
  }
};

template <typename E>
__device__ __forceinline__ float add_products(const E& a, const E& b, float sum) {
#pragma unroll
  for (int i = 0; i < E::kSize; ++i) sum = fmaf(to_float(a.x[i]), to_float(b.x[i]), sum);
  return sum;
}

// Calls f(adapter's slot, first row, rows) for what the item's rows are taken in.
template <typename T, typename F>
__device__ __forceinline__ void for_each_run(const ExpertLoraParams<T>& p, const ExpertItem& item, F f) {
  const auto adapter_of = [&](int i) { return p.row_slots[p.plan.token[item.first_slot + i]]; };
  for (int first = 0, end = 0; first < item.count; first = end) {
    const int adapter = adapter_of(first);
    for (end = first + 1; end < min(first + kRows, item.count) && adapter_of(end) == adapter;) ++end;
    if (adapter < 0) continue;
    const LoraSlot& slot = p.slots[adapter * p.slot_stride];
    if (slot.a != nullptr) f(slot, item.first_slot + first, end - first);
  }
}

template <typename T>
__device__ __forceinline__ const T* matrix_of(const void* first, const LoraSlot& slot, int expert) {
  return reinterpret_cast<const T*>(static_cast<const char*>(first) + expert * slot.expert_stride_bytes);
}

__device__ __forceinline__ int total_rank(const LoraSlot& slot) {
  const int4 ranks = *reinterpret_cast<const int4*>(slot.ranks);
  return ranks.x + ranks.y + ranks.z + ranks.w;
}

// A warp has a rank, lanes along the depth.
template <typename T, bool kVectors>
__global__ void __launch_bounds__(kThreads)
    shrink_experts_kernel(const __grid_constant__ ExpertLoraParams<T> p) {
  using E = Elements<T, kVectors>;
  wait_for_inputs();
  let_next_start();
  const ExpertItem item = p.plan.items[blockIdx.x];
  if (item.expert < 0) return;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int rank = static_cast<int>(blockIdx.y) * kWarps + warp;
  for_each_run(p, item, [&](const LoraSlot& slot, int first, int count) {
    if (rank >= total_rank(slot)) return;
    const T* a = matrix_of<T>(slot.a, slot, item.expert) + static_cast<int64_t>(rank) * p.k;
    const T* x[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) x[i] = p.x + static_cast<int64_t>(first + min(i, count - 1)) * p.k;
    float sums[kRows] = {};
    for (int at = lane * E::kSize; at < p.k; at += 32 * E::kSize) {
      const E w = E::load(a + at);
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        if (i < count) sums[i] = add_products(w, E::load(x[i] + at), sums[i]);
      }
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const float sum = warp_sum(sums[i]);
      if (lane == 0 && i < count)
        p.h[static_cast<int64_t>(first + i) * p.h_stride + rank] = from_float<T>(sum);
    }
  });
}

// A thread has an output. Ranks are multiples of a vector.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    expand_experts_kernel(const __grid_constant__ ExpertLoraParams<T> p) {
  using E = Elements<T, true>;
  wait_for_inputs();
  let_next_start();
  const ExpertItem item = p.plan.items[blockIdx.x];
  const int64_t output = int64_t{blockIdx.y} * kThreads + threadIdx.x;
  if (item.expert < 0 || output >= p.n) return;
  for_each_run(p, item, [&](const LoraSlot& slot, int first, int count) {
    int rank_before = 0;
    for (int m = 0; m < p.num_modules; ++m) {
      const int rank = slot.ranks[m];
      const int64_t row = output - p.modules[m].first_output;
      if (rank > 0 && row >= 0 && row < p.modules[m].num_outputs) {
        const T* b = matrix_of<T>(slot.b[m], slot, item.expert) + row * rank;
        const T* h = p.h + static_cast<int64_t>(first) * p.h_stride + rank_before;
        float sums[kRows] = {};
        for (int r = 0; r < rank; r += E::kSize) {
          const E w = E::load(b + r);
#pragma unroll
          for (int i = 0; i < kRows; ++i) {
            if (i < count) sums[i] = add_products(w, E::load(h + i * p.h_stride + r), sums[i]);
          }
        }
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
          if (i >= count) break;
          T* out = p.out + static_cast<int64_t>(first + i) * p.n + output;
          *out = from_float<T>(to_float(*out) + sums[i]);
        }
      }
      rank_before += rank;
    }
  });
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    spread_elements_kernel(T* slots, const T* x, int64_t x_stride, const int32_t* slot_of, int top_k, int n) {
  wait_for_inputs();
  let_next_start();
  const int64_t t = blockIdx.x;
  const int i = static_cast<int>(blockIdx.y) * kThreads + static_cast<int>(threadIdx.x);
  if (i >= n) return;
  const T value = x[t * x_stride + i];
  for (int j = 0; j < top_k; ++j) {
    const int slot = slot_of[t * top_k + j];
    if (slot >= 0) slots[static_cast<int64_t>(slot) * n + i] = value;
  }
}

template <typename T>
void launch_products(const LaunchContext& ctx, const ExpertLoraArgs::Product& product, int64_t slot_stride,
                     const int32_t* row_slots, const ExpertPlan& plan, TensorView out, TensorView x,
                     void* h) {
  static_assert(kLoraRankMultiple % Vec<T>::kSize == 0);
  ExpertLoraParams<T> p{.plan = plan,
                        .row_slots = row_slots,
                        .slots = product.slots,
                        .slot_stride = slot_stride,
                        .x = x.as<T>(),
                        .h = static_cast<T*>(h),
                        .out = out.as<T>(),
                        .k = static_cast<int>(x.shape[1]),
                        .h_stride = product.max_total_rank,
                        .n = static_cast<int>(out.shape[1]),
                        .num_modules = product.num_modules};
  std::copy_n(product.modules, product.num_modules, p.modules);
  const auto items = static_cast<unsigned>(plan.max_items);
  const dim3 by_rank(items, static_cast<unsigned>(ceil_div(product.max_total_rank, kWarps)));
  const dim3 by_output(items, static_cast<unsigned>(ceil_div(p.n, kThreads)));
  if (p.k % Vec<T>::kSize == 0 && reinterpret_cast<uintptr_t>(x.data) % 16 == 0) {
    launch_dependent(ctx, shrink_experts_kernel<T, true>, by_rank, kThreads, 0, p);
  } else {
    launch_dependent(ctx, shrink_experts_kernel<T, false>, by_rank, kThreads, 0, p);
  }
  launch_dependent(ctx, expand_experts_kernel<T>, by_output, kThreads, 0, p);
}

}  // namespace

void spread_to_slots(const LaunchContext& ctx, const ExpertPlan& plan, TensorView slots, TensorView x,
                     int top_k) {
  const auto n = static_cast<int>(x.shape[1]);
  const dim3 grid(static_cast<unsigned>(x.shape[0]), static_cast<unsigned>(ceil_div(n, kThreads)));
  dispatch_float(x.dtype, [&](auto type) {
    using T = decltype(type);
    launch_dependent(ctx, spread_elements_kernel<T>, grid, kThreads, 0, slots.as<T>(), x.as<T>(), x.stride[0],
                     plan.slot, top_k, n);
  });
  check_launch(ctx, "spread_to_slots", x);
}

void add_expert_loras(const LaunchContext& ctx, const ExpertLoraArgs::Product& product, int64_t slot_stride,
                      const int32_t* row_slots, const ExpertPlan& plan, TensorView out, TensorView x,
                      void* h) {
  if (product.max_total_rank == 0) return;
  dispatch_float(x.dtype, [&](auto type) {
    launch_products<decltype(type)>(ctx, product, slot_stride, row_slots, plan, out, x, h);
  });
  check_launch(ctx, "add_expert_loras", out);
}

}  // namespace quire::cuda
