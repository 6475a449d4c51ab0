#include "common/launch.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "common/captured_graph.h"

namespace quire {
namespace {

thread_local const CudaDeviceLimits* assumed_limits = nullptr;

}  // namespace

AssumedCudaDevice::AssumedCudaDevice(const CudaDeviceLimits& limits) : limits_(limits) {
  assumed_limits = &limits_;
}
AssumedCudaDevice::~AssumedCudaDevice() { assumed_limits = nullptr; }

bool cuda_device_limits(int32_t index, CudaDeviceLimits* limits) {
  int major = 0, minor = 0;
  const auto get = [index](int* value, cudaDeviceAttr attribute) {
    return cudaDeviceGetAttribute(value, attribute, index) == cudaSuccess;
  };
  const bool known = index < cuda_device_count() && get(&major, cudaDevAttrComputeCapabilityMajor) &&
                     get(&minor, cudaDevAttrComputeCapabilityMinor) &&
                     get(&limits->num_sms, cudaDevAttrMultiProcessorCount) &&
                     get(&limits->max_shared_bytes_per_block, cudaDevAttrMaxSharedMemoryPerBlockOptin) &&
                     get(&limits->l2_bytes, cudaDevAttrL2CacheSize);
  limits->compute_capability = 10 * major + minor;
  return known;
}

}  // namespace quire

