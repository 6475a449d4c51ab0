#include "experts/plan.h"

#include <algorithm>

#include "common/dependent_launch.cuh"
#include "quire/kernels/ops.h"

namespace quire::cuda {
namespace {

constexpr int kThreads = 1024;
static_assert(kMaxExperts <= kThreads);

// Exclusive prefix sums over the threads of the block; returns the total too. `warps`: 33 ints.
__device__ int exclusive_sum(int x, int* warps, int& total) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  int sum = x;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const int below = __shfl_up_sync(0xFFFFFFFFU, sum, offset);
    if (lane >= offset) sum += below;
  }
  if (lane == 31) warps[warp] = sum;
  __syncthreads();
  if (warp == 0) {
    int each = warps[lane];
    const int own = each;
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const int below = __shfl_up_sync(0xFFFFFFFFU, each, offset);
      if (lane >= offset) each += below;
    }
    warps[lane] = each - own;
    if (lane == 31) warps[32] = each;
  }
  __syncthreads();
  total = warps[32];
  const int before = warps[warp] + sum - x;
  __syncthreads();
  return before;
}

// f(i, ids[i]) of all, by all threads; each has several loads under way.
template <typename F>
__device__ __forceinline__ void for_each(const int32_t* ids, int count, F f) {
  constexpr int kAtOnce = 8;
  for (int begin = static_cast<int>(threadIdx.x); begin < count; begin += kAtOnce * kThreads) {
    int expert[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int i = begin + j * kThreads;
      expert[j] = i < count ? ids[i] : -1;
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int i = begin + j * kThreads;
      if (i < count) f(i, expert[j]);
    }
  }
}

// One block: thread e counts for expert e.
__global__ void __launch_bounds__(kThreads)
    sort_kernel(const ExpertPlan plan, const int32_t* expert_ids, int choices, int top_k, int num_experts) {
  let_next_start();
  wait_for_inputs();
  __shared__ int counts[kThreads], warps[33];
  const int e = static_cast<int>(threadIdx.x);
  counts[e] = 0;
  __syncthreads();
  const auto is_expert = [num_experts](int expert) { return expert >= 0 && expert < num_experts; };
  for_each(expert_ids, choices, [&](int, int expert) {
    if (is_expert(expert)) atomicAdd(&counts[expert], 1);
  });
  __syncthreads();
  const int count = counts[e];
  int total = 0;
  const int first = exclusive_sum(count, warps, total);
  const int items = (count + plan.item_slots - 1) / plan.item_slots;
  const int first_item = exclusive_sum(items, warps, total);
  for (int i = 0; i < items; ++i) {
    plan.item_expert[first_item + i] = e;
    plan.item_first[first_item + i] = first + i * plan.item_slots;
    plan.item_count[first_item + i] = min(plan.item_slots, count - i * plan.item_slots);
    plan.item_group[first_item + i] = first_item;
    plan.item_group_size[first_item + i] = items;
  }
  if (e == 0) *plan.num_items = total;
  for (int i = total + e; i < plan.max_items; i += kThreads) plan.item_expert[i] = -1;
  counts[e] = first;
  __syncthreads();
  for_each(expert_ids, choices, [&](int i, int expert) {
    int slot = -1;
    if (is_expert(expert)) {
      slot = atomicAdd(&counts[expert], 1);
      plan.token[slot] = i / top_k;
    }
    plan.slot[i] = slot;
  });
}

size_t rounded(size_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace

int max_expert_items(int64_t choices, int num_experts, int item_slots) {
  return static_cast<int>(choices / item_slots + std::min<int64_t>(num_experts, choices));
}

size_t expert_plan_bytes(int64_t choices, int max_items) {
  return 2 * rounded(static_cast<size_t>(choices) * sizeof(int32_t)) +
         5 * rounded(static_cast<size_t>(max_items) * sizeof(int32_t)) + rounded(sizeof(int32_t));
}

ExpertPlan place_expert_plan(void* memory, int64_t choices, int max_items, int item_slots) {
  auto* at = static_cast<std::byte*>(memory);
  const auto take = [&at](int64_t count) {
    auto* out = reinterpret_cast<int32_t*>(at);
    at += rounded(static_cast<size_t>(count) * sizeof(int32_t));
    return out;
  };
  ExpertPlan plan{};
  plan.token = take(choices);
  plan.slot = take(choices);
  plan.item_expert = take(max_items);
  plan.item_first = take(max_items);
  plan.item_count = take(max_items);
  plan.item_group = take(max_items);
  plan.item_group_size = take(max_items);
  plan.num_items = take(1);
  plan.num_slots = static_cast<int>(choices);
  plan.max_items = max_items;
  plan.item_slots = item_slots;
  return plan;
}

void sort_by_expert(const LaunchContext& ctx, const ExpertPlan& plan, const int32_t* expert_ids,
                    int64_t choices, int top_k, int num_experts) {
  launch_dependent(ctx, sort_kernel, 1, kThreads, 0, plan, expert_ids, static_cast<int>(choices), top_k,
                   num_experts);
  check_launch(ctx, "sort_by_expert", "[%lld] of %d", static_cast<long long>(choices), num_experts);
}

}  // namespace quire::cuda
