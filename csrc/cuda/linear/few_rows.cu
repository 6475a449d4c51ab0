#include "linear/few_rows.h"

#include <algorithm>

#include "common/few_rows.cuh"

namespace quire::cuda {
namespace {

using namespace few_rows;

constexpr int64_t kMaxRows = 16;
constexpr int kAhead = 4;      // steps of the weight on their way at once
constexpr int kLeastRows = 8;  // of the weight, of a block: fewer would leave lanes without any

// So many things in `parts` stretches of nearly equal length.
struct Stretches {
  int each, longer;  // the first `longer` have one more than `each`
  __device__ Stretches(int count, int parts) : each(count / parts), longer(count % parts) {}
  __device__ int begin(int part) const { return part * each + min(part, longer); }
};

template <typename T>
struct FewRows {
  const T* weight;
  const float* bias;
  const T* x;
  int64_t x_stride;
  void* out;
  int64_t out_stride;
  bool out_is_fp32;
  int m, n, k;
  int units;  // of each block
  int turns;  // of each warp in a unit, kAhead steps each
};

// Two blocks on each multiprocessor have an equal stretch of the weight's rows each. A block reads in units:
// up to 16 rows for each team of kDepthWarps warps, which take steps of the depth in turn, and whose sums are
// added in their order. Rows are divided evenly among blocks, units and teams, one by one, so that none has
// more than one more than another. As in row_stream.cuh steps of the weight are asked for as soon as earlier
// ones are used, of the next unit too, and first before the kernel in front has ended.
//
// x comes from the L2 cache. Teams go through it side by side, so that the L1 cache has for the others what
// one has read; a copy in shared memory would take from that cache what loads on their way need.
template <typename T, int kTiles, int kDepthWarps>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    linear_few_rows_kernel(const __grid_constant__ FewRows<T> p) {
  constexpr int kTeams = kWarps / kDepthWarps, kUnitRows = kTeams * kTileRows;
  constexpr int kStride = kStepDepth * kDepthWarps, kTurn = kAhead * kStride;  // of a warp along the depth
  __shared__ alignas(8) float parts[kWarps][kTileRows][kTiles * kTileTokens + 2];
  let_next_start();
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int g = lane / 4, t = lane % 4, team = warp / kDepthWarps;
  const Stretches blocks(p.n, static_cast<int>(gridDim.x));
  const int first = blocks.begin(static_cast<int>(blockIdx.x)), units = p.units;
  const Stretches pieces(blocks.begin(static_cast<int>(blockIdx.x) + 1) - first, units * kTeams);
  const int first_depth = warp % kDepthWarps * kStepDepth + 8 * t;
  const int depth = p.k - first_depth;  // this lane's

  // This lane's rows, if there are any, from where they are asked for next.
  const T *upper = nullptr, *lower = nullptr;
  bool has_upper = false, has_lower = false;
  const auto find_rows = [&](int unit) {
    const int piece = unit * kTeams + team;
    const int row = pieces.begin(piece) + g, end = pieces.begin(piece + 1);
    upper = p.weight + static_cast<int64_t>(first + row) * p.k + first_depth;
    lower = upper + int64_t{8} * p.k;
    has_upper = unit < units && row < end;
    has_lower = unit < units && row + 8 < end;
  };
  uint4 weights[kAhead][2][2];
  const auto ask = [&](int j, int left) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int at = j * kStride + 32 * half;
      weights[j][half][0] = at < left && has_upper ? load_weight(upper + at) : uint4{};
      weights[j][half][1] = at < left && has_lower ? load_weight(lower + at) : uint4{};
    }
  };
  find_rows(0);
  // Always so. Without a branch the assembler would wait for the inputs first.
  if (p.turns > 0) {
#pragma unroll
    for (int j = 0; j < kAhead; ++j) ask(j, depth);
  }
  wait_for_inputs();

