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
};

template <typename T, Activation kActivation, int kBlocks>
void launch(const LaunchContext& ctx, const Product& product) {
  constexpr auto kernel = gated_many_rows_kernel<T, kActivation, kBlocks>;
  constexpr bool kIsBf16 = std::is_same_v<T, bf16>;
  const auto& [out, x, weight, bias] = product;
  const auto fail = [&](const char* why) { note_error(ctx, "linear_many_rows", "", why); };
  static std::atomic<uint64_t> prepared{0};
  const auto* address = reinterpret_cast<const void*>(kernel);
  const cudaError_t error = allow_shared_bytes(prepared, address, kSharedBytes);
  if (error != cudaSuccess) return fail(cudaGetErrorString(error));
  Parameters<T> p{.x = {},
                  .weight = {},
                  .out = {},
                  .bias = bias,
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
    most = active_clusters(known, address, kBlocks, kThreads, kSharedBytes);
    if (most == 0) return fail("the device has no room for two blocks of it");
  }
  const int tiles = ceil_div(p.m, kClusterRows<kBlocks>) * ceil_div(p.n, kOutputs);
  const auto blocks = static_cast<unsigned>(std::min(tiles, most) * kBlocks);
  launch_dependent(ctx, kernel, Grid(blocks, kBlocks), kThreads, kSharedBytes, p);
  check_launch(ctx, "linear_many_rows", out);
}

// Whether it is quicker than the library's product and an activation: with one tile along the rows, where
// both wait for the weight, with two, and with many, by what is not written and read again. Of the rows
// between these the library's take up to 3 % less, and so where few of the outputs that multiprocessors could
// have meanwhile are any.
bool is_quicker(int64_t rows, int64_t outputs) {
  constexpr int64_t kLeastRows = 65, kTwoTiles = 2 * kRows, kManyRows = 4096;
  if (rows < kLeastRows || (rows > kTwoTiles && rows < kManyRows)) return false;
  const int64_t blocks = rows <= kRows ? 1 : 2, at_once = device_limits().num_sms / blocks;
  const int64_t tiles = ceil_div(rows, kRows * blocks) * ceil_div<int64_t>(outputs, kOutputs);
  const int64_t could_be = ceil_div(tiles, at_once) * at_once * blocks * kRows * kOutputs;
  const int64_t percent = std::max<int64_t>(rows, kRows) * outputs * 100 / could_be;
  return percent >= (rows < kManyRows ? 80 : 95);
}

}  // namespace

bool has_many_rows_gated(TensorView out, TensorView x, const LinearWeight& weight) {
  const auto aligned = [](const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; };
  return device_limits().compute_capability / 10 == 9 && has_clusters() &&
         shared_memory_fits(kSharedBytes, device_limits().max_shared_bytes_per_block) &&
         is_quicker(x.shape[0], out.shape[1]) && weight.scales == nullptr && dtype_bytes(x.dtype) == 2 &&
         weight.dtype == x.dtype && out.dtype == x.dtype && weight.n % 16 == 0 && weight.k % 8 == 0 &&
         x.stride[0] % 8 == 0 && out.stride[0] % 8 == 0 && aligned(x.data) && aligned(out.data) &&
         aligned(weight.data);
}

void linear_many_rows_gated(const LaunchContext& ctx, TensorView out, TensorView x,
                            const LinearWeight& weight, const float* bias, Activation activation) {
  const Product product{out, x, weight, bias};
  dispatch_activation(activation, [&](auto kind) {
    constexpr Activation kActivation = decltype(kind)::value;
    const auto with_type = [&]<typename T>() {
      x.shape[0] <= kRows ? launch<T, kActivation, 1>(ctx, product) : launch<T, kActivation, 2>(ctx, product);
    };
    x.dtype == DType::kBFloat16 ? with_type.template operator()<bf16>()
                                : with_type.template operator()<fp16>();
  });
}

}  // namespace quire::cuda
