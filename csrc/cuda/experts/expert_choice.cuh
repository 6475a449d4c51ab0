// Which experts a token goes to, where there are no groups of them: what the routing of few tokens and the
// first product of one token's experts share. Both choose alike, bitwise.
//
// A warp has up to 128 experts, four of them a lane; more are had by eight warps. The best of each lane tell
// how good an expert has to be at least, and only those that are as good are compared with each other: of 128
// some ten, for eight choices.
#pragma once

#include <climits>
#include <cstdint>
#include <type_traits>

#include "common/ranking.cuh"
#include "common/types.cuh"
#include "quire/kernels/expert_ops.h"

namespace quire::cuda {

// Tokens from there on are padding.
__device__ __forceinline__ int num_tokens_of(const ExpertRoutingArgs& args) {
  return args.num_tokens != nullptr ? __ldcg(args.num_tokens) : INT_MAX;
}

// Choice j of token t, to memory: an expert and its score, of a sum over all choices. A negative id is none.
__device__ __forceinline__ void write_choice(const ExpertRoutingArgs& args, int64_t t, int j, int id,
                                             float score, float sum) {
  args.expert_ids[t * args.top_k + j] = id;
  args.weights[t * args.top_k + j] =
      id >= 0 ? score * (args.renormalize ? args.scale / sum : args.scale) : 0.0F;
}

__device__ __forceinline__ void count_choice(const ExpertRoutingArgs& args, int id) {
  if (args.counts == nullptr || id < 0) return;
  atomicAdd(reinterpret_cast<unsigned long long*>(args.counts) + id, 1ULL);  // NOLINT(google-runtime-int)
}

// Of one token, by a block's first warps: one or eight.
template <int kWarps>
class ExpertChoice {
 public:
  static constexpr int kPerLane = 4, kMostExperts = 32 * kPerLane * kWarps;

  // Shared by the block.
  struct Memory {
    // Experts that may be among the best, with zeros, which are below any, up to a multiple of kAtOnce.
    alignas(16) Ranked candidates[kMostExperts];
    alignas(16) uint32_t best[kWarps][32];  // of each lane's experts, as find_bound takes it
    float scores[kMostExperts];
    uint32_t highest[kWarps];  // logit
    float sums[kWarps];
    uint32_t bound;
    int num_candidates;
  };

  // Reads nothing but weights: may be in front of wait_for_inputs.
  __device__ __forceinline__ explicit ExpertChoice(const ExpertRoutingArgs& args)
      : lane_(static_cast<int>(threadIdx.x) % 32),
        warp_(kWarps > 1 ? static_cast<int>(threadIdx.x) / 32 : 0),
        num_experts_(static_cast<int>(args.logits.shape[1])) {
    if (args.correction == nullptr) return;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) correction_[i] = args.correction[min(expert(i), num_experts_ - 1)];
  }

