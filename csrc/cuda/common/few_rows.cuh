// What products of few rows share that wait for the weight: 16 rows of it at a time, from registers, times 8
// tokens on the tensor cores.
#pragma once

#include "common/tensor_core.cuh"
#include "common/weight_stream.cuh"

namespace quire::cuda::few_rows {

constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;
constexpr int kBlocksPerSm = 2;
constexpr int kTileRows = 16;   // of the weight
constexpr int kTileTokens = 8;  // of one product of the tensor cores
constexpr int kStepDepth = 64;  // of one warp: two times 16 bytes of a row for each of four lanes

// Half a step of one tile: lane 4 g + t has depths 8 t to 8 t + 7 of rows g (`upper`) and g + 8 (`lower`) and
// of token g (`x`). As in linear/int8.cu the tensor cores do not mind which depths meet: product s takes of
// each lane's eight the depths 4 s to 4 s + 3.
template <typename T>
__device__ __forceinline__ void multiply_half_step(float (&sums)[4], const uint4& upper, const uint4& lower,
                                                   const uint4& x) {
  const uint32_t first[4] = {upper.x, lower.x, upper.y, lower.y};
  const uint32_t second[4] = {upper.z, lower.z, upper.w, lower.w};
  multiply_add<T>(sums, first, x.x, x.y);
  multiply_add<T>(sums, second, x.z, x.w);
}

// Calls store(row, token, sums) for the sums of the tile that this lane has: of `row` and tokens `token` and
// `token` + 1.
template <typename Store>
__device__ __forceinline__ void store_sums(const float (&sums)[4], Store store) {
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
  store(g, 2 * t, float2{sums[0], sums[1]});
  store(g + 8, 2 * t, float2{sums[2], sums[3]});
}

}  // namespace quire::cuda::few_rows
