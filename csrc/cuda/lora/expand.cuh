// out += b h, of 16 rows at a time on tensor cores, or, of a gate and what it is a gate of, their activation of
// that. A warp has 32 outputs side by side, each lane eight of them, of rows lane / 4 and eight more.
#pragma once

#include "common/activation.cuh"
#include "common/tensor_core.cuh"
#include "lora/params.cuh"

namespace quire::cuda {

constexpr int kExpandOutputs = 32;

__host__ __device__ __forceinline__ int expand_units(const LoraModule& which) {
  return (static_cast<int>(which.num_outputs) + kExpandOutputs - 1) / kExpandOutputs;
}
// Of all modules; with a gate, of its outputs alone.
__host__ __device__ __forceinline__ int expand_units(const LoraParams& p) {
  if (p.gated != nullptr && p.num_modules == 2) return expand_units(p.modules[0]);
  int units = 0;
#pragma unroll
  for (int m = 0; m < kMaxLoraModules; ++m) units += m < p.num_modules ? expand_units(p.modules[m]) : 0;
  return p.gated != nullptr ? units / 2 : units;
}

// Up to 32 outputs of one module.
template <typename T>
struct ExpandUnit {
  const T* b;
  int64_t column;  // of the lane's first output
  int rank, rank_before;
  int num_outputs;

  ExpandUnit() = default;
  __device__ __forceinline__ ExpandUnit(const LoraParams& p, const LoraSlot& slot, int unit) {
    int64_t first_output = p.modules[0].first_output, outputs = p.modules[0].num_outputs;
    const void* from = slot.b[0];
    rank = slot.ranks[0];
    rank_before = 0;
#pragma unroll
    for (int m = 1; m < kMaxLoraModules; ++m) {
      const int before = expand_units(p.modules[m - 1]);
      if (m >= p.num_modules || unit < before) break;
      unit -= before;
      rank_before += slot.ranks[m - 1];
      rank = slot.ranks[m];
      from = slot.b[m];
      first_output = p.modules[m].first_output;
      outputs = p.modules[m].num_outputs;
    }
    const int first = unit * kExpandOutputs;
    b = static_cast<const T*>(from) + static_cast<int64_t>(first) * rank;
    num_outputs = static_cast<int>(outputs) - first;
    column = first_output + first + static_cast<int>(threadIdx.x) % 4 * 8;
  }

  // 16 ranks from `first` on, of the outputs that the lane has in the second operands of four products.
  __device__ __forceinline__ void load(uint2 (&to)[4], int first) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, group = lane / 4;
    const int at = first + lane % 4 * 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int output = group / 2 * 8 + 2 * i + group % 2;
      to[i] = at < rank && output < num_outputs
                  ? __ldg(reinterpret_cast<const uint2*>(b + static_cast<int64_t>(output) * rank + at))
                  : uint2{};
    }
  }
  // On its way to the L2 cache.
  __device__ __forceinline__ void prefetch() const {
    constexpr int kLine = 128 / sizeof(T);
    const int elements = (num_outputs < kExpandOutputs ? num_outputs : kExpandOutputs) * rank;
    for (int i = static_cast<int>(threadIdx.x) % 32 * kLine; i < elements; i += 32 * kLine)
      prefetch_line(b + i);
  }
  // How many of the lane's outputs there are; more than 8 are 8.
  __device__ __forceinline__ int num_mine() const {
    return num_outputs - static_cast<int>(threadIdx.x) % 4 * 8;
  }

  // Adds up what h has of 16 ranks from `first` on. h: of the tile's first row; its rows are `stride` apart.
  __device__ __forceinline__ void add_up(float (&sums)[4][4], const uint2 (&values)[4], const T* h,
                                         int64_t stride, int num_rows, int first) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, row = lane / 4;
    const int at = first + lane % 4 * 4;
    const T* from = h + row * stride + rank_before + at;
    uint2 in[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      in[i] = at < rank && row + 8 * i < num_rows ? *reinterpret_cast<const uint2*>(from + 8 * i * stride)
                                                  : uint2{};
    }
    const uint32_t operand[4] = {in[0].x, in[1].x, in[0].y, in[1].y};
#pragma unroll
    for (int i = 0; i < 4; ++i) multiply_add<T>(sums[i], operand, values[i].x, values[i].y);
  }
  // Of all ranks, of which the first 16 are in `values`.
  __device__ __forceinline__ void multiply(float (&sums)[4][4], const uint2 (&values)[4], const T* h,
                                           int64_t stride, int num_rows) const {
    if (rank == 0) return;
    add_up(sums, values, h, stride, num_rows, 0);
    for (int first = 16; first < rank; first += 16) {
      uint2 more[4];
      load(more, first);
      add_up(sums, more, h, stride, num_rows, first);
    }
  }
};

// A lane's sum of row lane / 4 + 8 half, and output i of its eight.
__device__ __forceinline__ float sum_of(const float (&sums)[4][4], int half, int i) {
  return sums[i / 2][2 * half + i % 2];
}

// Whether eight values lie as one vector.
template <typename T>
__device__ __forceinline__ bool is_vector(const T* place, int count) {
  return reinterpret_cast<uintptr_t>(place) % 16 == 0 && count >= 8;
}

// Outputs of one row that a lane has of a unit.
template <typename T>
__device__ __forceinline__ T* place_of(const LoraParams& p, const ExpandUnit<T>& unit, int row) {
  return static_cast<T*>(p.out) + static_cast<int64_t>(row) * p.out_stride + unit.column;
}

// `before` holds what was there where that is a vector.
template <typename T>
__device__ __forceinline__ void add_outputs(T* place, int count, const Vec<T>& before,
                                            const float (&sums)[4][4], int half) {
  if (is_vector(place, count)) {
    Vec<T> after;
#pragma unroll
    for (int i = 0; i < 8; ++i) after.x[i] = from_float<T>(to_float(before.x[i]) + sum_of(sums, half, i));
    after.store(place);
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (i < count) place[i] = from_float<T>(to_float(place[i]) + sum_of(sums, half, i));
  }
}

// Of eight outputs of a gate, and of what it is a gate of; rounded in between as if there were two kernels.
template <typename T>
__device__ __forceinline__ void store_gated(const LoraParams& p, T* place, const Vec<T>& gate,
                                            const Vec<T>& up, const float (&gate_sums)[4][4],
                                            const float (&up_sums)[4][4], int half) {
  Vec<T> out;
  dispatch_activation(p.activation, [&](auto kind) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float g = to_float(from_float<T>(to_float(gate.x[i]) + sum_of(gate_sums, half, i)));
      const float u = to_float(from_float<T>(to_float(up.x[i]) + sum_of(up_sums, half, i)));
      out.x[i] = from_float<T>(activate_gated<decltype(kind)::value>(g, u));
    }
  });
  out.store(place);
}

}  // namespace quire::cuda