  // Where there is no token the last one stands for it.
  const T* tokens[kTiles];
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile)
    tokens[tile] = p.x + min(tile * kTileTokens + g, p.m - 1) * p.x_stride + first_depth;

  for (int unit = 0; unit < units; ++unit) {
    float sums[kTiles][4] = {};
    int left = depth;
    for (int turn = 1; turn <= p.turns; ++turn) {
      const bool goes_on = turn < p.turns;  // else another unit follows, or none
      const int next_left = goes_on ? left - kTurn : depth;
      if (goes_on) {
        upper += kTurn;
        lower += kTurn;
      } else {
        find_rows(unit + 1);
      }
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int at = j * kStride + 32 * half;
#pragma unroll
          for (int tile = 0; tile < kTiles; ++tile) {
            const uint4 x = at < left ? *reinterpret_cast<const uint4*>(tokens[tile] + at) : uint4{};
            multiply_half_step<T>(sums[tile], weights[j][half][0], weights[j][half][1], x);
          }
        }
        ask(j, next_left);
      }
      left = next_left;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) tokens[tile] += goes_on ? kTurn : kTurn * (1 - p.turns);
    }
    __syncthreads();  // the unit before has been added up
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      store_sums(sums[tile], [&](int row, int token, float2 x) {
        *reinterpret_cast<float2*>(&parts[warp][row][tile * kTileTokens + token]) = x;
      });
    }
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < kUnitRows * kTiles * kTileTokens; i += kThreads) {
      const int of_team = i % kUnitRows / kTileRows, in_tile = i % kTileRows, token = i / kUnitRows;
      const int piece = unit * kTeams + of_team, in_block = pieces.begin(piece) + in_tile;
      if (token >= p.m || in_block >= pieces.begin(piece + 1)) continue;
      const int output = first + in_block;
      float sum = 0.0F;
#pragma unroll
      for (int w = 0; w < kDepthWarps; ++w) sum += parts[of_team * kDepthWarps + w][in_tile][token];
      if (p.bias != nullptr) sum += p.bias[output];
      const int64_t at = token * p.out_stride + output;
      if (p.out_is_fp32) {
        static_cast<float*>(p.out)[at] = sum;
      } else {
        static_cast<T*>(p.out)[at] = from_float<T>(sum);
      }
    }
  }
}

template <typename T, int kTiles>
void launch(const LaunchContext& ctx, FewRows<T> p) {
  const int blocks = std::min(ceil_div(p.n, kLeastRows), kBlocksPerSm * device_limits().num_sms);
  const int rows = ceil_div(p.n, blocks);
  const auto launch_with = [&]<int kDepthWarps>() {
    p.units = ceil_div(rows, kWarps / kDepthWarps * kTileRows);
    p.turns = ceil_div(p.k, kStepDepth * kDepthWarps * kAhead);
    launch_weight_stream<linear_few_rows_kernel<T, kTiles, kDepthWarps>>(ctx, static_cast<unsigned>(blocks),
                                                                         kThreads, 0, 0, p);
  };
  // As many teams as the rows fill.
  if (rows <= kTileRows) return launch_with.template operator()<8>();
  if (rows <= 2 * kTileRows) return launch_with.template operator()<4>();
  if (rows <= 4 * kTileRows) return launch_with.template operator()<2>();
  launch_with.template operator()<1>();
}

template <typename T>
void launch(const LaunchContext& ctx, TensorView out, TensorView x, const LinearWeight& weight,
            const float* bias) {
  const FewRows<T> p = {.weight = static_cast<const T*>(weight.data),
                        .bias = bias,
                        .x = x.as<T>(),
                        .x_stride = x.stride[0],
                        .out = out.data,
                        .out_stride = out.stride[0],
                        .out_is_fp32 = out.dtype == DType::kFloat32,
                        .m = static_cast<int>(x.shape[0]),
                        .n = static_cast<int>(weight.n),
                        .k = static_cast<int>(weight.k),
                        .units = 0,
                        .turns = 0};
  p.m <= kTileTokens ? launch<T, 1>(ctx, p) : launch<T, 2>(ctx, p);
}

}  // namespace

bool has_few_rows_linear(TensorView out, TensorView x, const LinearWeight& weight) {
  const auto aligned = [](const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; };
  return x.shape[0] >= 2 && x.shape[0] <= kMaxRows && weight.scales == nullptr && dtype_bytes(x.dtype) == 2 &&
         weight.dtype == x.dtype && (out.dtype == x.dtype || out.dtype == DType::kFloat32) &&
         weight.k % 8 == 0 && x.stride[0] % 8 == 0 && aligned(x.data) && aligned(weight.data);
}

void linear_few_rows(const LaunchContext& ctx, TensorView out, TensorView x, const LinearWeight& weight,
                     const float* bias) {
  if (x.dtype == DType::kBFloat16) {
    launch<bf16>(ctx, out, x, weight, bias);
  } else {
    launch<fp16>(ctx, out, x, weight, bias);
  }
  check_launch(ctx, "linear_few_rows", out);
}

}  // namespace quire::cuda
