// out += b h, of up to 16 rows at a time on tensor cores, or, of many rows of a gate and what it is a gate
// of, their activation of that. A unit is 32 outputs side by side, of which a lane of a warp has eight, of
// rows lane / 4 and eight more.
#pragma once

#include <type_traits>

#include "common/activation.cuh"
#include "common/dependent_launch.cuh"
#include "common/tensor_core.cuh"
#include "lora/params.cuh"

namespace quire::cuda {

constexpr int kExpandThreads = 256, kExpandWarps = kExpandThreads / 32;
constexpr int kExpandOutputs = 32;

// What is made of the outputs: nothing more.
struct NotGated {};

// The module that a unit belongs to, and the first of its outputs there.
__device__ __forceinline__ void find_unit(const LoraParams& p, int unit, int& which, int& first) {
  int begin = 0;
  which = 0;
#pragma unroll
  for (int next = 1; next < kMaxLoraModules; ++next) {
    if (unit < p.first_unit[next]) continue;
    which = next;
    begin = p.first_unit[next];
  }
  first = (unit - begin) * kExpandOutputs;
}

// ---- few rows -------------------------------------------------------------------------------------

// A warp has units of one segment that follow each other: one, while there are few segments, so that all
// warps of a device have something to do; and with many of these so many that what is read of a segment is
// worth its way. What decides is how many instructions a warp has one after the other, as there are few
// warps. So a row alone is multiplied by each lane with a row of `b`, several units at a time; more rows by
// tensor cores.
constexpr int kMaxStretch = 8;    // units
constexpr int kExpandAtOnce = 4;  // of a row alone

// Modules are whole units, at multiples of eight outputs.
template <typename T>
__global__ void __launch_bounds__(kExpandThreads, 2)
    lora_expand_few_rows_kernel(const __grid_constant__ LoraParams p, int num_units) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp =
      static_cast<int>(threadIdx.x) / 32 * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
  const int warps = static_cast<int>(gridDim.x) * kExpandWarps;
  let_next_start();
  const int num_segments = __ldcg(p.num_segments);
  if (num_segments == 0) return wait_for_inputs();
  const int stretch = min((num_segments * num_units + warps - 1) / warps, kMaxStretch);
  const int stretches = (num_units + stretch - 1) / stretch;
  if (warp >= stretches * num_segments && warp > 0) return;
#pragma unroll 1
  for (int at = warp; at < stretches * num_segments; at += warps) {
    const int index = at / stretches;
    const LoraSegment segment = load_segment(p, index);
    int unit = (at - index * stretches) * stretch;
    const int end = min(unit + stretch, num_units), last = segment.end - segment.begin - 1;
    const LoraSlot* slot = slot_of(p, segment);
    const int4 ranks = load_ranks(slot);
    const int rows[2] = {__ldcg(p.rows + segment.begin + min(lane / 4, last)),
                         __ldcg(p.rows + segment.begin + min(lane / 4 + 8, last))};
    const T* const h = static_cast<const T*>(p.h) + static_cast<int64_t>(segment.begin) * p.h_stride;
#pragma unroll 1
    while (unit < end) {
      int which, first;
      find_unit(p, unit, which, first);
      const T* matrix = static_cast<const T*>(load_pointer(slot->b + which));
      const int rank = which == 0 ? ranks.x : which == 1 ? ranks.y : which == 2 ? ranks.z : ranks.w;
      const int rank_before =
          (which > 0 ? ranks.x : 0) + (which > 1 ? ranks.y : 0) + (which > 2 ? ranks.z : 0);
      const int count = min(min(end, p.first_unit[which + 1]) - unit, kExpandAtOnce);
      T* const out = static_cast<T*>(p.out) + p.modules[which].first_output + first;
      if (last == 0) {
        const T* b = matrix + static_cast<int64_t>(first + lane) * rank;
        T* const place = out + rows[0] * p.out_stride + lane;
        float sums[kExpandAtOnce] = {};
        T before[kExpandAtOnce];
#pragma unroll 1
        for (int r = 0; r < rank; r += 8) {
          uint4 w[kExpandAtOnce];
#pragma unroll
          for (int i = 0; i < kExpandAtOnce; ++i) {
            if (i < count) w[i] = __ldg(reinterpret_cast<const uint4*>(b + i * kExpandOutputs * rank + r));
          }
          wait_for_inputs();
          const Vec<T> in = Vec<T>::load(h + rank_before + r);
          if (r == 0) {
#pragma unroll
            for (int i = 0; i < kExpandAtOnce; ++i) {
              if (i < count) before[i] = place[i * kExpandOutputs];
            }
          }
          float x[8];
#pragma unroll
          for (int e = 0; e < 8; ++e) x[e] = to_float(in.x[e]);
#pragma unroll
          for (int i = 0; i < kExpandAtOnce; ++i) {
            const Vec<T> weights = __builtin_bit_cast(Vec<T>, w[i]);
#pragma unroll
            for (int e = 0; e < 8; ++e) sums[i] = fmaf(to_float(weights.x[e]), x[e], sums[i]);
          }
        }
#pragma unroll
        for (int i = 0; i < kExpandAtOnce; ++i) {
          if (i < count && rank > 0) place[i * kExpandOutputs] = from_float<T>(to_float(before[i]) + sums[i]);
        }
        unit += count;
        continue;
      }
      const T* b = matrix + static_cast<int64_t>(first + lane / 8 * 8 + lane / 4 % 2) * rank + lane % 4 * 4;
      const T* from = h + rank_before + lane % 4 * 4;
      float sums[4][4] = {};
      Vec<T> before[2];
#pragma unroll 1
      for (int r = 0; r < rank; r += 16) {
        const bool is_rank = r + lane % 4 * 4 < rank;
        uint2 in[2], w[4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
          w[i] = is_rank ? __ldg(reinterpret_cast<const uint2*>(b + 2 * i * rank + r)) : uint2{};
        wait_for_inputs();
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          in[i] = is_rank
                      ? *reinterpret_cast<const uint2*>(from + min(lane / 4 + 8 * i, last) * p.h_stride + r)
                      : uint2{};
          if (r == 0) before[i] = Vec<T>::load(out + rows[i] * p.out_stride + lane % 4 * 8);
        }
        const uint32_t operand[4] = {in[0].x, in[1].x, in[0].y, in[1].y};
#pragma unroll
        for (int i = 0; i < 4; ++i) multiply_add<T>(sums[i], operand, w[i].x, w[i].y);
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (8 * half > last || rank == 0) break;
        Vec<T> made;
#pragma unroll
        for (int i = 0; i < 8; ++i)
          made.x[i] = from_float<T>(to_float(before[half].x[i]) + sums[i / 2][2 * half + i % 2]);
        if (lane / 4 + 8 * half <= last) made.store(out + rows[half] * p.out_stride + lane % 4 * 8);
      }
      ++unit;
    }
  }
  wait_for_inputs();
}

