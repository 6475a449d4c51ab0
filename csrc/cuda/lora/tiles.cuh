// Products of 16 rows with an adapter's matrices on tensor cores, which have those rows for the 16 of their
// first operand. All operands come from memory in 8 or 16 bytes a lane and go to the registers that they lie
// in: an element's place in the depth of a product is anyone's, as long as both operands agree.
#pragma once

#include "common/tensor_core.cuh"
#include "lora/params.cuh"

namespace quire::cuda {

constexpr int kLoraThreads = 256, kLoraWarps = kLoraThreads / 32;
static_assert(kLoraSegmentRows == 16 && kLoraRankMultiple == 8);

__device__ __forceinline__ uint4 load_streamed(const void* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}
__device__ __forceinline__ void prefetch_line(const void* p) {
  asm volatile("prefetch.global.L2 [%0];\n" ::"l"(p));
}

// ---- h = a x --------------------------------------------------------------------------------------

constexpr int kShrinkDepth = 32;  // of k, in a step of a warp
constexpr int kShrinkTiles = 8;   // of 8 ranks, at once
constexpr int kShrinkRanks = 8 * kShrinkTiles;
// Vectors of `a` that a lane has under way.
constexpr int kShrinkLoads = 16;

// A warp's share of the depth, in steps.
struct ShrinkSteps {
  int begin, end;

  // Worker `i` of `num`.
  __device__ ShrinkSteps(int k, int i, int num) {
    const int steps = (k + kShrinkDepth - 1) / kShrinkDepth, each = (steps + num - 1) / num;
    begin = i * each < steps ? i * each : steps;
    end = begin + each < steps ? begin + each : steps;
  }
};

// kTiles times 8 ranks of `a`, a few steps of them.
template <typename T, int kTiles>
struct ShrinkMatrix {
  static constexpr int kSteps = kShrinkLoads / kTiles;
  uint4 values[kSteps][kTiles];

  // From step `begin` on, and rank `first`.
  __device__ __forceinline__ void load(const void* a, int k, int first, int ranks, int begin, int end) {
    const int lane = static_cast<int>(threadIdx.x) % 32, row = first + lane / 4;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int at = (begin + s) * kShrinkDepth + lane % 4 * 8;
      const T* from = static_cast<const T*>(a) + static_cast<int64_t>(row) * k + at;
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        values[s][i] = begin + s < end && at < k && row + 8 * i < ranks
                           ? load_streamed(from + static_cast<int64_t>(8 * i) * k)
                           : uint4{};
      }
    }
  }
};

// Adds up what these steps make of rows of x: x[2 j + i] is of row lane / 4 + 8 i of tile j, null where there is
// none.
template <typename T, int kTiles, int kRowTiles>
__device__ __forceinline__ void shrink_steps(float (&sums)[kRowTiles][kTiles][4],
                                             const ShrinkMatrix<T, kTiles>& a,
                                             const T* const (&x)[2 * kRowTiles], int k, int begin, int end) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int s = 0; s < ShrinkMatrix<T, kTiles>::kSteps; ++s) {
    const int at = (begin + s) * kShrinkDepth + lane % 4 * 8;
    if (begin + s >= end) break;
#pragma unroll
    for (int j = 0; j < kRowTiles; ++j) {
      uint4 in[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        in[i] = at < k && x[2 * j + i] != nullptr ? *reinterpret_cast<const uint4*>(x[2 * j + i] + at)
                                                  : uint4{};
      }
      const uint32_t low[4] = {in[0].x, in[1].x, in[0].y, in[1].y};
      const uint32_t high[4] = {in[0].z, in[1].z, in[0].w, in[1].w};
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        const uint4 w = a.values[s][i];
        multiply_add<T>(sums[j][i], low, w.x, w.y);
        multiply_add<T>(sums[j][i], high, w.z, w.w);
      }
    }
  }
}

