// Mixtures of experts: tokens are sorted by expert, two products of each expert with its own, a weighted sum.
// How many tokens an expert has decides who multiplies: one token alone needs no sorting, few wait for the
// weights, many for the tensor cores.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "common/dependent_launch.cuh"
#include "experts/expert_loras.h"
#include "experts/few_rows.cuh"
#include "experts/grouped_wgmma.h"
#include "experts/one_token.cuh"
#include "experts/plan.h"
#include "ops.h"

namespace quire::cuda {
namespace {

// Tokens computed at once: what is kept of each is its top_k rows between the products, and behind them.
constexpr int64_t kMaxSlots = 65536;

int64_t tokens_at_once(int64_t max_tokens, int top_k) {
  return std::min(max_tokens, std::max<int64_t>(1, kMaxSlots / top_k));
}

size_t rounded(size_t bytes) { return (bytes + 255) / 256 * 256; }

struct Places {
  ExpertPlan plan;
  void* inner;  // [slots, I] T
  void* outer;  // [slots, H] T
  // Where there are adapters:
  ExpertLoraBatch batch;
  void* both;  // [slots, 2 I] T
  void* h;     // [slots, the highest rank] T
};

Places place(std::byte* memory, int64_t tokens, int top_k, const ExpertWeights& experts,
             const ExpertLoraArgs* loras, int item_slots, size_t* bytes) {
  const int64_t choices = tokens * top_k;
  const size_t element = dtype_bytes(experts.down->dtype);
  const int items = max_expert_items(choices, experts.num_experts, item_slots);
  Places p{};
  size_t used = 0;
  p.plan = place_expert_plan(memory, choices, experts.num_experts, items, item_slots);
  used += expert_plan_bytes(choices, experts.num_experts, items);
  p.inner = memory + used;
  used += rounded(static_cast<size_t>(choices * experts.down->k) * element);
  p.outer = memory + used;
  used += rounded(static_cast<size_t>(choices * experts.down->n) * element);
  if (loras != nullptr) {
    const int32_t rank = std::max(loras->gate_up.max_total_rank, loras->down.max_total_rank);
    p.batch = place_expert_lora_batch(memory + used, choices, experts.num_experts, loras->max_loras);
    used += expert_lora_batch_bytes(choices, experts.num_experts, loras->max_loras);
    p.both = memory + used;
    used += rounded(static_cast<size_t>(choices * experts.gate_up->n) * element);
    p.h = memory + used;
    used += rounded(static_cast<size_t>(choices * rank) * element);
  }
  if (bytes != nullptr) *bytes = used;
  return p;
}

// Each token's row to its slots.
__global__ void __launch_bounds__(256)
    spread_kernel(const __grid_constant__ SpreadRows rows, const int32_t* slots, int top_k) {
  wait_for_inputs();
  // Not earlier: the next kernel reads the plan at once, which is there by now.
  let_next_start();
  const int64_t t = blockIdx.x;
  const int i = static_cast<int>(blockIdx.y * 256 + threadIdx.x);
  if (i >= rows.n) return;
  const uint4 row = rows.x[t * rows.x_stride + i];
  for (int j = 0; j < top_k; ++j) {
    const int slot = slots[t * top_k + j];
    if (slot >= 0) rows.out[static_cast<int64_t>(slot) * rows.n + i] = row;
  }
}

// A block has one token's row, or a part of it.
template <typename T>
__global__ void __launch_bounds__(256)
    combine_kernel(T* out, int64_t out_stride, const T* outer, const int32_t* slots, const float* weights,
                   int top_k, int n) {
  const int64_t t = blockIdx.x;
  for (int i = static_cast<int>(blockIdx.y * 256 + threadIdx.x); i < n;
       i += static_cast<int>(gridDim.y) * 256) {
    float sum = 0.0F;
    for (int j = 0; j < top_k; ++j) {
      const int slot = slots[t * top_k + j];
      if (slot >= 0)
        sum = fmaf(weights[t * top_k + j], to_float(outer[static_cast<int64_t>(slot) * n + i]), sum);
    }
    out[t * out_stride + i] = from_float<T>(sum);
  }
}

// The same, 16 bytes at a time; n is a multiple of what these hold.
template <typename T>
__global__ void __launch_bounds__(256)
    combine_vectors_kernel(T* out, int64_t out_stride, const T* outer, const int32_t* slots,
                           const float* weights, int top_k, int n) {
  constexpr int kSize = Vec<T>::kSize, kAtOnce = 8;
  let_next_start();
  const int64_t t = blockIdx.x;
  const int i = static_cast<int>(blockIdx.y * 256 + threadIdx.x) * kSize;
  int slot[kAtOnce];
  float weight[kAtOnce];
  // The products let this kernel start when they have the choices themselves: these are there.
  const auto find = [&](int first) {
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const bool is_choice = first + j < top_k;
      slot[j] = is_choice ? __ldcg(slots + t * top_k + first + j) : -1;
      weight[j] = is_choice ? __ldcg(weights + t * top_k + first + j) : 0.0F;
    }
  };
  find(0);
  wait_for_inputs();
  if (i >= n) return;
  float sums[kSize] = {};
  for (int first = 0; first < top_k; first += kAtOnce) {
    if (first > 0) find(first);
    uint4 rows[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      rows[j] = slot[j] >= 0
                    ? __ldcg(reinterpret_cast<const uint4*>(outer + static_cast<int64_t>(slot[j]) * n + i))
                    : uint4{};
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      if (slot[j] < 0) continue;
      const auto row = __builtin_bit_cast(Vec<T>, rows[j]);
#pragma unroll
      for (int e = 0; e < kSize; ++e) sums[e] = fmaf(weight[j], to_float(row.x[e]), sums[e]);
    }
  }
  Vec<T> result;
#pragma unroll
  for (int e = 0; e < kSize; ++e) result.x[e] = from_float<T>(sums[e]);
  result.store(out + t * out_stride + i);
}

bool is_aligned(const void* data, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && bytes % 16 == 0;
}

enum class Products : uint8_t { kPlain, kOneToken, kFewRows, kWgmma };

// The quickest for what a call has (benchmarks/kernels/cuda_experts_bench.cpp), or the one that
// QUIRE_EXPERTS_KERNEL names where it can do it.
Products choose(const FusedExpertsArgs& args) {
  const ExpertWeights& experts = args.experts;
  const auto size = static_cast<int64_t>(dtype_bytes(args.x.dtype));
  const bool vectors = size == 2 && is_aligned(args.x.data, args.x.stride[0] * size) &&
                       is_aligned(args.out.data, args.out.stride[0] * size) &&
                       is_aligned(experts.gate_up->data, experts.gate_up->k * size) &&
                       is_aligned(experts.down->data, experts.down->k * size) &&
                       is_aligned(nullptr, experts.gate_up_stride_bytes) &&
                       is_aligned(nullptr, experts.down_stride_bytes);
  const char* wanted = std::getenv("QUIRE_EXPERTS_KERNEL");
  const auto wants = [wanted](const char* name) {
    return wanted != nullptr && std::strcmp(wanted, name) == 0;
  };
  if (!vectors || wants("plain")) return Products::kPlain;
  if (wants("few_rows")) return Products::kFewRows;
  if (has_grouped_wgmma() && wants("wgmma")) return Products::kWgmma;
  if (args.x.shape[0] == 1 && args.loras == nullptr &&
      Divisor::is_exact(args.top_k * experts.down->k, static_cast<int>(experts.down->k)))
    return Products::kOneToken;
  return has_grouped_wgmma() ? Products::kWgmma : Products::kFewRows;
}

// As many slots to an item as nearly all experts have: of another item the weights are read once more.
int item_slots_of(Products products, int64_t choices, int num_experts) {
  if (products == Products::kWgmma) return wgmma_item_slots(choices, num_experts);
  const int64_t usual = 4 * choices / num_experts;
  return usual <= 8 ? 8 : usual <= 16 ? 16 : usual <= 32 ? 32 : 64;
}

template <typename T, int kDepthWarps, bool kGated>
void multiply_few_rows(const LaunchContext& ctx, const ExpertProduct<T>& p, int num_experts) {
  const int blocks = few_rows::kBlocksPerSm * device_limits().num_sms;
  const auto units = [&](int outputs) {
    return std::min(p.plan.num_slots, num_experts) * ceil_div(p.n, outputs);  // more or less
  };
  const auto launch = [&]<int kTiles, int kRowTiles>() {
    launch_weight_stream<few_rows_kernel<T, kTiles, kDepthWarps, kRowTiles, kGated>>(
        ctx, static_cast<unsigned>(blocks), few_rows::kThreads, 0, 0, p);
  };
  // Two tiles of rows read what they are multiplied by once; with few units the blocks' stretches would
  // differ.
  const auto with_tiles = [&]<int kTiles>() {
    if (units(few_rows::kOutputs<kDepthWarps, 2, kGated>) >= 4 * blocks)
      return launch.template operator()<kTiles, 2>();
    launch.template operator()<kTiles, 1>();
  };
  switch (p.plan.item_slots) {
    case 8: return with_tiles.template operator()<1>();
    case 16: return with_tiles.template operator()<2>();
    case 32: return launch.template operator()<4, 1>();
    default: return launch.template operator()<8, 1>();
  }
}

template <typename T, bool kGated>
void multiply(const LaunchContext& ctx, Products products, int num_experts, const ExpertProduct<T>& p) {
  const auto items = static_cast<unsigned>(p.plan.max_items);
  if constexpr (sizeof(T) == 2) {
    if (products == Products::kWgmma) return multiply_grouped_wgmma(ctx, p, num_experts, kGated);
    if (products == Products::kFewRows) {
      if (p.k <= 1024) return multiply_few_rows<T, 2, kGated>(ctx, p, num_experts);
      return p.k <= 3072 ? multiply_few_rows<T, 4, kGated>(ctx, p, num_experts)
                         : multiply_few_rows<T, 8, kGated>(ctx, p, num_experts);
    }
  }
  const dim3 grid(items, static_cast<unsigned>(ceil_div(p.n, few_rows::kWarps)));
  plain_kernel<T, kGated><<<grid, few_rows::kThreads, 0, stream_of(ctx)>>>(p);
}

// `routing`: of who chooses the experts; null: they are chosen.
template <typename T>
void compute_one(const LaunchContext& ctx, const FusedExpertsArgs& args, const ExpertRoutingArgs* routing) {
  const ExpertWeights& experts = args.experts;
  const auto elements = [](int64_t bytes) { return bytes / static_cast<int64_t>(sizeof(T)); };
  const OneToken<T> p = {.expert_ids = args.expert_ids,
                         .weights = args.weights,
                         .x = static_cast<const T*>(args.x.data),
                         .gate_up = static_cast<const T*>(experts.gate_up->data),
                         .down = static_cast<const T*>(experts.down->data),
                         .gate_up_stride = elements(experts.gate_up_stride_bytes),
                         .down_stride = elements(experts.down_stride_bytes),
                         .gate_up_bias = experts.gate_up_bias,
                         .down_bias = experts.down_bias,
                         .inner = static_cast<T*>(ctx.workspace),
                         .out = static_cast<T*>(args.out.data),
                         .top_k = args.top_k,
                         .hidden = static_cast<int>(experts.down->n),
                         .intermediate = static_cast<int>(experts.down->k),
                         .by_intermediate = Divisor(static_cast<int>(experts.down->k)),
                         .activation = args.activation};
  if (routing == nullptr) {
    launch_rows(ctx, GateUpRows<T>{p});
  } else {
    with_choosing_warps(routing->logits.shape[1],
                        [&](auto warps) { launch_rows(ctx, ChoosingGateUpRows<T, warps()>{{p}, *routing}); });
  }
  launch_rows(ctx, DownRows<T>{p});
  check_launch(ctx, routing == nullptr ? "fused_experts" : "routed_experts", args.x);
}

// `routing`: of who chooses the experts of all tokens; null: they are chosen.
template <typename T>
void compute(const LaunchContext& ctx, const FusedExpertsArgs& args, int64_t first, int64_t tokens,
             const ExpertRoutingArgs* routing) {
  const ExpertWeights& experts = args.experts;
  const int64_t choices = tokens * args.top_k;
  const Products products = choose(args);
  if constexpr (sizeof(T) == 2) {
    if (products == Products::kOneToken) return compute_one<T>(ctx, args, routing);
  }
  const Places p = place(static_cast<std::byte*>(ctx.workspace), tokens, args.top_k, experts, args.loras,
                         item_slots_of(products, choices, experts.num_experts), nullptr);
  const auto elements = [](int64_t bytes) { return bytes / static_cast<int64_t>(sizeof(T)); };
  const int32_t* expert_ids = args.expert_ids + first * args.top_k;
  TensorView x = args.x.rows(first, tokens);
  const TensorView out = args.out.rows(first, tokens);
  const auto hidden = static_cast<int>(experts.gate_up->k);
  const bool has_vectors = products != Products::kPlain;
  const bool spreads =
      args.loras != nullptr || (products == Products::kWgmma && !wgmma_gathers(p.plan.item_slots));
  // Where the second product's rows will be: nobody reads these any more by then.
  auto* slots = static_cast<T*>(p.outer);
  const SpreadRows rows = {.out = reinterpret_cast<uint4*>(slots),
                           .x = static_cast<const uint4*>(x.data),
                           .x_stride = x.stride[0] / Vec<T>::kSize,
                           .n = hidden / Vec<T>::kSize};
  const bool in_one =
      routing == nullptr && spreads && has_vectors &&
      sort_and_spread(ctx, p.plan, expert_ids, choices, args.top_k, experts.num_experts, rows);
  if (routing != nullptr) {
    choose_and_sort(ctx, p.plan, *routing);
  } else if (!in_one) {
    sort_by_expert(ctx, p.plan, expert_ids, choices, args.top_k, experts.num_experts);
  }
  if (spreads) {
    const TensorView spread(slots, x.dtype, choices, hidden);
    const dim3 grid(static_cast<unsigned>(tokens), static_cast<unsigned>(ceil_div(rows.n, 256)));
    if (!has_vectors) {
      spread_to_slots(ctx, p.plan, spread, x, args.top_k);
    } else if (!in_one) {
      launch_dependent(ctx, spread_kernel, grid, 256, 0, rows, p.plan.slot, args.top_k);
    }
    x = spread;
  }
  if (args.loras != nullptr)
    segment_by_adapter(ctx, p.plan, p.batch, *args.loras, args.loras->row_slots + first, experts.num_experts);
  ExpertProduct<T> gate_up = {.plan = p.plan,
                              .x = static_cast<const T*>(x.data),
                              .x_stride = x.stride[0],
                              .x_rows = x.shape[0],
                              .weight = static_cast<const T*>(experts.gate_up->data),
                              .weight_stride = elements(experts.gate_up_stride_bytes),
                              .bias = experts.gate_up_bias,
                              .out = static_cast<T*>(p.inner),
                              .n = static_cast<int>(experts.down->k),
                              .k = hidden,
                              .activation = args.activation};
  const TensorView inner(p.inner, x.dtype, choices, experts.down->k);
  if (args.loras == nullptr) {
    multiply<T, true>(ctx, products, experts.num_experts, gate_up);
  } else {
    const TensorView both(p.both, x.dtype, choices, experts.gate_up->n);
    gate_up.out = static_cast<T*>(p.both);
    gate_up.n = static_cast<int>(experts.gate_up->n);
    multiply<T, false>(ctx, products, experts.num_experts, gate_up);
    add_expert_loras(ctx, args.loras->gate_up, p.plan, p.batch, p.batch.gate_up, both, x, p.h);
    activate_and_mul(ctx, inner, both, args.activation);
  }
  multiply<T, false>(ctx, products, experts.num_experts,
                     {.plan = p.plan,
                      .x = static_cast<const T*>(p.inner),
                      .x_stride = experts.down->k,
                      .x_rows = choices,
                      .weight = static_cast<const T*>(experts.down->data),
                      .weight_stride = elements(experts.down_stride_bytes),
                      .bias = experts.down_bias,
                      .out = static_cast<T*>(p.outer),
                      .n = static_cast<int>(experts.down->n),
                      .k = static_cast<int>(experts.down->k),
                      .activation = args.activation});
  if (args.loras != nullptr)
    add_expert_loras(ctx, args.loras->down, p.plan, p.batch, p.batch.down,
                     TensorView(p.outer, x.dtype, choices, experts.down->n), inner, p.h);
  const auto n = static_cast<int>(experts.down->n);
  const auto* outer = static_cast<const T*>(p.outer);
  const float* weights = args.weights + first * args.top_k;
  if (products != Products::kPlain && n % Vec<T>::kSize == 0) {
    const dim3 grid(static_cast<unsigned>(tokens), static_cast<unsigned>(ceil_div(n, 256 * Vec<T>::kSize)));
    launch_dependent(ctx, combine_vectors_kernel<T>, grid, 256, 0, out.as<T>(), out.stride[0], outer,
                     p.plan.slot, weights, args.top_k, n);
  } else {
    const dim3 grid(static_cast<unsigned>(tokens), static_cast<unsigned>(ceil_div(n, 1024)));
    combine_kernel<T><<<grid, 256, 0, stream_of(ctx)>>>(out.as<T>(), out.stride[0], outer, p.plan.slot,
                                                        weights, args.top_k, n);
  }
  check_launch(ctx, "fused_experts", args.x);
}

}  // namespace

