#include "experts/expert_loras.h"

#include <algorithm>

#include "common/dependent_launch.cuh"
#include "common/types.cuh"
#include "lora/lora.h"
#include "ops.h"

namespace quire::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kMostSortingThreads = 1024;
// Up to so many slots, segments of experts are short, and many.
constexpr int64_t kFewSlots = 2048;

int max_segments_of(int64_t choices, int num_experts, int max_loras) {
  const int64_t groups = std::min(choices, int64_t{num_experts} * max_loras);
  return static_cast<int>(std::min(choices, choices / kLoraSegmentRows + groups));
}

size_t rounded(size_t bytes) { return (bytes + 255) / 256 * 256; }

struct Sources {
  const LoraSlot *gate_up, *down;
  int64_t stride;
  const int32_t* row_slots;
  int max_loras;
};

// That of one expert.
__device__ __forceinline__ LoraSlot slot_of_expert(const LoraSlot& from, int expert) {
  LoraSlot slot = from;
  const int64_t offset = expert * slot.expert_stride_bytes;
  const auto advance = [offset](const void*& p) {
    if (p != nullptr) p = static_cast<const char*>(p) + offset;
  };
  advance(slot.a);
#pragma unroll
  for (const void*& b : slot.b) advance(b);
  return slot;
}

// Exclusive sums over a warp; returns their total too.
__device__ __forceinline__ int exclusive_sum(int x, int& total) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int sum = x;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const int below = __shfl_up_sync(0xFFFFFFFFU, sum, offset);
    if (lane >= offset) sum += below;
  }
  total = __shfl_sync(0xFFFFFFFFU, sum, 31);
  return sum - x;
}

// Rows of one expert and adapter.
struct Group {
  int next;           // place of the next row, among the expert's
  int begin, end;     // places
  int first_segment;  // of the batch
};

// A block has an expert: it counts the rows of each adapter, and then places each.
__global__ void __launch_bounds__(kMostSortingThreads)
    segment_kernel(const __grid_constant__ ExpertPlan plan, const __grid_constant__ ExpertLoraBatch batch,
                   const __grid_constant__ Sources sources) {
  extern __shared__ Group groups[];  // [max_loras]
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int expert = static_cast<int>(blockIdx.x), num_loras = sources.max_loras;
  for (int i = thread; i < num_loras; i += threads) groups[i].next = 0;
  wait_for_inputs();
  let_next_start();
  const int first = __ldcg(plan.first_slot + expert), end = __ldcg(plan.first_slot + expert + 1);
  if (first == end) return;
  const auto adapter_of = [&](int slot) { return sources.row_slots[plan.token[slot]]; };
  __syncthreads();
  for (int slot = first + thread; slot < end; slot += threads) {
    const int adapter = adapter_of(slot);
    if (adapter >= 0) atomicAdd(&groups[adapter].next, 1);
  }
  __syncthreads();
  if (thread < 32) {
    int rows = 0, segments = 0;
    for (int i = thread; i - thread < num_loras; i += 32) {
      const int count = i < num_loras ? groups[i].next : 0;
      int all_rows, all_segments;
      const int begin = rows + exclusive_sum(count, all_rows);
      const int segment =
          segments + exclusive_sum((count + kLoraSegmentRows - 1) / kLoraSegmentRows, all_segments);
      if (i < num_loras) groups[i] = {begin, begin, begin + count, segment};
      rows += all_rows;
      segments += all_segments;
    }
    int before = 0;
    if (thread == 0 && segments > 0) before = atomicAdd(plan.num_segments, segments);
    before = __shfl_sync(0xFFFFFFFFU, before, 0);
    for (int i = thread; i < num_loras; i += 32) groups[i].first_segment += before;
  }
  __syncthreads();
  for (int slot = first + thread; slot < end; slot += threads) {
    const int adapter = adapter_of(slot);
    if (adapter < 0) continue;
    Group& group = groups[adapter];
    const int place = atomicAdd(&group.next, 1), in_group = place - group.begin;
    batch.rows[first + place] = slot;
    if (in_group % kLoraSegmentRows != 0) continue;
    batch.segments[group.first_segment + in_group / kLoraSegmentRows] = {
        group.first_segment, first + place, first + min(place + kLoraSegmentRows, group.end)};
    if (in_group > 0) continue;
    const int64_t at = adapter * sources.stride;
    batch.gate_up[group.first_segment] = slot_of_expert(sources.gate_up[at], expert);
    batch.down[group.first_segment] = slot_of_expert(sources.down[at], expert);
  }
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

}  // namespace

size_t expert_lora_batch_bytes(int64_t choices, int num_experts, int max_loras) {
  const auto segments = static_cast<size_t>(max_segments_of(choices, num_experts, max_loras));
  return rounded(static_cast<size_t>(choices) * sizeof(int32_t)) + rounded(segments * sizeof(LoraSegment)) +
         2 * rounded(segments * sizeof(LoraSlot));
}

ExpertLoraBatch place_expert_lora_batch(void* memory, int64_t choices, int num_experts, int max_loras) {
  auto* at = static_cast<std::byte*>(memory);
  const auto take = [&at]<typename T>(T*& place, int64_t count) {
    place = reinterpret_cast<T*>(at);
    at += rounded(static_cast<size_t>(count) * sizeof(T));
  };
  ExpertLoraBatch batch{};
  batch.max_segments = max_segments_of(choices, num_experts, max_loras);
  take(batch.rows, choices);
  take(batch.segments, batch.max_segments);
  take(batch.gate_up, batch.max_segments);
  take(batch.down, batch.max_segments);
  return batch;
}

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

void segment_by_adapter(const LaunchContext& ctx, const ExpertPlan& plan, const ExpertLoraBatch& batch,
                        const ExpertLoraArgs& loras, const int32_t* row_slots, int num_experts) {
  const Sources sources = {.gate_up = loras.gate_up.slots,
                           .down = loras.down.slots,
                           .stride = loras.slot_stride,
                           .row_slots = row_slots,
                           .max_loras = loras.max_loras};
  const auto shared_bytes = static_cast<size_t>(loras.max_loras) * sizeof(Group);
  const int mean = static_cast<int>(plan.num_slots / num_experts);
  launch_dependent(ctx, segment_kernel, static_cast<unsigned>(num_experts),
                   static_cast<unsigned>(std::clamp(ceil_div(mean, 32) * 32, kThreads, kMostSortingThreads)),
                   shared_bytes, plan, batch, sources);
  check_launch(ctx, "segment_by_adapter", "%d slots, %d experts, %d adapters", plan.num_slots, num_experts,
               loras.max_loras);
}

void add_expert_loras(const LaunchContext& ctx, const ExpertLoraArgs::Product& product,
                      const ExpertPlan& plan, const ExpertLoraBatch& batch, const LoraSlot* slots,
                      TensorView out, TensorView x, void* h) {
  add_lora(ctx,
           {.out = out,
            .x = x,
            .slots = slots,
            .modules = product.modules,
            .num_modules = product.num_modules,
            .max_total_rank = product.max_total_rank,
            .max_segments = batch.max_segments,
            .batch = {.rows = batch.rows, .segments = batch.segments, .num_segments = plan.num_segments}},
           h, kFewSlots);
}

}  // namespace quire::cuda
