// out += b h, or the activation of that, behind the linear (beside.cuh): what is read of `b` first is there
// when the linear ends.
#pragma once

#include <type_traits>

#include "common/divisor.h"
#include "common/weight_stream.cuh"
#include "lora/beside.cuh"

namespace quire::cuda {

// What a warp has found of a segment.
struct ExpandBesideTask {
  int begin, last;
  // Of the module that is the lane's number; what `a` has made of those before lies before what it has of it.
  const void* b = nullptr;
  int rank = 0, rank_before = 0;

  __device__ __forceinline__ ExpandBesideTask(const LoraParams& p, const LoraSegment& segment)
      : begin(segment.begin), last(segment.end - segment.begin - 1) {
    if (segment.slot < 0) return;
    const LoraSlot* slot = slot_of(p, segment);
    const int4 ranks = load_ranks(slot);
    const int which = static_cast<int>(threadIdx.x) % kMaxLoraModules;
    b = load_pointer(slot->b + which);
    rank = which == 0 ? ranks.x : which == 1 ? ranks.y : which == 2 ? ranks.z : ranks.w;
    rank_before = (which > 0 ? ranks.x : 0) + (which > 1 ? ranks.y : 0) + (which > 2 ? ranks.z : 0);
  }
  // Of the batch; what the segment has less is its last one.
  __device__ __forceinline__ int row(const LoraParams& p, int place) const {
    return __ldcg(p.rows + begin + min(place, last));
  }
};

// Units of one module that follow each other.
template <typename T>
struct ExpandBesideUnits {
  const T* b;  // of the first unit's first output
  int h;       // where what `a` made of the segment's first row begins
  int rank, column, count;

  __device__ __forceinline__ void find(const LoraParams& p, const ExpandBesideTask& task, int unit,
                                       int most) {
    int which, first;
    find_unit(p, unit, which, first);
    const auto of_module = [which](auto x) { return __shfl_sync(0xFFFFFFFFU, x, which); };
    rank = of_module(task.rank);
    b = reinterpret_cast<const T*>(of_module(reinterpret_cast<unsigned long long>(task.b))) +
        static_cast<int64_t>(first) * rank;
    h = task.begin * p.h_stride + of_module(task.rank_before);
    count = min(p.first_unit[which + 1] - unit, most);
    column = static_cast<int>(p.modules[which].first_output) + first;
  }
};

// What a warp makes at once: units of a linear, and, where these are gates, of what they are gates of.
template <typename T, typename Gate>
struct ExpandBeside {
  static constexpr bool kGated = !std::is_same_v<Gate, NotGated>;
  static constexpr int kParts = kGated ? 2 : 1, kRanks = 16;

  const LoraParams& p;
  const ExpandBesideTask& task;
  int splits, split_stride;  // of h
  ExpandBesideUnits<T> parts[kParts];
  int count = 0, most_ranks = 0;

  __device__ __forceinline__ void find(int unit, int most, int num_units) {
    count = most;
    most_ranks = 0;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      parts[part].find(p, task, unit + part * num_units, count);
      count = parts[part].count;
      most_ranks = max(most_ranks, parts[part].rank);
    }
  }
  __device__ __forceinline__ const T* out(int part, int row) const {
    return static_cast<const T*>(p.out) + row * p.out_stride + parts[part].column;
  }
  // Where what is made of it goes.
  __device__ __forceinline__ T* made(int row) const {
    return kGated ? static_cast<T*>(p.gated) + row * p.gated_stride + parts[0].column
                  : const_cast<T*>(out(0, row));
  }
  // Rounded in between as if there were two kernels.
  __device__ __forceinline__ static T finish(const T (&x)[kParts]) {
    if constexpr (kGated) return from_float<T>(activate_gated<Gate::value>(to_float(x[0]), to_float(x[1])));
    return x[0];
  }