size_t fused_experts_workspace_bytes(int64_t max_tokens, int32_t top_k, const ExpertWeights& experts,
                                     const ExpertLoraArgs* loras) {
  size_t bytes = 0;
  // Of as few slots to an item as there can be: the most items.
  place(nullptr, tokens_at_once(max_tokens, top_k), top_k, experts, loras, /*item_slots=*/8, &bytes);
  return bytes;
}

void fused_experts(const LaunchContext& ctx, const FusedExpertsArgs& args) {
  const int64_t rows = args.x.shape[0], at_once = tokens_at_once(rows, args.top_k);
  for (int64_t first = 0; first < rows; first += at_once) {
    const int64_t tokens = std::min(at_once, rows - first);
    dispatch_float(args.x.dtype,
                   [&](auto type) { compute<decltype(type)>(ctx, args, first, tokens, nullptr); });
  }
}

void routed_experts(const LaunchContext& ctx, const ExpertRoutingArgs& routing,
                    const FusedExpertsArgs& args) {
  const int64_t rows = args.x.shape[0];
  const bool has_groups = routing.num_top_groups < routing.num_groups;
  const bool in_one = choose(args) == Products::kOneToken || can_choose_and_sort(routing);
  if (rows == 0 || has_groups || !in_one) {
    route_to_experts(ctx, routing);
    return fused_experts(ctx, args);
  }
  dispatch_float(args.x.dtype, [&](auto type) { compute<decltype(type)>(ctx, args, 0, rows, &routing); });
}

}  // namespace quire::cuda