namespace quire::cuda {
namespace {

bool launches_block() {
  static const bool blocks = [] {
    const char* value = std::getenv("QUIRE_LAUNCH_BLOCKING");
    return value != nullptr && std::strcmp(value, "1") == 0;
  }();
  return blocks;
}

// Null when all is well.
const char* launch_error(const LaunchContext& ctx) {
  cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess && launches_block()) {
    // Waiting is not permitted while a graph is captured.
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    cudaStreamIsCapturing(stream_of(ctx), &capture);
    if (capture == cudaStreamCaptureStatusNone) error = cudaStreamSynchronize(stream_of(ctx));
  }
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace

void note_error(const LaunchContext& ctx, const char* kernel, const char* shape, const char* error) {
  if (ctx.error == nullptr || ctx.error->failed) return;
  ctx.error->failed = true;
  std::snprintf(ctx.error->text, sizeof ctx.error->text, "%s %s: %s", kernel, shape, error);
}

void check_launch(const LaunchContext& ctx, const char* kernel, TensorView view) {
  const char* error = launch_error(ctx);
  if (error == nullptr) return;
  char shape[128] = "[";
  size_t used = 1;
  for (int i = 0; i < view.rank && used < sizeof shape; ++i)
    used += static_cast<size_t>(std::snprintf(shape + used, sizeof shape - used, "%s%lld", i == 0 ? "" : ", ",
                                              static_cast<long long>(view.shape[i])));
  if (used < sizeof shape) std::snprintf(shape + used, sizeof shape - used, "] %s", dtype_name(view.dtype));
  note_error(ctx, kernel, shape, error);
}

void check_launch(const LaunchContext& ctx, const char* kernel, const char* format, ...) {
  const char* error = launch_error(ctx);
  if (error == nullptr) return;
  char shape[256];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(shape, sizeof shape, format, arguments);
  va_end(arguments);
  note_error(ctx, kernel, shape, error);
}

namespace {

// Stands for all kernels: they are compiled alike.
__global__ void any_kernel() {}

}  // namespace

bool has_clusters() {
  constexpr int kMaxDevices = 64;
  static std::atomic<int8_t> answers[kMaxDevices];  // 0: not asked yet
  int device = 0;
  cudaGetDevice(&device);
  std::atomic<int8_t>& answer = answers[device % kMaxDevices];
  if (answer.load(std::memory_order_relaxed) == 0) {
    cudaFuncAttributes attributes{};
    const bool are_there =
        cudaFuncGetAttributes(&attributes, any_kernel) == cudaSuccess && attributes.ptxVersion >= 90;
    answer.store(are_there ? 1 : -1, std::memory_order_relaxed);
  }
  return answer.load(std::memory_order_relaxed) > 0;
}

int active_clusters(KnownClusters& known, const void* kernel, int cluster_blocks, int threads,
                    int shared_bytes) {
  int device = 0, clusters = 0;
  cudaGetDevice(&device);
  std::atomic<int>& answer = known.of_device[device % 64];
  if ((clusters = answer.load(std::memory_order_relaxed)) > 0) return clusters - 1;
  const auto blocks = static_cast<unsigned>(cluster_blocks);
  cudaLaunchAttribute in_clusters{};
  in_clusters.id = cudaLaunchAttributeClusterDimension;
  in_clusters.val.clusterDim = {blocks, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.attrs = &in_clusters;
  config.numAttrs = 1;
  if (cudaOccupancyMaxActiveClusters(&clusters, kernel, &config) != cudaSuccess) {
    clusters = 0;
    cudaGetLastError();  // is no launch's
  }
  answer.store(clusters + 1, std::memory_order_relaxed);
  return clusters;
}

bool launches_overlap() {
  static const bool wanted = [] {
    const char* value = std::getenv("QUIRE_DEPENDENT_LAUNCHES");
    return !launches_block() && (value == nullptr || std::strcmp(value, "0") != 0);
  }();
  return wanted && has_clusters();  // which came with the same architecture
}

void launch_or_set(const LaunchContext& ctx, const void* kernel, dim3 grid, unsigned threads, void** args) {
  // What goes wrong is found by the check after the launch.
  if (ctx.into == nullptr) {
    cudaLaunchKernel(kernel, grid, dim3(threads), args, 0, stream_of(ctx));
    return;
  }
  cudaKernelNodeParams params{};
  params.func = const_cast<void*>(kernel);
  params.gridDim = grid;
  params.blockDim = dim3(threads);
  params.kernelParams = args;
  cudaGraphExecKernelNodeSetParams(static_cast<const CapturedGraph*>(ctx.into->graph)->executable,
                                   static_cast<cudaGraphNode_t>(ctx.into->node), &params);
}

void keep_l1_cache(std::atomic<uint64_t>& prepared, const void* kernel, unsigned threads,
                   size_t shared_bytes) {
  constexpr size_t kOfEachBlock = 1024;  // the system's
  int device = 0, blocks = 0;
  cudaGetDevice(&device);
  const uint64_t bit = uint64_t{1} << (device % 64);
  if ((prepared.load(std::memory_order_relaxed) & bit) != 0) return;
  cudaFuncAttributes attributes{};
  if (cudaFuncGetAttributes(&attributes, kernel) != cudaSuccess ||
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, static_cast<int>(threads),
                                                    shared_bytes) != cudaSuccess)
    return;  // the launch will say why
  const size_t all = static_cast<size_t>(device_limits().max_shared_bytes_per_block) + kOfEachBlock;
  const size_t taken =
      static_cast<size_t>(blocks) * (attributes.sharedSizeBytes + shared_bytes + kOfEachBlock);
  const auto percent = static_cast<int>(std::min<size_t>(100, (100 * taken + all - 1) / all));
  if (cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, percent) == cudaSuccess)
    prepared.fetch_or(bit, std::memory_order_relaxed);
}

const DeviceLimits& device_limits() {
  if (assumed_limits != nullptr) return *assumed_limits;
  struct Entry {
    std::once_flag read;
    DeviceLimits limits;
  };
  constexpr int kMaxDevices = 64;  // more than a host has
  static Entry entries[kMaxDevices];
  int device = 0;
  cudaGetDevice(&device);
  Entry& entry = entries[device % kMaxDevices];
  std::call_once(entry.read, [&] { cuda_device_limits(device, &entry.limits); });
  return entry.limits;
}

}  // namespace quire::cuda