  // What all splits of the depth made for four ranks.
  __device__ __forceinline__ float4 load_h(bool is_there, int at) const {
    float4 of_split[kMaxBesideSplits], sum{};
#pragma unroll
    for (int i = 0; i < kMaxBesideSplits; ++i)
      of_split[i] =
          is_there && i < splits
              ? *reinterpret_cast<const float4*>(static_cast<const float*>(p.h) + i * split_stride + at)
              : float4{};
#pragma unroll
    for (const float4& x : of_split) sum = {sum.x + x.x, sum.y + x.y, sum.z + x.z, sum.w + x.w};
    return sum;
  }

  // Of a row alone: two lanes share a row of `b`, and another one 16 further on, so that a warp's reads lie
  // side by side; each then has one output of each of kAlone units.
  static constexpr int kAlone = kGated ? 2 : 4;
  __device__ __forceinline__ void alone() const {
    const int lane = static_cast<int>(threadIdx.x) % 32, row = task.row(p, 0);
    const bool is_odd = lane % 2 != 0;
    const int mine = lane / 2 + (is_odd ? 16 : 0);
    float sums[kParts][kAlone][2] = {};
    T before[kAlone][kParts];
    const auto load_before = [&] {
#pragma unroll
      for (int i = 0; i < kAlone; ++i) {
#pragma unroll
        for (int part = 0; part < kParts; ++part)
          if (i < count) before[i][part] = out(part, row)[i * kExpandOutputs + mine];
      }
    };
#pragma unroll 1
    for (int r = 0; r < most_ranks; r += kRanks) {
      const int rank = r + (is_odd ? 8 : 0);  // the lane's first
      uint4 w[kParts][kAlone][2];
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        const ExpandBesideUnits<T>& units = parts[part];
        const T* from = units.b + lane / 2 * units.rank + rank;
#pragma unroll
        for (int i = 0; i < 2 * kAlone; ++i)
          w[part][i / 2][i % 2] = i / 2 < count && rank < units.rank
                                      ? load_weight(from + i * (kExpandOutputs / 2) * units.rank)
                                      : uint4{};
      }
      wait_for_inputs();
      Vec<T> h[kParts];
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
#pragma unroll
        for (int i = 0; i < 8; i += 4) {
          const float4 four = load_h(rank < parts[part].rank, parts[part].h + rank + i);
          h[part].x[i] = from_float<T>(four.x);
          h[part].x[i + 1] = from_float<T>(four.y);
          h[part].x[i + 2] = from_float<T>(four.z);
          h[part].x[i + 3] = from_float<T>(four.w);
        }
      }
      if (r == 0) load_before();
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
#pragma unroll
        for (int i = 0; i < kAlone; ++i) {
#pragma unroll
          for (int j = 0; j < 2; ++j) sums[part][i][j] = dot(sums[part][i][j], w[part][i][j], h[part]);
        }
      }
    }
    if (most_ranks == 0) {
      wait_for_inputs();
      load_before();
    }
    T* const to = made(row) + mine;