// ---- many rows ------------------------------------------------------------------------------------

// Up to 32 outputs of one module.
struct ExpandUnit {
  int which;        // module
  int first;        // of its outputs
  int num_outputs;  // from there on; more than 32 are 32
  int column;       // of the lane's first one

  ExpandUnit() = default;
  __device__ __forceinline__ ExpandUnit(const LoraParams& p, int unit) {
    find_unit(p, unit, which, first);
    num_outputs = static_cast<int>(p.modules[which].num_outputs) - first;
    column = static_cast<int>(p.modules[which].first_output) + first + static_cast<int>(threadIdx.x) % 4 * 8;
  }
};

// What an adapter has of a unit.
template <typename T>
struct ExpandMatrix {
  const T* b = nullptr;  // of the lane's first row and rank
  int rank = 0, rank_before = 0;

  __device__ __forceinline__ void find(const LoraSlot* slot, const ExpandUnit& unit) {
    const int4 ranks = load_ranks(slot);
    rank = unit.which == 0 ? ranks.x : unit.which == 1 ? ranks.y : unit.which == 2 ? ranks.z : ranks.w;
    rank_before =
        (unit.which > 0 ? ranks.x : 0) + (unit.which > 1 ? ranks.y : 0) + (unit.which > 2 ? ranks.z : 0);
    const int lane = static_cast<int>(threadIdx.x) % 32, group = lane / 4;
    b = static_cast<const T*>(load_pointer(slot->b + unit.which)) +
        static_cast<int64_t>(unit.first + group / 2 * 8 + group % 2) * rank + lane % 4 * 4;
  }
  // 16 ranks from `first` on, of the outputs that the lane has in the second operands of four products.
  __device__ __forceinline__ void load(uint2 (&to)[4], int num_outputs, int first) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, group = lane / 4;
    const int mine = group / 2 * 8 + group % 2;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      to[i] = first + lane % 4 * 4 < rank && mine + 2 * i < num_outputs
                  ? __ldg(reinterpret_cast<const uint2*>(b + 2 * i * rank + first))
                  : uint2{};
    }
  }
};

