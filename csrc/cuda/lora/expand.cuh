// out += b h, of 16 rows at a time on tensor cores, or, of a gate and what it is a gate of, their activation
// of that. A warp has 32 outputs side by side, each lane eight of them, of rows lane / 4 and eight more.
#pragma once

#include <type_traits>

#include "common/activation.cuh"
#include "common/dependent_launch.cuh"
#include "common/tensor_core.cuh"
#include "lora/params.cuh"

namespace quire::cuda {

constexpr int kExpandThreads = 256, kExpandWarps = kExpandThreads / 32;
constexpr int kExpandOutputs = 32;

__host__ __device__ __forceinline__ int expand_units(const LoraModule& which) {
  return (static_cast<int>(which.num_outputs) + kExpandOutputs - 1) / kExpandOutputs;
}
// Of all modules; with a gate, of its outputs alone.
__host__ __device__ inline int expand_units(const LoraParams& p) {
  int units = 0;
  for (int m = 0; m < p.num_modules; ++m) units += expand_units(p.modules[m]);
  return p.gated != nullptr ? units / 2 : units;
}

// Up to 32 outputs of one module.
struct ExpandUnit {
  int which = 0;    // module
  int first;        // of its outputs
  int num_outputs;  // from there on; more than 32 are 32
  int64_t column;   // of the lane's first one

  __device__ __forceinline__ ExpandUnit(const LoraParams& p, int unit) {
#pragma unroll 1
    while (which + 1 < p.num_modules && unit >= expand_units(p.modules[which]))
      unit -= expand_units(p.modules[which++]);
    first = unit * kExpandOutputs;
    num_outputs = static_cast<int>(p.modules[which].num_outputs) - first;
    column = p.modules[which].first_output + first + static_cast<int>(threadIdx.x) % 4 * 8;
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

// What is made of the outputs: nothing more.
struct NotGated {};

// Segments that a block of many rows has one after the other.
constexpr int kExpandSegments = 8;

// A warp has a unit of kBatch segments, and then of the next: of the block's kExpandSegments where there are
// many, else of those that are gridDim.y further. Gate: NotGated, or an activation as a type's value.
template <typename T, typename Gate, int kBatch, bool kIsMany>
__global__ void __launch_bounds__(kExpandThreads, kBatch == 1 && std::is_same_v<Gate, NotGated> ? 3 : 2)
    lora_expand_kernel(const __grid_constant__ LoraParams p) {
  constexpr bool kGated = !std::is_same_v<Gate, NotGated>;
  constexpr int kUnits = kGated ? 2 : 1;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, row = lane / 4;
  const int index = static_cast<int>(blockIdx.x) * kExpandWarps + thread / 32, num_units = expand_units(p);
  let_next_start();
  const int num_segments = __ldcg(p.num_segments + (kGated ? 1 : 0));
  const int step = kIsMany ? kBatch : static_cast<int>(gridDim.y);
  const int first_segment = static_cast<int>(blockIdx.y) * (kIsMany ? kExpandSegments : 1);
  const int end_segment = kIsMany ? min(first_segment + kExpandSegments, num_segments) : num_segments;
  const bool is_idle = first_segment >= num_segments;
  if (is_idle && !is_first_block()) return;
  if (is_idle) return wait_for_inputs();
  // Of many, what each of a warp's reads would wait for is read once for all.
  __shared__ LoraSegment shared_segments[kIsMany ? kExpandSegments : 1];
  __shared__ int shared_rows[kIsMany ? kExpandSegments : 1][kLoraSegmentRows];
  if constexpr (kIsMany) {
    static_assert(kExpandSegments * kLoraSegmentRows <= kExpandThreads);
    if (thread < kExpandSegments * kLoraSegmentRows) {
      const int i = thread / kLoraSegmentRows;
      const LoraSegment segment =
          first_segment + i < num_segments ? load_segment(p, first_segment + i) : LoraSegment{-1, 0, 0};
      if (thread % kLoraSegmentRows == 0) shared_segments[i] = segment;
      shared_rows[i][thread % kLoraSegmentRows] = load_row(p, segment, thread % kLoraSegmentRows);
    }
    __syncthreads();
  }
  if (index >= num_units) return wait_for_inputs();
  const ExpandUnit units[] = {ExpandUnit(p, index), ExpandUnit(p, kGated ? index + num_units : index)};
  const int mine = units[0].num_outputs - lane % 4 * 8;
  bool has_waited = false;
#pragma unroll 1
  for (int s = first_segment; s < end_segment; s += step) {
    LoraSegment segments[kBatch];
    int rows[kBatch][2];
    uint2 b[kBatch][kUnits][4];
    int ranks[kBatch][kUnits], ranks_before[kBatch][kUnits];
    int most = 0;
    static_assert(kExpandSegments % kBatch == 0 && (kIsMany || kBatch == 1));
#pragma unroll
    for (int j = 0; j < kBatch; ++j)
      segments[j] = kIsMany ? shared_segments[s - first_segment + j] : load_segment(p, s + j);
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i)
        rows[j][i] =
            kIsMany ? shared_rows[s - first_segment + j][row + 8 * i] : load_row(p, segments[j], row + 8 * i);
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
        ExpandMatrix<T> matrix;
        if (segments[j].slot >= 0) matrix.find(slot_of(p, segments[j]), units[u]);
        matrix.load(b[j][u], units[u].num_outputs, 0);
        ranks[j][u] = matrix.rank;
        ranks_before[j][u] = matrix.rank_before;
        most = max(most, matrix.rank);
      }
    }
    if (!has_waited) wait_for_inputs();
    has_waited = true;
    if (!kGated && most == 0) continue;
    Vec<T> before[kBatch][kUnits][2];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const T* place = static_cast<const T*>(p.out) + rows[j][i] * p.out_stride + units[u].column;
          if (rows[j][i] >= 0 && (kGated || is_vector(place, mine))) before[j][u][i] = Vec<T>::load(place);
        }
      }
    }
    float sums[kBatch][kUnits][4][4] = {};
