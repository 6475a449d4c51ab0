// Which experts a token goes to: a warp for each token, or a block where few wait for it.
#include "common/dependent_launch.cuh"
#include "common/types.cuh"
#include "ops.h"

namespace quire::cuda {
namespace {

constexpr int kWarps = 4;
// As many blocks of a whole token are there at once, more or less.
constexpr int64_t kMaxRankedTokens = 256;

__device__ __forceinline__ void count_choice(const ExpertRoutingArgs& args, int expert) {
  if (args.counts != nullptr)
    atomicAdd(reinterpret_cast<unsigned long long*>(args.counts) + expert,
              1ULL);  // NOLINT(google-runtime-int)
}

// Where a token's choices go, which are none where it is padding.
struct TokenChoices {
  int32_t* ids;
  float* weights;
  bool padding;

  // `i`: of the token's threads, of which there are at least top_k.
  __device__ TokenChoices(const ExpertRoutingArgs& args, int64_t t, int i)
      : ids(args.expert_ids + t * args.top_k),
        weights(args.weights + t * args.top_k),
        padding(args.num_tokens != nullptr && t >= *args.num_tokens) {
    if (!padding || i >= args.top_k) return;
    ids[i] = -1;
    weights[i] = 0.0F;
  }
};

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
  const TokenChoices token(args, t, lane);
  if (token.padding) return;
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
    token.ids[lane] = my_id;
    token.weights[lane] = my_weight * (args.renormalize ? args.scale / sum : args.scale);
    count_choice(args, my_id);
  }
}

// A block for a token, a thread for an expert, which counts the better ones: its rank. For layers without
// groups.
__global__ void __launch_bounds__(kMaxExperts) rank_kernel(const ExpertRoutingArgs args) {
  constexpr float kOut = -__builtin_huge_valf();
  __shared__ float choices[kMaxExperts], partial[33], chosen[kMaxExpertsPerToken];
  let_next_start();
  wait_for_inputs();
  const int64_t t = blockIdx.x;
  const int num_experts = static_cast<int>(args.logits.shape[1]), e = static_cast<int>(threadIdx.x);
  const TokenChoices token(args, t, e);
  if (token.padding) return;
  const bool exists = e < num_experts;
  float score = exists ? (static_cast<const float*>(args.logits.data) + t * args.logits.stride[0])[e] : kOut;
  if (args.scoring == ExpertScoring::kSigmoid) {
    score = 1.0F / (1.0F + expf(-score));
  } else {
    const float highest = block_max(score, partial);
    score = expf(score - highest);
    score /= block_sum(score, partial);
  }
  if (exists) {
    const float value = score + (args.correction != nullptr ? args.correction[e] : 0.0F);
    choices[e] = value == value ? value : kOut;
  }
  __syncthreads();
  int rank = exists ? 0 : num_experts;
  if (exists) {
    const float mine = choices[e];
#pragma unroll 8
    for (int other = 0; other < num_experts; ++other) {
      const float value = choices[other];
      rank += value > mine || (value == mine && other < e) ? 1 : 0;
    }
  }
  if (rank < args.top_k) chosen[rank] = score;
  __syncthreads();
  if (rank >= args.top_k) return;
  float sum = 0.0F;
  for (int i = 0; i < args.top_k; ++i) sum += chosen[i];
  token.ids[rank] = e;
  token.weights[rank] = score * (args.renormalize ? args.scale / sum : args.scale);
  count_choice(args, e);
}

}  // namespace

void route_to_experts(const LaunchContext& ctx, const ExpertRoutingArgs& args) {
  const int64_t rows = args.logits.shape[0], num_experts = args.logits.shape[1];
  if (rows == 0) return;
  if (rows <= kMaxRankedTokens && args.num_top_groups >= args.num_groups) {
    const auto threads = static_cast<unsigned>(ceil_div<int64_t>(num_experts, 32) * 32);
    launch_dependent(ctx, rank_kernel, static_cast<unsigned>(rows), threads, 0, args);
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