  // Writes the best experts of token t to chosen[top_k], -1 where it is padding, and the scores of all to
  // memory.scores. Both are shared, and there for who waits for the warp, or with several for the block.
  __device__ __forceinline__ void choose(const ExpertRoutingArgs& args, int64_t t, Memory& memory,
                                         int* chosen) const {
    float score[kPerLane];
    const int num_tokens = num_tokens_of(args);  // not looked at before the end: it is on its way until then
    const float* logits = static_cast<const float*>(args.logits.data) + t * args.logits.stride[0] + expert(0);
    if (kWarps > 1 && threadIdx.x == 0) memory.num_candidates = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
      score[i] = expert(i) < num_experts_ ? __ldcg(logits + 32 * i) : -INFINITY;
    find_scores(args.scoring, score, memory);

    uint32_t keys[kPerLane];  // 0: no expert
    uint32_t best = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const uint32_t key = order_key(score[i] + correction_[i]);
      keys[i] = expert(i) < num_experts_ ? key : 0;
      memory.scores[expert(i)] = score[i];
      best = max(best, keys[i] / 2);
    }
    const int num_candidates = list_candidates(keys, find_bound(best, args.top_k, memory), memory);
    rank_candidates(num_candidates, args.top_k, t >= num_tokens, memory, chosen);
  }

  // What was chosen, to memory, by one warp.
  static __device__ __forceinline__ void write(const ExpertRoutingArgs& args, int64_t t, const Memory& memory,
                                               const int* chosen) {
    const int lane = static_cast<int>(threadIdx.x) % 32, id = lane < args.top_k ? chosen[lane] : -1;
    const float score = id >= 0 ? memory.scores[id] : 0.0F;
    float sum = 0.0F;
#pragma unroll 4
    for (int j = 0; j < args.top_k; ++j) sum += __shfl_sync(kAll, score, j);
    if (lane < args.top_k) write_choice(args, t, lane, id, score, sum);
  }

 private:
  static constexpr unsigned kAll = 0xFFFFFFFFU;
  static constexpr int kAtOnce = 8;  // candidates that one is compared with

  // Of the warps that choose, which need not be all of the block's.
  static __device__ __forceinline__ void sync() {
    asm volatile("bar.sync 1, %0;\n" ::"n"(32 * kWarps) : "memory");
  }

  __device__ __forceinline__ int expert(int i) const { return (warp_ * kPerLane + i) * 32 + lane_; }

  // Of values of a warp each, in the order of warps. All threads; `values` is used once.
  template <typename Value, typename F>
  __device__ __forceinline__ Value over_warps(Value value, Value (&values)[kWarps], F f) const {
    if constexpr (kWarps > 1) {
      if (lane_ == 0) values[warp_] = value;
      sync();
      value = values[0];
#pragma unroll
      for (int w = 1; w < kWarps; ++w) value = f(value, values[w]);
    }
    return value;
  }

  // Logits become scores.
  __device__ __forceinline__ void find_scores(ExpertScoring scoring, float (&score)[kPerLane],
                                              Memory& memory) const {
    if (scoring == ExpertScoring::kSigmoid) {
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) score[i] = __fdividef(1.0F, 1.0F + expf(-score[i]));
      return;
    }
    float highest = -INFINITY;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) highest = fmaxf(highest, score[i]);
    const uint32_t key = over_warps(__reduce_max_sync(kAll, order_key(highest)), memory.highest,
                                    [](uint32_t a, uint32_t b) { return max(a, b); });
    highest = logit_of(Ranked{key} << 32);
    float sum = 0.0F;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) sum += score[i] = expf(score[i] - highest);
    // One division, for each has branches and waits for the one before it.
    const float factor =
        1.0F / over_warps(warp_sum(sum), memory.sums, [](float a, float b) { return a + b; });
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) score[i] *= factor;
  }

  // What the bests of top_k lanes, and so the top_k best experts, are not below. Of halves of keys, here and
  // in the result: their differences have a sign.
  __device__ __forceinline__ uint32_t find_bound(uint32_t best, int top_k, Memory& memory) const {
    uint32_t bound = 0;
    memory.best[warp_][lane_] = best;
    if constexpr (kWarps > 1) sync();
    if (warp_ == 0) {
      if constexpr (kWarps > 1) {
        for (int w = 1; w < kWarps; ++w) best = max(best, memory.best[w][lane_]);
        memory.best[0][lane_] = best;
      }
      __syncwarp();
      // Sums of signs, four that do not wait for each other: conditional increments become long chains.
      uint4 below = {};
#pragma unroll
      for (int i = 0; i < 32; i += 4) {
        const uint4 others = *reinterpret_cast<const uint4*>(&memory.best[0][i]);
        below.x += (others.x - best) >> 31;
        below.y += (others.y - best) >> 31;
        below.z += (others.z - best) >> 31;
        below.w += (others.w - best) >> 31;
      }
      const int not_below = 32 - static_cast<int>(below.x + below.y + (below.z + below.w));
      bound = __reduce_max_sync(kAll, not_below >= top_k ? best : 0);
    }
    if constexpr (kWarps > 1) {
      if (threadIdx.x == 0) memory.bound = bound;
      sync();
      bound = memory.bound;
    }
    return bound;
  }

  // Writes memory.candidates, in any order, and returns their number with the zeros.
  __device__ __forceinline__ int list_candidates(const uint32_t (&keys)[kPerLane], uint32_t bound,
                                                 Memory& memory) const {
    int at[kPerLane], count = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const unsigned lanes = __ballot_sync(kAll, keys[i] / 2 >= bound);
      at[i] = count + __popc(lanes & ((1U << lane_) - 1));
      count += __popc(lanes);
    }
    const int rounded = (count + kAtOnce - 1) / kAtOnce * kAtOnce;
    int first = 0;
    if constexpr (kWarps > 1) {
      if (lane_ == 0) first = atomicAdd(&memory.num_candidates, rounded);
      first = __shfl_sync(kAll, first, 0);
    }
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (keys[i] / 2 >= bound)
        memory.candidates[first + at[i]] = Ranked{keys[i]} << 32 | ~static_cast<uint32_t>(expert(i));
    }
    if (lane_ < rounded - count) memory.candidates[first + count + lane_] = 0;
    if constexpr (kWarps == 1) {
      __syncwarp();
      return rounded;
    }
    sync();
    return memory.num_candidates;
  }

  // A thread has a candidate, and counts those that are better.
  __device__ __forceinline__ void rank_candidates(int num_candidates, int top_k, bool padding, Memory& memory,
                                                  int* chosen) const {
    for (int i = warp_ * 32 + lane_; i < num_candidates; i += 32 * kWarps) {
      const Ranked mine = memory.candidates[i];
      int2 better = {};
#pragma unroll 1
      for (int j = 0; j < num_candidates; j += kAtOnce) {
#pragma unroll
        for (int k = 0; k < kAtOnce; k += 2) {
          const auto others = *reinterpret_cast<const ulonglong2*>(&memory.candidates[j + k]);
          better.x += static_cast<int>(others.x > mine);
          better.y += static_cast<int>(others.y > mine);
        }
      }
      const int rank = better.x + better.y;
      if (rank < top_k) chosen[rank] = padding ? -1 : static_cast<int>(id_of(mine));
    }
  }

  int lane_, warp_, num_experts_;
  float correction_[kPerLane] = {};
};

// Calls f with as many warps as a choice from so many experts takes, as a type's value.
template <typename F>
void with_choosing_warps(int64_t num_experts, F f) {
  if (num_experts <= ExpertChoice<1>::kMostExperts) return f(std::integral_constant<int, 1>{});
  static_assert(kMaxExperts <= ExpertChoice<8>::kMostExperts);
  f(std::integral_constant<int, 8>{});
}

}  // namespace quire::cuda