#pragma unroll 1
    for (int first = 0; first < most; first += 16) {
      const int at = first + lane % 4 * 4;
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        const T* h =
            static_cast<const T*>(p.h) + static_cast<int64_t>(segments[j].begin + row) * p.h_stride + at;
#pragma unroll
        for (int u = 0; u < kUnits; ++u) {
          uint2 in[2] = {};
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            if (at < ranks[j][u] && rows[j][i] >= 0)
              in[i] = *reinterpret_cast<const uint2*>(h + 8 * i * p.h_stride + ranks_before[j][u]);
          }
          if (first > 0) {
            ExpandMatrix<T> matrix;
            if (segments[j].slot >= 0) matrix.find(slot_of(p, segments[j]), units[u]);
            matrix.load(b[j][u], units[u].num_outputs, first);
          }
          const uint32_t operand[4] = {in[0].x, in[1].x, in[0].y, in[1].y};
#pragma unroll
          for (int i = 0; i < 4; ++i) multiply_add<T>(sums[j][u][i], operand, b[j][u][i].x, b[j][u][i].y);
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      if (!kGated && ranks[j][0] == 0) continue;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int at = rows[j][half];
        if (at < 0) continue;
        T* place = static_cast<T*>(p.out) + at * p.out_stride + units[0].column;
        const Vec<T>& gate = before[j][0][half];
        const auto sum = [&](int u, int i) { return sums[j][u][i / 2][2 * half + i % 2]; };
        Vec<T> made;
        if constexpr (kGated) {  // which lies in vectors
          const Vec<T>& up = before[j][1][half];
#pragma unroll
          for (int i = 0; i < 8; ++i) {
            // Rounded in between as if there were two kernels.
            const float g = to_float(from_float<T>(to_float(gate.x[i]) + sum(0, i)));
            const float v = to_float(from_float<T>(to_float(up.x[i]) + sum(1, i)));
            made.x[i] = from_float<T>(activate_gated<Gate::value>(g, v));
          }
          made.store(static_cast<T*>(p.gated) + at * p.gated_stride + units[0].column);
        } else if (is_vector(place, mine)) {
#pragma unroll
          for (int i = 0; i < 8; ++i) made.x[i] = from_float<T>(to_float(gate.x[i]) + sum(0, i));
          made.store(place);
        } else {
#pragma unroll
          for (int i = 0; i < 8; ++i) {
            if (i < mine) place[i] = from_float<T>(to_float(place[i]) + sum(0, i));
          }
        }
      }
    }
  }
}

}  // namespace quire::cuda
