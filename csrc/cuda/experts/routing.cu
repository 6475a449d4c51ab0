// Which experts a token goes to: a warp for each token, or by rank where few wait for it.
#include "common/dependent_launch.cuh"
#include "common/types.cuh"
#include "experts/expert_choice.cuh"
#include "ops.h"

namespace quire::cuda {
namespace {

constexpr int kWarps = 4;
// As many blocks of a whole token are there at once, more or less.
constexpr int64_t kMaxRankedTokens = 256;

// The best of all lanes, on each of them: of equal values the lowest index.
struct Best {
  float value = -__builtin_huge_valf();
  int index = INT_MAX;

  __device__ void take(float other_value, int other_index) {
    if (other_value > value || (other_value == value && other_index < index)) {
      value = other_value;
      index = other_index;
    }
  }
  __device__ void over_warp() {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2)
      take(__shfl_xor_sync(0xFFFFFFFFU, value, offset), __shfl_xor_sync(0xFFFFFFFFU, index, offset));
  }
};

// Lane l has experts l, l + 32, ... A choice of -infinity is out; one that is not a number counts as such.
template <int kPerLane>
struct Choices {
  float score[kPerLane], choice[kPerLane];

  __device__ void load(const ExpertRoutingArgs& args, const float* logits, int num_experts, int lane) {
    constexpr float kOut = -__builtin_huge_valf();
    float highest = kOut;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int e = lane + 32 * i;
      score[i] = e < num_experts ? logits[e] : kOut;
      highest = fmaxf(highest, score[i]);
    }
    if (args.scoring == ExpertScoring::kSigmoid) {
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) score[i] = 1.0F / (1.0F + expf(-score[i]));
    } else {
      highest = warp_max(highest);
      float sum = 0.0F;
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) sum += score[i] = expf(score[i] - highest);
      sum = warp_sum(sum);
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) score[i] /= sum;
    }
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int e = lane + 32 * i;
      choice[i] = kOut;
      if (e < num_experts) {
        const float value = score[i] + (args.correction != nullptr ? args.correction[e] : 0.0F);
        choice[i] = value == value ? value : kOut;
      }
    }
  }

  // `shared`: num_experts floats of this warp's.
  __device__ void keep_best_groups(const ExpertRoutingArgs& args, int num_experts, int lane, float* shared) {
    constexpr float kOut = -__builtin_huge_valf();
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (lane + 32 * i < num_experts) shared[lane + 32 * i] = choice[i];
    }
    __syncwarp();
    const int size = num_experts / args.num_groups;
    float group = kOut;  // of group `lane`
    if (lane < args.num_groups) {
      float first = kOut, second = kOut;
      for (int e = lane * size; e < (lane + 1) * size; ++e) {
        second = fmaxf(second, fminf(first, shared[e]));
        first = fmaxf(first, shared[e]);
      }
      group = args.correction != nullptr && size > 1 ? first + second : first;
    }
    unsigned kept = 0;
    for (int n = 0; n < args.num_top_groups; ++n) {
      Best best;
      if (lane < args.num_groups && (kept >> lane & 1U) == 0) best.take(group, lane);
      best.over_warp();
      kept |= 1U << best.index;
    }
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int e = lane + 32 * i;
      if (e < num_experts && (kept >> (e / size) & 1U) == 0) choice[i] = kOut;
    }
  }
};

template <int kPerLane>
__global__ void __launch_bounds__(32 * kWarps) route_kernel(const ExpertRoutingArgs args) {
  extern __shared__ float groups[];
  let_next_start();
  wait_for_inputs();
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t t = int64_t{blockIdx.x} * kWarps + warp;
  if (t >= args.logits.shape[0]) return;
  const int num_experts = static_cast<int>(args.logits.shape[1]);
  if (t >= num_tokens_of(args)) {
    if (lane < args.top_k) write_choice(args, t, lane, -1, 0.0F, 0.0F);
    return;
  }
  Choices<kPerLane> choices;
  choices.load(args, static_cast<const float*>(args.logits.data) + t * args.logits.stride[0], num_experts,
               lane);
  if (args.num_top_groups < args.num_groups)
    choices.keep_best_groups(args, num_experts, lane, groups + warp * num_experts);
  unsigned taken = 0;  // of this lane's
  int my_id = 0;       // lane j keeps the j-th choice
  float my_weight = 0.0F, sum = 0.0F;
  for (int j = 0; j < args.top_k; ++j) {
    Best best;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int e = lane + 32 * i;
      if (e < num_experts && (taken >> i & 1U) == 0) best.take(choices.choice[i], e);
    }
    best.over_warp();
    float score = 0.0F;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (best.index == lane + 32 * i) {
        taken |= 1U << i;
        score = choices.score[i];
      }
    }
    score = __shfl_sync(0xFFFFFFFFU, score, best.index % 32);
    sum += score;
    if (lane == j) {
      my_id = best.index;
      my_weight = score;
    }
  }
  if (lane < args.top_k) {
    write_choice(args, t, lane, my_id, my_weight, sum);
    count_choice(args, my_id);
  }
}

// A block for a token. For layers without groups.
template <int kChoosingWarps>
__global__ void __launch_bounds__(32 * kChoosingWarps)
    rank_kernel(const __grid_constant__ ExpertRoutingArgs args) {
  __shared__ typename ExpertChoice<kChoosingWarps>::Memory memory;
  __shared__ int chosen[kMaxExpertsPerToken];
  let_next_start();
  const ExpertChoice<kChoosingWarps> choice(args);
  wait_for_inputs();
  const int64_t t = blockIdx.x;
  choice.choose(args, t, memory, chosen);
  __syncthreads();
  const int i = static_cast<int>(threadIdx.x);
  if (i >= 32) return;
  choice.write(args, t, memory, chosen);
  if (i < args.top_k) count_choice(args, chosen[i]);
}

}  // namespace

void route_to_experts(const LaunchContext& ctx, const ExpertRoutingArgs& args) {
  const int64_t rows = args.logits.shape[0], num_experts = args.logits.shape[1];
  if (rows == 0) return;
  if (rows <= kMaxRankedTokens && args.num_top_groups >= args.num_groups) {
    with_choosing_warps(num_experts, [&](auto warps) {
      launch_dependent(ctx, rank_kernel<warps()>, static_cast<unsigned>(rows), 32 * warps(), 0, args);
    });
    return check_launch(ctx, "route_to_experts", args.logits);
  }
  const auto blocks = static_cast<unsigned>(ceil_div<int64_t>(rows, kWarps));
  const size_t shared = static_cast<size_t>(kWarps * num_experts) * sizeof(float);
  const auto launch = [&](auto kernel) { launch_dependent(ctx, kernel, blocks, 32 * kWarps, shared, args); };
  if (num_experts <= 32) {
    launch(route_kernel<1>);
  } else if (num_experts <= 64) {
    launch(route_kernel<2>);
  } else if (num_experts <= 128) {
    launch(route_kernel<4>);
  } else if (num_experts <= 256) {
    launch(route_kernel<8>);
  } else {
    launch(route_kernel<32>);
  }
  check_launch(ctx, "route_to_experts", args.logits);
}

}  // namespace quire::cuda