// Whether eight values lie as one vector.
template <typename T>
__device__ __forceinline__ bool is_vector(const T* place, int count) {
  return reinterpret_cast<uintptr_t>(place) % 16 == 0 && count >= 8;
}

// Of a segment's rows, a unit's outputs before, and what is added to them.
template <typename T, int kUnits>
struct ManyRowsTask {
  LoraSegment segment;
  ExpandUnit units[kUnits];
  int rows[2];  // of the batch; -1: none
  int rank[kUnits], rank_before[kUnits];
  uint2 b[kUnits][4];  // of the first 16 ranks
  uint2 h[kUnits][2];
  Vec<T> before[2][kUnits];
  int most_ranks;

  __device__ __forceinline__ int outputs() const {  // from the lane's first one on
    return units[0].num_outputs - static_cast<int>(threadIdx.x) % 4 * 8;
  }
  __device__ __forceinline__ void load_b(const LoraParams& p, int first_rank) {
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      ExpandMatrix<T> matrix;
      if (segment.slot >= 0) matrix.find(slot_of(p, segment), units[u]);
      matrix.load(b[u], units[u].num_outputs, first_rank);
      rank[u] = matrix.rank;
      rank_before[u] = matrix.rank_before;
      most_ranks = max(most_ranks, matrix.rank);
    }
  }
  __device__ __forceinline__ void load_h(const LoraParams& p, int first) {
    const int lane = static_cast<int>(threadIdx.x) % 32, at = first + lane % 4 * 4;
    const T* from =
        static_cast<const T*>(p.h) + static_cast<int64_t>(segment.begin + lane / 4) * p.h_stride + at;
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        h[u][i] = at < rank[u] && rows[i] >= 0
                      ? *reinterpret_cast<const uint2*>(from + 8 * i * p.h_stride + rank_before[u])
                      : uint2{};
      }
    }
  }
  __device__ __forceinline__ const T* place(const LoraParams& p, int u, int i) const {
    return static_cast<const T*>(p.out) + rows[i] * p.out_stride + units[u].column;
  }
  __device__ __forceinline__ void load_before(const LoraParams& p) {
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (rows[i] >= 0 && (kUnits > 1 || is_vector(place(p, u, i), outputs())))
          before[i][u] = Vec<T>::load(place(p, u, i));
      }
    }
  }
  __device__ __forceinline__ void multiply(const LoraParams& p, float (&sums)[kUnits][4][4]) {
#pragma unroll 1
    for (int first = 0; first < most_ranks; first += 16) {
      if (first > 0) {
        load_b(p, first);
        load_h(p, first);
      }
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
        const uint32_t operand[4] = {h[u][0].x, h[u][1].x, h[u][0].y, h[u][1].y};
#pragma unroll
        for (int i = 0; i < 4; ++i) multiply_add<T>(sums[u][i], operand, b[u][i].x, b[u][i].y);
      }
    }
  }
};

