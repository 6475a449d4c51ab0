#include "linear/wgmma.h"

#include "common/tensor_map.h"
#include "linear/wgmma.cuh"

namespace quire::cuda {
namespace {

using namespace wgmma_linear;

// With more rows the library's kernels are as quick. With less than kMinRows of x that of few_rows.cu is
// quicker where the weight is small, as there is little to be done before it begins.
constexpr int kMinRows = 9, kMaxRows = 64;
constexpr int64_t kLargeWeightBytes = 24 << 20;

bool has_enough_rows(int64_t rows, const LinearWeight& weight) {
  const bool is_large = weight.n * weight.k * 2 >= kLargeWeightBytes;
  return rows >= (is_large ? 2 : kMinRows) && rows <= kMaxRows;
}

// Of the current device. Asks for each number of blocks once, of any of the kernels: they take the same. One
// alone is no cluster, and a multiprocessor has one.
Device device_for(const void* kernel) {
  static KnownClusters known[kClusterBlocks.size()];
  // What the system takes, and two blocks of the short kernels in front, which run beside.
  constexpr int kOthers = 1024 + (20 << 10);
  Device device{.most_shared_bytes = device_limits().max_shared_bytes_per_block - kOthers,
                .most_clusters = {device_limits().num_sms}};
  static_assert(kClusterBlocks[0] == 1);
  for (size_t i = 1; i < kClusterBlocks.size(); ++i)
    device.most_clusters[i] =
        active_clusters(known[i], kernel, kClusterBlocks[i], kThreads, device.most_shared_bytes);
  return device;
}

// Lets a kernel have as much shared memory as there is; null, or what the driver says instead.
template <auto kKernel>
const char* allow_all_shared_bytes() {
  static std::atomic<uint64_t> prepared{0};
  const cudaError_t error = allow_shared_bytes(prepared, reinterpret_cast<const void*>(kKernel),
                                               device_limits().max_shared_bytes_per_block - 1024);
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

// What is multiplied. `activation`: where it is gated.
struct Product {
  TensorView out, x;
  const LinearWeight& weight;
  const float* bias;
  Activation activation;
};

template <typename T, int kSlots, bool kGated, int kHalves, bool kShared>
void launch(const LaunchContext& ctx, const Product& product, const Shape& shape, const Division& division) {
  constexpr auto kernel = linear_wgmma_kernel<T, kSlots, kGated, kHalves, kShared>;
  constexpr bool kIsBf16 = std::is_same_v<T, bf16>;
  const auto& [out, x, weight, bias, activation] = product;
  const auto fail = [&](const char* why) { note_error(ctx, "linear_wgmma", "", why); };
  if (const char* why = allow_all_shared_bytes<kernel>()) return fail(why);
  Parameters<T> p{.weight = {},
                  .x = {},
                  .bias = bias,
                  .out = out.data,
                  .out_stride = out.stride[0],
                  .out_is_fp32 = out.dtype == DType::kFloat32,
                  .activation = activation,
                  .m = static_cast<int>(x.shape[0]),
                  .n = shape.outputs,
                  .to_second = kGated ? shape.outputs : division.half_rows,
                  .outputs = division.outputs_of_unit(kGated),
                  .steps = shape.steps,
                  .division = division};
  if (!make_tensor_map(p.weight, weight.data, kIsBf16, weight.k, weight.n, weight.k * 2, 1, 0,
                       {division.half_rows}) ||
      !make_tensor_map(p.x, x.data, kIsBf16, weight.k, x.shape[0], x.stride[0] * 2, 1, 0, {kSlots}))
    return fail("the driver makes no tensor map of it");
  const auto blocks = static_cast<unsigned>(division.clusters * division.cluster_blocks);
  launch_dependent(ctx, kernel, Grid(blocks, static_cast<unsigned>(division.cluster_blocks)), kThreads,
                   static_cast<size_t>(division.shared_bytes), p);
  check_launch(ctx, "linear_wgmma", out);
}

template <typename T, int kSlots, bool kGated>
void launch(const LaunchContext& ctx, const Product& product) {
  const LinearWeight& weight = product.weight;
  const Shape shape = {.outputs = static_cast<int>(kGated ? weight.n / 2 : weight.n),
                       .is_gated = kGated,
                       .slots = kSlots,
                       .steps = static_cast<int>(ceil_div<int64_t>(weight.k, kDepth))};
  constexpr auto any = linear_wgmma_kernel<T, kSlots, kGated, 1, true>;
  if (const char* why = allow_all_shared_bytes<any>()) return note_error(ctx, "linear_wgmma", "", why);
  const auto division = divide(shape, device_for(reinterpret_cast<const void*>(any)));
  if (!division) return note_error(ctx, "linear_wgmma", "", "it fits no block");
  const auto with_halves = [&]<int kHalves>() {
    if (division->cluster_blocks > 1) {
      launch<T, kSlots, kGated, kHalves, true>(ctx, product, shape, *division);
    } else {
      launch<T, kSlots, kGated, kHalves, false>(ctx, product, shape, *division);
    }
  };
  if (halves_of_warpgroup(division->half_rows) == 1) {
    with_halves.template operator()<1>();
  } else {
    with_halves.template operator()<2>();
  }
}

template <bool kGated>
void launch(const LaunchContext& ctx, const Product& product) {
  const auto with_type = [&]<typename T>() {
    switch (slots_for(product.x.shape[0])) {
      case 16: return launch<T, 16, kGated>(ctx, product);
      case 32: return launch<T, 32, kGated>(ctx, product);
      default: launch<T, 64, kGated>(ctx, product);
    }
  };
  product.x.dtype == DType::kBFloat16 ? with_type.template operator()<bf16>()
                                      : with_type.template operator()<fp16>();
}

}  // namespace

bool has_wgmma_linear(TensorView out, TensorView x, const LinearWeight& weight) {
  const auto aligned = [](const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; };
  return device_limits().compute_capability / 10 == 9 && has_clusters() &&
         has_enough_rows(x.shape[0], weight) && weight.scales == nullptr && dtype_bytes(x.dtype) == 2 &&
         weight.dtype == x.dtype && (out.dtype == x.dtype || out.dtype == DType::kFloat32) &&
         weight.n % 16 == 0 && weight.k % 8 == 0 && x.stride[0] % 8 == 0 && out.stride[0] % 8 == 0 &&
         aligned(x.data) && aligned(out.data) && aligned(weight.data);
}

void linear_wgmma(const LaunchContext& ctx, TensorView out, TensorView x, const LinearWeight& weight,
                  const float* bias) {
  launch<false>(ctx, {out, x, weight, bias, Activation::kSilu});
}

void linear_wgmma_gated(const LaunchContext& ctx, TensorView out, TensorView x, const LinearWeight& weight,
                        const float* bias, Activation activation) {
  launch<true>(ctx, {out, x, weight, bias, activation});
}

}  // namespace quire::cuda
