#include "experts/plan.h"

#include <algorithm>

#include "common/dependent_launch.cuh"
#include "experts/expert_choice.cuh"
#include "quire/kernels/ops.h"

namespace quire::cuda {
namespace {

constexpr int kThreads = 1024;
static_assert(kMaxExperts <= kThreads);
// Choices that one block sorts; of more, several blocks count first and then each places a stretch.
constexpr int kOneBlockChoices = 4 * kThreads;
constexpr int kMaxBlocks = 64;
constexpr int kMaxSpreadChoices = 512;  // of a block that also spreads
// Tokens whose choices one block makes before it sorts them, a warp each.
constexpr int kChoosingWarps = 16;

int sorting_blocks(int64_t choices) {
  return choices <= kOneBlockChoices
             ? 1
             : static_cast<int>(std::min<int64_t>(kMaxBlocks, ceil_div<int64_t>(choices, kThreads)));
}

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

// f(i, ids[i]) of i in [begin, end), by all threads; each has several loads under way.
template <typename F>
__device__ __forceinline__ void for_each(const int32_t* ids, int begin, int end, F f) {
  constexpr int kAtOnce = 8;
  for (int first = begin + static_cast<int>(threadIdx.x); first < end; first += kAtOnce * kThreads) {
    int expert[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int i = first + j * kThreads;
      expert[j] = i < end ? ids[i] : -1;
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int i = first + j * kThreads;
      if (i < end) f(i, expert[j]);
    }
  }
}

struct Choices {
  const int32_t* expert_ids;
  int count, top_k, num_experts;

