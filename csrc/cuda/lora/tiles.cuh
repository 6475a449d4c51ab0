// Products of up to 16 rows with an adapter's matrices on tensor cores, which have those rows for the 16 of
// their first operand. All operands come from memory in 8 or 16 bytes a lane and go to the registers that they
// lie in: an element's place in the depth of a product is anyone's, as long as both operands agree.
#pragma once

#include "common/tensor_core.cuh"
#include "lora/params.cuh"

namespace quire::cuda {

constexpr int kLoraThreads = 256, kLoraWarps = kLoraThreads / 32;
constexpr int kShrinkDepth = 32;        // of k, in a step of one warp
constexpr int kShrinkTiles = 8;         // of 8 ranks, at once
constexpr int kExpandOutputs = 32;      // of a warp at once
static_assert(kLoraSegmentRows == 16 && kLoraRankMultiple == 8);

// Rows of x that a lane has of each operand: lane / 4, and eight more.
template <typename T>
struct LoraInputs {
  const T* row[2];  // null: there is none

  __device__ LoraInputs(const LoraParams& p, const LoraSegment& segment) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int index = segment.begin + (static_cast<int>(threadIdx.x) % 32) / 4 + 8 * i;
      row[i] = index < segment.end
                   ? static_cast<const T*>(p.x) + __ldcg(p.rows + index) * p.x_stride
                   : nullptr;
    }
  }
};

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

// Adds up steps [begin, end) of a x for ranks from `first` on, 8 * kTiles of them.
template <typename T, int kTiles>
__device__ __forceinline__ void shrink_steps(float (&sums)[kTiles][4], const T* a, int first, int total_rank,
                                             int k, const LoraInputs<T>& x, int begin, int end) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = first + lane / 4;
#pragma unroll 2
  for (int step = begin; step < end; ++step) {
    const int at = step * kShrinkDepth + lane % 4 * 8;
    const bool inside = at < k;
    uint4 in[2], w[kTiles];
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      w[i] = inside && row + 8 * i < total_rank ? load_streamed(a + static_cast<int64_t>(row + 8 * i) * k + at)
                                                : uint4{};
    }
#pragma unroll
    for (int i = 0; i < 2; ++i)
      in[i] = inside && x.row[i] != nullptr ? *reinterpret_cast<const uint4*>(x.row[i] + at) : uint4{};
    const uint32_t low[4] = {in[0].x, in[1].x, in[0].y, in[1].y};
    const uint32_t high[4] = {in[0].z, in[1].z, in[0].w, in[1].w};
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      multiply_add<T>(sums[i], low, w[i].x, w[i].y);
      multiply_add<T>(sums[i], high, w[i].z, w[i].w);
    }
  }
}

// Floats of shared memory that `shrink` needs for ranks up to this.
__host__ __device__ constexpr int shrink_floats(int max_total_rank) {
  const int ranks = max_total_rank < 8 * kShrinkTiles ? max_total_rank : 8 * kShrinkTiles;
  return kLoraWarps * kLoraSegmentRows * ranks;
}