#pragma unroll
    for (int i = 0; i < kAlone; ++i) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        const float (&both)[2] = sums[part][i];
        const float other = __shfl_xor_sync(0xFFFFFFFFU, is_odd ? both[0] : both[1], 1);
        before[i][part] = from_float<T>(to_float(before[i][part]) + ((is_odd ? both[1] : both[0]) + other));
      }
      if (i < count) to[i * kExpandOutputs] = finish(before[i]);
    }
  }

  // 16 ranks of `b` from `rank` on, which is the lane's.
  __device__ __forceinline__ void load_b(uint2 (&w)[4], int part, int rank) const {
    const ExpandBesideUnits<T>& units = parts[part];
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const T* from = units.b + (lane / 8 * 8 + lane / 4 % 2) * units.rank + rank;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      w[i] = rank < units.rank ? __ldg(reinterpret_cast<const uint2*>(from + 2 * i * units.rank)) : uint2{};
  }
  __device__ __forceinline__ void load_h(uint2 (&in)[2], int part, int rank) const {
    const ExpandBesideUnits<T>& units = parts[part];
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float4 h =
          load_h(rank < units.rank, units.h + min(lane / 4 + 8 * i, task.last) * p.h_stride + rank);
      in[i] = {pack<T>(h.x, h.y), pack<T>(h.z, h.w)};
    }
  }
  // Of up to 16 rows and one unit: a lane has eight outputs of rows lane / 4 and eight more.
  __device__ __forceinline__ void some() const {
    const int lane = static_cast<int>(threadIdx.x) % 32, column = lane % 4 * 8, first = lane % 4 * 4;
    const int rows[2] = {task.row(p, lane / 4), task.row(p, lane / 4 + 8)};
    uint2 w[kParts][4], in[kParts][2];
#pragma unroll
    for (int part = 0; part < kParts; ++part) load_b(w[part], part, first);
    wait_for_inputs();
    Vec<T> before[2][kParts];
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      load_h(in[part], part, first);
#pragma unroll
      for (int half = 0; half < 2; ++half) before[half][part] = Vec<T>::load(out(part, rows[half]) + column);
    }
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      float sums[4][4] = {};
      const auto multiply = [&] {
        const uint32_t operand[4] = {in[part][0].x, in[part][1].x, in[part][0].y, in[part][1].y};
#pragma unroll
        for (int i = 0; i < 4; ++i) multiply_add<T>(sums[i], operand, w[part][i].x, w[part][i].y);
      };
      multiply();
#pragma unroll 1
      for (int r = kRanks; r < parts[part].rank; r += kRanks) {
        load_b(w[part], part, first + r);
        load_h(in[part], part, first + r);
        multiply();
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          T& x = before[half][part].x[i];
          x = from_float<T>(to_float(x) + sums[i / 2][2 * half + i % 2]);
        }
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (lane / 4 + 8 * half > task.last) continue;
      Vec<T> made_of;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        T x[kParts];
#pragma unroll
        for (int part = 0; part < kParts; ++part) x[part] = before[half][part].x[i];
        made_of.x[i] = finish(x);
      }
      made_of.store(made(rows[half]) + column);
    }
  }
};

template <typename Gate>
constexpr int kFewUnits = std::is_same_v<Gate, NotGated> ? 4 : 1;

// A warp has units that follow each other, also from one segment to the next. Modules are whole units.
// `num_units`: of all outputs, or of all gates.
template <typename T, typename Gate>
__global__ void __launch_bounds__(kBesideThreads, kExpandBesideBlocks<Gate>)
    lora_expand_beside_kernel(const __grid_constant__ LoraParams p, int num_units, Divisor by_units,
                              int splits, int split_stride, int early_blocks) {
  using Expand = ExpandBeside<T, Gate>;
  const int warp = static_cast<int>(blockIdx.x) * kBesideWarps + static_cast<int>(threadIdx.x) / 32;
  let_next_start();
  __shared__ BesideSegments segments;
  segments.load(p, Expand::kGated);
  const int total = segments.count * num_units;
  // Where they are few those blocks have all that have a place beside the linear.
  const auto shared_by = [total](int blocks) {
    return (total + blocks * kBesideWarps - 1) / (blocks * kBesideWarps);
  };
  const int each = max(shared_by(static_cast<int>(gridDim.x)), min(shared_by(early_blocks), kFewUnits<Gate>));
  int at = warp * each;
  const int end = min(at + each, total);
  if (at >= end && warp > 0) return;
#pragma unroll 1
  while (at < end) {
    const int index = by_units.quotient(at);
    int unit = at - index * num_units;
    const int last_unit = min(num_units, unit + end - at);
    at += last_unit - unit;
    const ExpandBesideTask task(p, segments[index]);
    Expand expand{p, task, splits, split_stride};
    const bool is_alone = task.last == 0;
#pragma unroll 1
    for (; unit < last_unit; unit += expand.count) {
      expand.find(unit, is_alone ? min(last_unit - unit, Expand::kAlone) : 1, num_units);
      if (!Expand::kGated && expand.most_ranks == 0) continue;
      if (is_alone) {
        expand.alone();
      } else {
        expand.some();
      }
    }
  }
  wait_for_inputs();
}

}  // namespace quire::cuda