  __device__ bool is_expert(int expert) const { return expert >= 0 && expert < num_experts; }
  // Those that a block has: of whole tokens.
  __device__ int first_token(unsigned block) const {
    return static_cast<int>(static_cast<int64_t>(count / top_k) * block / gridDim.x);
  }
  __device__ int begin(unsigned block) const { return first_token(block) * top_k; }
};

// counts[e], e < kThreads, of the block's choices.
__device__ __forceinline__ void count_choices(const Choices& choices, int* counts) {
  counts[threadIdx.x] = 0;
  __syncthreads();
  for_each(choices.expert_ids, choices.begin(blockIdx.x), choices.begin(blockIdx.x + 1),
           [&](int, int expert) {
             if (choices.is_expert(expert)) atomicAdd(&counts[expert], 1);
           });
  __syncthreads();
}

__global__ void __launch_bounds__(kThreads) count_kernel(const ExpertPlan plan, const Choices choices) {
  let_next_start();
  wait_for_inputs();
  __shared__ int counts[kThreads];
  count_choices(choices, counts);
  const int e = static_cast<int>(threadIdx.x);
  if (e < choices.num_experts) plan.block_counts[blockIdx.x * choices.num_experts + e] = counts[e];
}

// Two numbers that are summed together: choices, below 2^18 (kMaxSlots), and items, below 2^13, for an item
// has few slots only where choices are few.
struct Packed {
  static constexpr int kBits = 18;
  static __device__ int pack(int choices, int items) { return choices | items << kBits; }
  static __device__ int choices(int packed) { return packed & ((1 << kBits) - 1); }
  static __device__ int items(int packed) { return packed >> kBits; }
};

// Thread e has expert e, of `count` choices, `before` of them in blocks before this one. `slots`, where there
// is such a place: of the block's choices.
__device__ __forceinline__ void write_plan(const ExpertPlan& plan, const Choices& choices, int count,
                                           int before, int* counts, int* warps, int* slots = nullptr) {
  const int e = static_cast<int>(threadIdx.x);
  const int items = (count + plan.item_slots - 1) / plan.item_slots;
  int total = 0;
  const int sums = exclusive_sum(Packed::pack(count, items), warps, total);
  const int first = Packed::choices(sums), first_item = Packed::items(sums);
  counts[e] = first + before;
  if (blockIdx.x == 0) {
    for (int i = 0; i < items; ++i) {
      plan.items[first_item + i] = {e, first + i * plan.item_slots,
                                    min(plan.item_slots, count - i * plan.item_slots),
                                    static_cast<int16_t>(i), static_cast<int16_t>(items)};
    }
    if (e == 0) *plan.num_items = Packed::items(total);
    if (e < choices.num_experts) plan.first_slot[e] = first;
    if (e == 0) plan.first_slot[choices.num_experts] = Packed::choices(total);
    if (e < 2) plan.num_segments[e] = 0;
    for (int i = Packed::items(total) + e; i < plan.max_items; i += kThreads) plan.items[i].expert = -1;
  }
  __syncthreads();
  for_each(choices.expert_ids, choices.begin(blockIdx.x), choices.begin(blockIdx.x + 1),
           [&](int i, int expert) {
             int slot = -1;
             if (choices.is_expert(expert)) {
               slot = atomicAdd(&counts[expert], 1);
               plan.token[slot] = i / choices.top_k;
             }
             plan.slot[i] = slot;
             if (slots != nullptr) slots[i - choices.begin(blockIdx.x)] = slot;
           });
}

// With kCounted block_counts are there, else there is one block.
template <bool kCounted>
__global__ void __launch_bounds__(kThreads) sort_kernel(const ExpertPlan plan, const Choices choices) {
  let_next_start();
  wait_for_inputs();
  __shared__ int counts[kThreads], warps[33];
  const int e = static_cast<int>(threadIdx.x);
  int count = 0, before = 0;  // of all blocks, and of those before this one
  if constexpr (kCounted) {
    if (e < choices.num_experts) {
      for (unsigned block = 0; block < gridDim.x; ++block) {
        if (block == blockIdx.x) before = count;
        count += plan.block_counts[block * choices.num_experts + e];
      }
    }
  } else {
    count_choices(choices, counts);
    count = counts[e];
  }
  write_plan(plan, choices, count, before, counts, warps);
}

// Sorts as one block would, in each block, which then has its own tokens' rows to spread.
__global__ void __launch_bounds__(kThreads)
    sort_and_spread_kernel(const __grid_constant__ ExpertPlan plan, const __grid_constant__ Choices choices,
                           const __grid_constant__ SpreadRows rows) {
  __shared__ int counts[kThreads], earlier[kThreads], warps[33], slots[kMaxSpreadChoices];
  const int thread = static_cast<int>(threadIdx.x);
  const int first = choices.first_token(blockIdx.x), tokens = choices.first_token(blockIdx.x + 1) - first;
  counts[thread] = 0;
  earlier[thread] = 0;
  const auto place = [&](int i) { return rows.x + (first + i / rows.n) * rows.x_stride + i % rows.n; };
  const bool has_row = thread < tokens * rows.n;
  const uint4* from = place(has_row ? thread : 0);
  wait_for_inputs();
  uint4 row = has_row ? __ldcg(from) : uint4{};
  __syncthreads();
  const int begin = choices.begin(blockIdx.x);
  for_each(choices.expert_ids, 0, choices.count, [&](int i, int expert) {
    if (!choices.is_expert(expert)) return;
    atomicAdd(&counts[expert], 1);
    if (i < begin) atomicAdd(&earlier[expert], 1);
  });
  __syncthreads();
  const int count = counts[thread];
  write_plan(plan, choices, count, earlier[thread], counts, warps, slots);
  // The next kernel reads the items at once, which the first block wrote.
  if (blockIdx.x == 0) __threadfence();
  __syncthreads();
  let_next_start();
  for (int i = thread; i < tokens * rows.n; i += kThreads) {
    if (i != thread) row = __ldcg(place(i));
    for (int j = 0; j < choices.top_k; ++j) {
      const int slot = slots[i / rows.n * choices.top_k + j];
      if (slot >= 0) rows.out[static_cast<int64_t>(slot) * rows.n + i % rows.n] = row;
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    choose_and_sort_kernel(const __grid_constant__ ExpertPlan plan,
                           const __grid_constant__ ExpertRoutingArgs routing) {
  using Choice = ExpertChoice<1>;
  let_next_start();
  __shared__ Choice::Memory memory[kChoosingWarps];
  __shared__ int chosen[kChoosingWarps * kMaxExpertsPerToken], counts[kThreads], warps[33];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int tokens = static_cast<int>(routing.logits.shape[0]);
  const Choice choice(routing);
  counts[threadIdx.x] = 0;
  wait_for_inputs();
  __syncthreads();
  if (warp < tokens) {
    int* mine = chosen + warp * routing.top_k;
    choice.choose(routing, warp, memory[warp], mine);
    __syncwarp();
    Choice::write(routing, warp, memory[warp], mine);
    if (lane < routing.top_k && mine[lane] >= 0) {
      count_choice(routing, mine[lane]);
      atomicAdd(&counts[mine[lane]], 1);
    }
  }
  __syncthreads();
  const Choices choices = {chosen, tokens * routing.top_k, routing.top_k,
                           static_cast<int>(routing.logits.shape[1])};
  write_plan(plan, choices, counts[threadIdx.x], 0, counts, warps);
}

size_t rounded(size_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace

int max_expert_items(int64_t choices, int num_experts, int item_slots) {
  return static_cast<int>(choices / item_slots + std::min<int64_t>(num_experts, choices));
}

size_t expert_plan_bytes(int64_t choices, int num_experts, int max_items) {
  return 2 * rounded(static_cast<size_t>(choices) * sizeof(int32_t)) +
         rounded(static_cast<size_t>(max_items) * sizeof(ExpertItem)) + rounded(sizeof(int32_t)) +
         rounded(static_cast<size_t>(num_experts + 1) * sizeof(int32_t)) + rounded(2 * sizeof(int32_t)) +
         rounded(static_cast<size_t>(sorting_blocks(choices) * num_experts) * sizeof(int32_t));
}

ExpertPlan place_expert_plan(void* memory, int64_t choices, int num_experts, int max_items, int item_slots) {
  auto* at = static_cast<std::byte*>(memory);
  const auto take = [&at]<typename T>(T*& place, int64_t count) {
    place = reinterpret_cast<T*>(at);
    at += rounded(static_cast<size_t>(count) * sizeof(T));
  };
  ExpertPlan plan{};
  take(plan.token, choices);
  take(plan.slot, choices);
  take(plan.items, max_items);
  take(plan.num_items, 1);
  take(plan.first_slot, num_experts + 1);
  take(plan.num_segments, 2);
  take(plan.block_counts, static_cast<int64_t>(sorting_blocks(choices)) * num_experts);
  plan.num_slots = static_cast<int>(choices);
  plan.max_items = max_items;
  plan.item_slots = item_slots;
  return plan;
}

void sort_by_expert(const LaunchContext& ctx, const ExpertPlan& plan, const int32_t* expert_ids,
                    int64_t choices, int top_k, int num_experts) {
  const Choices of_call = {expert_ids, static_cast<int>(choices), top_k, num_experts};
  const auto blocks = static_cast<unsigned>(sorting_blocks(choices));
  if (blocks == 1) {
    launch_dependent(ctx, sort_kernel<false>, 1, kThreads, 0, plan, of_call);
  } else {
    launch_dependent(ctx, count_kernel, blocks, kThreads, 0, plan, of_call);
    launch_dependent(ctx, sort_kernel<true>, blocks, kThreads, 0, plan, of_call);
  }
  check_launch(ctx, "sort_by_expert", "[%lld] of %d", static_cast<long long>(choices), num_experts);
}

bool sort_and_spread(const LaunchContext& ctx, const ExpertPlan& plan, const int32_t* expert_ids,
                     int64_t choices, int top_k, int num_experts, const SpreadRows& rows) {
  const int64_t tokens = choices / top_k, blocks = std::min<int64_t>(tokens, device_limits().num_sms);
  if (choices > kOneBlockChoices || ceil_div(tokens, blocks) * top_k > kMaxSpreadChoices) return false;
  launch_dependent(ctx, sort_and_spread_kernel, static_cast<unsigned>(blocks), kThreads, 0, plan,
                   Choices{expert_ids, static_cast<int>(choices), top_k, num_experts}, rows);
  check_launch(ctx, "sort_and_spread", "[%lld] of %d", static_cast<long long>(choices), num_experts);
  return true;
}

bool can_choose_and_sort(const ExpertRoutingArgs& routing) {
  return routing.logits.shape[0] <= kChoosingWarps &&
         routing.logits.shape[1] <= ExpertChoice<1>::kMostExperts;
}

void choose_and_sort(const LaunchContext& ctx, const ExpertPlan& plan, const ExpertRoutingArgs& routing) {
  launch_dependent(ctx, choose_and_sort_kernel, 1, kThreads, 0, plan, routing);
  check_launch(ctx, "choose_and_sort", routing.logits);
}

}  // namespace quire::cuda