// Floats of shared memory for the sums of all warps.
__host__ __device__ constexpr int shrink_floats(int max_total_rank, int row_tiles) {
  const int ranks = max_total_rank < kShrinkRanks ? max_total_rank : kShrinkRanks;
  return kLoraWarps * row_tiles * kLoraSegmentRows * ranks;
}

// To shared memory, [warps][rows of all tiles][ranks].
template <int kTiles, int kRowTiles>
__device__ __forceinline__ void store_sums(float* parts, const float (&sums)[kRowTiles][kTiles][4], int ranks,
                                           int num_rows) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
  for (int j = 0; j < kRowTiles; ++j) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = j * kLoraSegmentRows + lane / 4 + 8 * half, rank = 8 * i + lane % 4 * 2;
        if (row < num_rows && rank < ranks) {
          *reinterpret_cast<float2*>(parts + (warp * kRowTiles * kLoraSegmentRows + row) * ranks + rank) =
              float2{sums[j][i][2 * half], sums[j][i][2 * half + 1]};
        }
      }
    }
  }
}

// Calls f with the fewest tiles for so many ranks, as a type's value.
template <typename F>
__device__ __forceinline__ void with_shrink_tiles(int ranks, const F& f) {
  if (ranks <= 8) {
    f(std::integral_constant<int, 1>{});
  } else if (ranks <= 16) {
    f(std::integral_constant<int, 2>{});
  } else if (ranks <= 32) {
    f(std::integral_constant<int, 4>{});
  } else {
    f(std::integral_constant<int, 8>{});
  }
}

// The rest of a product whose first loads are in `matrix`: calls put(row, rank, sum) for ranks
// [first, first + ranks) of all rows, each by one thread. `parts` may be written behind the barrier that the
// caller has after this.
template <typename T, int kTiles, int kRowTiles, typename Put>
__device__ __forceinline__ void shrink(ShrinkMatrix<T, kTiles>& matrix, const void* a, int k, int first,
                                       int all_ranks, ShrinkSteps steps, const T* const (&x)[2 * kRowTiles],
                                       int num_rows, float* parts, const Put& put) {
  constexpr int kSteps = ShrinkMatrix<T, kTiles>::kSteps;
  float sums[kRowTiles][kTiles][4] = {};
  for (int step = steps.begin;;) {
    shrink_steps<T, kTiles, kRowTiles>(sums, matrix, x, k, step, steps.end);
    step += kSteps;
    if (step >= steps.end) break;
    matrix.load(a, k, first, all_ranks, step, steps.end);
  }
  const int ranks = all_ranks - first < 8 * kTiles ? all_ranks - first : 8 * kTiles;
  store_sums<kTiles, kRowTiles>(parts, sums, ranks, num_rows);
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < num_rows * ranks; i += kLoraThreads) {
    float sum = 0.0F;
#pragma unroll
    for (int w = 0; w < kLoraWarps; ++w) sum += parts[w * kRowTiles * kLoraSegmentRows * ranks + i];
    put(i / ranks, first + i % ranks, sum);
  }
}

// ---- out += b h -----------------------------------------------------------------------------------

constexpr int kExpandOutputs = 32;  // of a warp at once, eight side by side in each lane

__host__ __device__ __forceinline__ int expand_units(const LoraModule& which) {
  return (static_cast<int>(which.num_outputs) + kExpandOutputs - 1) / kExpandOutputs;
}
__host__ __device__ __forceinline__ int expand_units(const LoraParams& p) {
  int units = 0;
#pragma unroll
  for (int m = 0; m < kMaxLoraModules; ++m) units += m < p.num_modules ? expand_units(p.modules[m]) : 0;
  return units;
}

// Up to 32 outputs of one module.
template <typename T>
struct ExpandUnit {
  const T* b = nullptr;
  int64_t column = 0;  // of the lane's first output
  int rank = 0, rank_before = 0;
  int num_outputs = 0;