// What the block makes of its share of the depth, block `part` of `num_parts`: calls put(row, rank, sum) for all
// rows and ranks, each by one thread. `parts` is free again behind the next barrier.
template <typename T, typename Put>
__device__ __forceinline__ void shrink(const LoraParams& p, const LoraShare& share, int part, int num_parts,
                                       float* parts, const Put& put) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const LoraInputs<T> x(p, share.segment);
  const int steps = (p.k + kShrinkDepth - 1) / kShrinkDepth;
  const int workers = num_parts * kLoraWarps, worker = part * kLoraWarps + warp;
  const int each = (steps + workers - 1) / workers;
  const int begin = worker * each, end = begin + each < steps ? begin + each : steps;
  const int num_rows = share.num_rows();
  for (int first = 0; first < share.total_rank; first += 8 * kShrinkTiles) {
    const int left = share.total_rank - first;
    const int ranks = left < 8 * kShrinkTiles ? left : 8 * kShrinkTiles;
    const auto run = [&]<int kTiles>() {
      float sums[kTiles][4] = {};
      shrink_steps<T, kTiles>(sums, static_cast<const T*>(share.a), first, share.total_rank, p.k, x, begin,
                              end);
      if (first > 0) __syncthreads();  // the ranks before have been read
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int row = lane / 4 + 8 * half, rank = 8 * i + lane % 4 * 2;
          if (row < num_rows && rank < ranks) {
            *reinterpret_cast<float2*>(parts + (warp * kLoraSegmentRows + row) * ranks + rank) =
                float2{sums[i][2 * half], sums[i][2 * half + 1]};
          }
        }
      }
    };
    if (ranks <= 8) {
      run.template operator()<1>();
    } else if (ranks <= 16) {
      run.template operator()<2>();
    } else if (ranks <= 32) {
      run.template operator()<4>();
    } else {
      run.template operator()<8>();
    }
    __syncthreads();
    for (int i = thread; i < num_rows * ranks; i += kLoraThreads) {
      float sum = 0.0F;
#pragma unroll
      for (int w = 0; w < kLoraWarps; ++w) sum += parts[w * kLoraSegmentRows * ranks + i];
      put(i / ranks, first + i % ranks, sum);
    }
  }
}

// How many units of outputs all modules have.
__device__ __forceinline__ int expand_units(const LoraParams& p) {
  int units = 0;
#pragma unroll
  for (int m = 0; m < kMaxLoraModules; ++m) {
    if (m < p.num_modules)
      units += (static_cast<int>(p.modules[m].num_outputs) + kExpandOutputs - 1) / kExpandOutputs;
  }
  return units;
}

// One unit of an adapter's outputs: up to 32 of one module, of which a lane has eight side by side, for rows
// lane / 4 and eight more.
template <typename T>
class ExpandUnit {
 public:
  __device__ __forceinline__ ExpandUnit(const LoraParams& p, const LoraShare& share, int unit) : p_(p) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    int which = 0;
    rank_before_ = 0;
#pragma unroll
    for (int m = 0; m < kMaxLoraModules - 1; ++m) {
      const int units = (static_cast<int>(p.modules[m].num_outputs) + kExpandOutputs - 1) / kExpandOutputs;
      if (which == m && m + 1 < p.num_modules && unit >= units) {
        unit -= units;
        rank_before_ += share.ranks[m];
        which = m + 1;
      }
    }
    rank_ = share.ranks[0];
    LoraModule outputs = p.modules[0];
#pragma unroll
    for (int m = 1; m < kMaxLoraModules; ++m) {
      if (which == m) {
        rank_ = share.ranks[m];
        outputs = p.modules[m];
      }
    }
    if (rank_ == 0) return;
    b_ = share.b<T>(which);
    const int first = unit * kExpandOutputs;
    num_outputs_ = static_cast<int>(outputs.num_outputs) - first;
    b_ += static_cast<int64_t>(first) * rank_;
    column_ = outputs.first_output + first + lane % 4 * 8;
  }
  __device__ __forceinline__ int rank() const { return rank_; }

  // Its rows of `b`, on their way to the L2 cache.
  __device__ __forceinline__ void prefetch_b() const {
    if (rank_ == 0) return;
    const int outputs = num_outputs_ < kExpandOutputs ? num_outputs_ : kExpandOutputs;
    constexpr int kLine = 128 / sizeof(T);
    for (int i = static_cast<int>(threadIdx.x) % 32 * kLine; i < outputs * rank_; i += 32 * kLine)
      prefetch_line(b_ + i);
  }

  // 16 ranks from `first` on, of the outputs that the lane's quarter of each product has.
  __device__ __forceinline__ void load_b(uint2 (&b)[4], int first) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, group = lane / 4;
    const int at = first + lane % 4 * 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int output = group / 2 * 8 + 2 * i + group % 2;
      b[i] = at < rank_ && output < num_outputs_
                 ? __ldg(reinterpret_cast<const uint2*>(b_ + static_cast<int64_t>(output) * rank_ + at))
                 : uint2{};
    }
  }
  // h: of row 0 of the segment; its rows are `stride` apart.
  template <typename Load>
  __device__ __forceinline__ void add_up(float (&sums)[4][4], const uint2 (&b)[4], const T* h, int stride,
                                         int num_rows, int first, const Load& load) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, row = lane / 4;
    const int at = first + lane % 4 * 4;
    const T* from = h + row * stride + rank_before_ + at;
    const uint2 low = at < rank_ && row < num_rows ? load(from) : uint2{};
    const uint2 high = at < rank_ && row + 8 < num_rows ? load(from + 8 * stride) : uint2{};
    const uint32_t operand[4] = {low.x, high.x, low.y, high.y};
