#include "linear/many_rows.h"

#include <algorithm>
#include <atomic>

#include "linear/many_rows.cuh"

namespace quire::cuda {
namespace {

using namespace many_rows;

// What is multiplied.
struct Product {
  TensorView out, x;
  const LinearWeight& weight;
  const float* bias;
  Activation activation;
};

template <typename T, int kBlocks, int kOutputs>
void launch(const LaunchContext& ctx, const Product& product) {
  constexpr auto kernel = gated_many_rows_kernel<T, kBlocks, kOutputs>;
  constexpr bool kIsBf16 = std::is_same_v<T, bf16>;
  const auto& [out, x, weight, bias, activation] = product;
  const auto fail = [&](const char* why) { note_error(ctx, "linear_many_rows", "", why); };
  static std::atomic<uint64_t> prepared{0};
  const auto* address = reinterpret_cast<const void*>(kernel);
  const cudaError_t error = allow_shared_bytes(prepared, address, kSharedBytes<kOutputs>);
  if (error != cudaSuccess) return fail(cudaGetErrorString(error));
  Parameters<T> p{.x = {},
                  .weight = {},
                  .out = {},
                  .bias = bias,
                  .activation = activation,
                  .m = static_cast<int>(x.shape[0]),
                  .n = static_cast<int>(weight.n / 2),
                  .k = static_cast<int>(weight.k)};
  if (!make_tensor_map(p.x, x.data, kIsBf16, weight.k, x.shape[0], x.stride[0] * 2, 1, 0, {kRows}) ||
      !make_tensor_map(p.weight, weight.data, kIsBf16, weight.k, weight.n, weight.k * 2, 1, 0, {kOutputs}) ||
      !make_tensor_map(p.out, out.data, kIsBf16, p.n, x.shape[0], out.stride[0] * 2, 1, 0, {kRows / 2}))
    return fail("the driver makes no tensor map of it");
  int most = device_limits().num_sms;
  if constexpr (kBlocks > 1) {
    static KnownClusters known;
    most = active_clusters(known, address, kBlocks, kThreads, kSharedBytes<kOutputs>);
    if (most == 0) return fail("the device has no room for two blocks of it");
  }
  const int tiles = ceil_div(p.m, kClusterRows<kBlocks>) * ceil_div(p.n, kOutputs);
  const auto blocks = static_cast<unsigned>(std::min(tiles, most) * kBlocks);
  launch_dependent(ctx, kernel, Grid(blocks, kBlocks), kThreads, kSharedBytes<kOutputs>, p);
  check_launch(ctx, "linear_many_rows", out);
}

struct Tiling {
  int outputs;      // of a tile
  int64_t percent;  // of what multiprocessors could multiply meanwhile
};

// Of two tiles along the rows those that take the least time: in so many turns of all multiprocessors, of
// which each costs its outputs and some more. One alone waits for the weight, and many come out even; the
// widest reads the least.
constexpr int64_t kTwoTiles = 2 * kRows;
Tiling tile(int64_t rows, int64_t outputs) {
  constexpr int kWidths[] = {128, 112, 96}, kTurn = 4;
  const int64_t blocks = rows <= kRows ? 1 : 2, at_once = device_limits().num_sms / blocks;
  Tiling best{};
  int64_t least = 0;
  for (const int width : kWidths) {
    const int64_t tiles = ceil_div(rows, kRows * blocks) * ceil_div<int64_t>(outputs, width);
    const int64_t turns = ceil_div(tiles, at_once), time = turns * (width + kTurn);
    if (best.outputs != 0 && time >= least) continue;
    least = time;
    const int64_t could_be = turns * at_once * blocks * kRows * width;
    best = {width, std::max<int64_t>(rows, kRows) * outputs * 100 / could_be};
    if (rows <= kRows || rows > kTwoTiles) break;
  }
  return best;
}

// Whether it is quicker than the library's product and an activation: with one tile along the rows, where
// both wait for the weight, with two, and with many, by what is not written and read again. Of the rows
// between these the library's take up to 3 % less, and so where few of the outputs that multiprocessors could
// have meanwhile are any.
bool is_quicker(int64_t rows, int64_t outputs) {
  constexpr int64_t kLeastRows = 65, kManyRows = 4096;
  if (rows < kLeastRows || (rows > kTwoTiles && rows < kManyRows)) return false;
  return tile(rows, outputs).percent >= (rows < kManyRows ? 80 : 95);
}

}  // namespace

bool has_many_rows_gated(TensorView out, TensorView x, const LinearWeight& weight) {
  const auto aligned = [](const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; };
  return device_limits().compute_capability / 10 == 9 && has_clusters() &&
         shared_memory_fits(kSharedBytes<128>, device_limits().max_shared_bytes_per_block) &&
         is_quicker(x.shape[0], out.shape[1]) && weight.scales == nullptr && dtype_bytes(x.dtype) == 2 &&
         weight.dtype == x.dtype && out.dtype == x.dtype && weight.n % 16 == 0 && weight.k % 8 == 0 &&
         x.stride[0] % 8 == 0 && out.stride[0] % 8 == 0 && aligned(x.data) && aligned(out.data) &&
         aligned(weight.data);
}

void linear_many_rows_gated(const LaunchContext& ctx, TensorView out, TensorView x,
                            const LinearWeight& weight, const float* bias, Activation activation) {
  const Product product{out, x, weight, bias, activation};
  const auto with_type = [&]<typename T>() {
    if (x.shape[0] <= kRows) return launch<T, 1, 128>(ctx, product);
    switch (tile(x.shape[0], out.shape[1]).outputs) {
      case 96: return launch<T, 2, 96>(ctx, product);
      case 112: return launch<T, 2, 112>(ctx, product);
      default: launch<T, 2, 128>(ctx, product);
    }
  };
  x.dtype == DType::kBFloat16 ? with_type.template operator()<bf16>() : with_type.template operator()<fp16>();
}

}  // namespace quire::cuda