  // `unit` is below expand_units.
  __device__ __forceinline__ ExpandUnit(const LoraParams& p, const LoraSlot& slot, int unit) {
    int64_t first_output = p.modules[0].first_output, outputs = p.modules[0].num_outputs;
    const void* from = slot.b[0];
    rank = slot.ranks[0];
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
    for (int i = static_cast<int>(threadIdx.x) % 32 * kLine; i < elements; i += 32 * kLine) prefetch_line(b + i);
  }
  // How many of the lane's outputs there are, at most 8.
  __device__ __forceinline__ int num_mine() const {
    return num_outputs - static_cast<int>(threadIdx.x) % 4 * 8;
  }
};

// What a lane has of the outputs of rows lane / 4 and eight more.
template <typename T>
struct ExpandOutputs {
  T* place[2];  // null: no such row
  Vec<T> before[2];

  __device__ __forceinline__ bool is_vector(const ExpandUnit<T>& unit, int i) const {
    return reinterpret_cast<uintptr_t>(place[i]) % 16 == 0 && unit.num_mine() >= 8;
  }
  __device__ __forceinline__ void load(const LoraParams& p, const ExpandUnit<T>& unit, const int (&rows)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      place[i] = rows[i] >= 0 && unit.rank > 0
                     ? static_cast<T*>(p.out) + static_cast<int64_t>(rows[i]) * p.out_stride + unit.column
                     : nullptr;
      if (place[i] != nullptr && is_vector(unit, i)) before[i] = Vec<T>::load(place[i]);
    }
  }
  __device__ __forceinline__ void add(const ExpandUnit<T>& unit, const float (&sums)[4][4]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (place[half] == nullptr) continue;
      if (is_vector(unit, half)) {
        Vec<T> after;
#pragma unroll
        for (int i = 0; i < 8; ++i)
          after.x[i] = from_float<T>(to_float(before[half].x[i]) + sums[i / 2][2 * half + i % 2]);
        after.store(place[half]);
        continue;
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if (i < unit.num_mine())
          place[half][i] = from_float<T>(to_float(place[half][i]) + sums[i / 2][2 * half + i % 2]);
      }
    }
  }
};

// Adds up 16 ranks from `first` on. h: of the segment's first row; its rows are `stride` apart.
template <typename T>
__device__ __forceinline__ void expand_ranks(float (&sums)[4][4], const ExpandUnit<T>& unit,
                                             const uint2 (&b)[4], const T* h, int64_t stride, int num_rows,
                                             int first) {
  const int lane = static_cast<int>(threadIdx.x) % 32, row = lane / 4;
  const int at = first + lane % 4 * 4;
  const T* from = h + row * stride + unit.rank_before + at;
  const uint2 low = at < unit.rank && row < num_rows ? *reinterpret_cast<const uint2*>(from) : uint2{};
  const uint2 high =
      at < unit.rank && row + 8 < num_rows ? *reinterpret_cast<const uint2*>(from + 8 * stride) : uint2{};
  const uint32_t operand[4] = {low.x, high.x, low.y, high.y};
#pragma unroll
  for (int i = 0; i < 4; ++i) multiply_add<T>(sums[i], operand, b[i].x, b[i].y);
}

// Of a unit whose first 16 ranks are in `b`.
template <typename T>
__device__ __forceinline__ void expand(const ExpandUnit<T>& unit, uint2 (&b)[4],
                                       const ExpandOutputs<T>& outputs, const T* h, int64_t stride,
                                       int num_rows) {
  float sums[4][4] = {};
  expand_ranks(sums, unit, b, h, stride, num_rows, 0);
  for (int first = 16; first < unit.rank; first += 16) {
    unit.load(b, first);
    expand_ranks(sums, unit, b, h, stride, num_rows, first);
  }
  outputs.add(unit, sums);
}

}  // namespace quire::cuda
