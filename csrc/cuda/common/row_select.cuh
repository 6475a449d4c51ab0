// Cutting a row where the likeliest tokens weigh enough, whatever the row may hold.
#pragma once

#include "common/row_team.cuh"

namespace quire::cuda {

constexpr int kDigits = 256;

// 64-bit sums in 32-bit atomics: shared memory has no others.
struct DigitSums {
  uint32_t low[kDigits], high[kDigits];

  __device__ void clear() {
    for (int i = threadIdx.x; i < kDigits; i += blockDim.x) low[i] = high[i] = 0;
  }
  __device__ void add(int digit, Ranked x) {
    const uint32_t part = static_cast<uint32_t>(x);
    const uint32_t old = atomicAdd(&low[digit], part);
    const uint32_t rest = static_cast<uint32_t>(x >> 32) + (old + part < old);
    if (rest != 0) atomicAdd(&high[digit], rest);
  }
  __device__ Ranked sum(int digit) const { return Ranked{high[digit]} << 32 | low[digit]; }
};

struct SelectMemory {
  DigitSums sums;          // of the block
  Ranked totals[kDigits];  // of the block, then of all
  Ranked prefix, remaining;
  int done;
};

// Down from digit 255, the first at which the sum of totals reaches `goal`, and the sum before it; -1 if none
// does. One warp, on every lane.
__device__ __forceinline__ int digit_reaching(const Ranked* totals, Ranked goal, Ranked& before) {
  constexpr int kEach = kDigits / 32;
  const int lane = threadIdx.x % 32;
  Ranked part = 0;
  for (int j = 0; j < kEach; ++j) part += totals[kDigits - 1 - kEach * lane - j];
  const Ranked upto = sum_upto_lane(part);
  const uint32_t groups = __ballot_sync(0xFFFFFFFFU, upto >= goal);
  if (groups == 0) return -1;
  const int group = __ffs(groups) - 1;
  const Ranked base = __shfl_sync(0xFFFFFFFFU, upto - part, group);
  const int digit = kDigits - 1 - kEach * group - lane;
  const Ranked own = lane < kEach ? totals[digit] : 0, within = sum_upto_lane(own);
  const int found = __ffs(__ballot_sync(0xFFFFFFFFU, lane < kEach && base + within >= goal)) - 1;
  before = base + __shfl_sync(0xFFFFFFFFU, within - own, found);
  return __shfl_sync(0xFFFFFFFFU, digit, found);
}

// Going down the row's order from the top, through elements of at least `floor`, the last one needed to bring
// the sum of weight(logit) to `target`: a bound that exactly those needed are not below. `floor` when all are
// needed. All threads of all blocks of the team.
//
// A radix select, eight bits at a time: exact, and the same for whatever a row may hold.
template <typename Weight>
__device__ Ranked select_bound(const RowTeam& team, const float* row, Ranked floor, Ranked target,
                               const Weight& weight, SelectMemory& memory) {
  Ranked prefix = 0, remaining = target;
  for (int shift = 56; shift >= 0; shift -= 8) {
    memory.sums.clear();
    __syncthreads();
    const int step = static_cast<int>(blockDim.x), rounds = (team.end - team.begin + step - 1) / step;
    for (int round = 0; round < rounds; ++round) {
      const int i = team.begin + round * step + static_cast<int>(threadIdx.x);
      int digit = -1;
      Ranked w = 0;
      if (i < team.end) {
        const float x = row[i];
        const Ranked r = ranked(x, static_cast<uint32_t>(i));
        if (r >= floor && (shift == 56 || r >> (shift + 8) == prefix)) {
          digit = static_cast<int>(r >> shift & 255);
          w = weight(logit_of(r));
        }
      }
      // Most of a row lies within few exponents: one addition for a warp that agrees.
      int same;
      __match_all_sync(0xFFFFFFFFU, digit, &same);
      if (same != 0) w = warp_sum(w);
      if (digit >= 0 && w != 0 && (same == 0 || threadIdx.x % 32 == 0)) memory.sums.add(digit, w);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < kDigits; i += step) memory.totals[i] = memory.sums.sum(i);
    if (team.size > 1) {
      team.sync();
      Ranked total = 0;
      if (threadIdx.x < kDigits)
        for (int rank = 0; rank < team.size; ++rank) total += team.read(memory.totals[threadIdx.x], rank);
      team.sync();  // everybody has read what is overwritten
      if (threadIdx.x < kDigits) memory.totals[threadIdx.x] = total;
    }
    __syncthreads();
    if (threadIdx.x < 32) {
      Ranked before = 0;
      const int digit = digit_reaching(memory.totals, remaining, before);
      if (threadIdx.x == 0) {
        // Nothing left to decide: too little in all, or everything below this prefix is needed.
        memory.done = digit < 0 || before + memory.totals[digit] == remaining;
        memory.prefix = digit < 0 ? 0 : prefix << 8 | static_cast<Ranked>(digit);
        memory.remaining = remaining - before;
      }
    }
    __syncthreads();
    prefix = memory.prefix;
    remaining = memory.remaining;
    const bool done = memory.done != 0;
    __syncthreads();
    if (done) return max(floor, prefix << shift);
  }
  return max(floor, prefix);
}

}  // namespace quire::cuda