// A lane's eight outputs of a row, once what is added to each is known.
template <typename T, typename Gate, typename Sum>
__device__ __forceinline__ Vec<T> finish_outputs(const Vec<T>* before, Sum sum) {
  Vec<T> made;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if constexpr (std::is_same_v<Gate, NotGated>) {
      made.x[i] = from_float<T>(to_float(before[0].x[i]) + sum(0, i));
    } else {
      // Rounded in between as if there were two kernels.
      const float g = to_float(from_float<T>(to_float(before[0].x[i]) + sum(0, i)));
      const float v = to_float(from_float<T>(to_float(before[1].x[i]) + sum(1, i)));
      made.x[i] = from_float<T>(activate_gated<Gate::value>(g, v));
    }
  }
  return made;
}

// Segments that a block has one after the other.
constexpr int kExpandSegments = 8;

// A warp has one unit of the block's kExpandSegments. Gate: NotGated, or an activation as a type's value.
template <typename T, typename Gate>
__global__ void __launch_bounds__(kExpandThreads, std::is_same_v<Gate, NotGated> ? 3 : 2)
    lora_expand_many_rows_kernel(const __grid_constant__ LoraParams p, int num_units) {
  constexpr bool kGated = !std::is_same_v<Gate, NotGated>;
  constexpr int kUnits = kGated ? 2 : 1;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const int unit = static_cast<int>(blockIdx.x) * kExpandWarps + thread / 32;
  const int first_segment = static_cast<int>(blockIdx.y) * kExpandSegments;
  let_next_start();
  const int num_segments = __ldcg(p.num_segments + (kGated ? 1 : 0));
  if (first_segment >= num_segments && !is_first_block()) return;
  if (first_segment >= num_segments) return wait_for_inputs();
  // What each of a warp's reads would wait for is read once for all.
  __shared__ LoraSegment segments[kExpandSegments];
  __shared__ int rows[kExpandSegments][kLoraSegmentRows];
  static_assert(kExpandSegments * kLoraSegmentRows <= kExpandThreads);
  if (thread < kExpandSegments * kLoraSegmentRows) {
    const int i = thread / kLoraSegmentRows, place = thread % kLoraSegmentRows;
    const LoraSegment segment =
        first_segment + i < num_segments ? load_segment(p, first_segment + i) : LoraSegment{-1, 0, 0};
    if (place == 0) segments[i] = segment;
    rows[i][place] = load_row(p, segment, place);
  }
  __syncthreads();
  if (unit >= num_units) return wait_for_inputs();
  ManyRowsTask<T, kUnits> task;
#pragma unroll
  for (int u = 0; u < kUnits; ++u) task.units[u] = ExpandUnit(p, unit + u * num_units);
  const int count = min(kExpandSegments, num_segments - first_segment);
#pragma unroll 1
  for (int s = 0; s < count; ++s) {
    // Mostly that of the segment before.
    const bool has_b = s > 0 && segments[s].slot == task.segment.slot && task.most_ranks <= 16;
    task.segment = segments[s];
#pragma unroll
    for (int i = 0; i < 2; ++i) task.rows[i] = rows[s][lane / 4 + 8 * i];
    if (!has_b) {
      task.most_ranks = 0;
      task.load_b(p, 0);
    }
    wait_for_inputs();
    if (!kGated && task.most_ranks == 0) continue;
    task.load_h(p, 0);
    task.load_before(p);
    float sums[kUnits][4][4] = {};
    task.multiply(p, sums);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (task.rows[half] < 0) continue;
      const auto sum = [&](int u, int i) { return sums[u][i / 2][2 * half + i % 2]; };
      T* place = const_cast<T*>(task.place(p, 0, half));
      if (kGated || is_vector(place, task.outputs())) {
        const Vec<T> made = finish_outputs<T, Gate>(task.before[half], sum);
        made.store(kGated ? static_cast<T*>(p.gated) + task.rows[half] * p.gated_stride + task.units[0].column
                          : place);
      } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          if (i < task.outputs()) place[i] = from_float<T>(to_float(place[i]) + sum(0, i));
        }
      }
    }
  }
}

}  // namespace quire::cuda