#pragma unroll
    for (int i = 0; i < 4; ++i) multiply_add<T>(sums[i], operand, b[i].x, b[i].y);
  }
  // Of the lane's place in a row.
  __device__ __forceinline__ T* place(int row) const {
    return static_cast<T*>(p_.out) + static_cast<int64_t>(row) * p_.out_stride + column_;
  }
  // Whether all eight are there, and lie as one vector.
  __device__ __forceinline__ bool is_vector(const T* place) const {
    return reinterpret_cast<uintptr_t>(place) % 16 == 0 &&
           static_cast<int>(threadIdx.x) % 4 * 8 + 8 <= num_outputs_;
  }
  // `before` is what a vector held.
  __device__ __forceinline__ void add_to(T* place, const float (&sums)[4][4], int half, Vec<T> before) const {
    if (is_vector(place)) {
      Vec<T> after;
#pragma unroll
      for (int i = 0; i < 8; ++i)
        after.x[i] = from_float<T>(to_float(before.x[i]) + sums[i / 2][2 * half + i % 2]);
      after.store(place);
      return;
    }
    const int left = num_outputs_ - static_cast<int>(threadIdx.x) % 4 * 8;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (i < left) place[i] = from_float<T>(to_float(place[i]) + sums[i / 2][2 * half + i % 2]);
    }
  }

 private:
  const LoraParams& p_;
  const T* b_ = nullptr;
  int64_t column_ = 0;
  int rank_, rank_before_, num_outputs_ = 0;
};

// What is read of a unit before h is known: the first ranks of `b`, and the outputs.
template <typename T>
struct ExpandHead {
  uint2 b[4];
  T* place[2];  // null: no such row
  Vec<T> before[2];

  __device__ __forceinline__ ExpandHead(const LoraParams& p, const LoraShare& share,
                                        const ExpandUnit<T>& unit) {
    if (unit.rank() == 0) return;
    unit.load_b(b, 0);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int index = share.segment.begin + (static_cast<int>(threadIdx.x) % 32) / 4 + 8 * half;
      place[half] = index < share.segment.end ? unit.place(__ldcg(p.rows + index)) : nullptr;
      if (place[half] != nullptr && unit.is_vector(place[half])) before[half] = Vec<T>::load(place[half]);
    }
  }
};

template <typename T, typename Load>
__device__ __forceinline__ void expand(const ExpandUnit<T>& unit, ExpandHead<T>& head, const T* h, int stride,
                                       int num_rows, const Load& load) {
  if (unit.rank() == 0) return;
  float sums[4][4] = {};
  unit.add_up(sums, head.b, h, stride, num_rows, 0, load);
  for (int first = 16; first < unit.rank(); first += 16) {
    unit.load_b(head.b, first);
    unit.add_up(sums, head.b, h, stride, num_rows, first, load);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (head.place[half] != nullptr) unit.add_to(head.place[half], sums, half, head.before[half]);
  }
}

}  // namespace quire::cuda
