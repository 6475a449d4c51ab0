// Linears through cuBLASLt, but for those of few rows. The number of rows changes from step to step, so
// algorithms are chosen for a few numbers of rows, each good for all from the one below it: only the longer
// side of the product changes, and with it no alignment.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <unordered_map>

#include "common/launch.h"
#include "linear/bias.h"
#include "linear/few_rows.h"
#include "linear/gemm_tuner.h"
#include "linear/int8.h"
#include "linear/many_rows.h"
#include "linear/one_row.h"
#include "linear/wgmma.h"
#include "ops.h"

namespace quire::cuda {
namespace {

constexpr int kNumCandidates = 16;
// Above this, the library's first choice is within a few per cent, and measuring would cost more than it
// gives.
constexpr int64_t kMaxMeasuredRows = 1024;
constexpr size_t kMaxPlans = 16384;

int lt_type(DType dtype) {
  switch (dtype) {
    case DType::kFloat32: return kLtReal32F;
    case DType::kFloat16: return kLtReal16F;
    default: return kLtReal16BF;
  }
}

// The number of rows whose algorithm serves `m`.
int64_t representative_rows(int64_t m) {
  const auto up = [m](int64_t unit) { return (m + unit - 1) / unit * unit; };
  if (m <= 2) return m;
  if (m <= 64) return up(8);
  if (m <= 256) return up(32);
  if (m <= 1024) return up(128);
  return up(1024);
}

}  // namespace

// What LaunchContext::state points at.
struct CudaState {
  CudaState(const CublasLt& lt, CublasLt::Handle handle, const char* device_name)
      : lt(lt), handle(handle), cache(device_name, lt.get_version()) {}
  ~CudaState() {
    cache.save();
    plans.clear();
    lt.destroy(handle);
  }

  const CublasLt& lt;
  CublasLt::Handle handle;
  GemmCache cache;
  std::unordered_map<GemmShape, GemmPlan, GemmShapeHash> plans;
};

void* create_state(LaunchError* error) {
  const auto fail = [error](const char* why) -> void* {
    note_error({.error = error}, "cuBLASLt", "", why);
    return nullptr;
  };
  const char* why = nullptr;
  const CublasLt* lt = CublasLt::load(&why);
  if (lt == nullptr) return fail(why);
  CublasLt::Handle handle = nullptr;
  if (const int status = lt->create(&handle)) return fail(lt->status_string(status));
  cudaDeviceProp properties{};
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess || cudaGetDeviceProperties(&properties, device) != cudaSuccess)
    return fail("the device's name cannot be read");
  return new CudaState(*lt, handle, properties.name);
}

void destroy_state(void* state) { delete static_cast<CudaState*>(state); }

namespace {

// What is dequantized at a time of an int8 weight, behind the library's workspace. Few enough bytes to stay
// in the L2 cache for the most part; outputs in multiples of what its kernels take at once.
constexpr int64_t kDequantizedBytes = int64_t{32} << 20;

int64_t dequantized_rows(const LinearWeight& weight) {
  constexpr int64_t kMultiple = 256;
  const int64_t row_bytes = weight.k * static_cast<int64_t>(dtype_bytes(weight.dtype));
  const int64_t rows = std::max(kDequantizedBytes / row_bytes / kMultiple, int64_t{1}) * kMultiple;
  return std::min(rows, weight.n);
}

size_t dequantized_bytes(const LinearWeight& weight) {
  return static_cast<size_t>(dequantized_rows(weight) * weight.k) * dtype_bytes(weight.dtype);
}

}  // namespace

size_t linear_weight_bytes(int64_t n, int64_t k, DType dtype) {
  return static_cast<size_t>(n * k) * dtype_bytes(dtype);
}

size_t linear_workspace_bytes(int64_t, const LinearWeight& weight) {
  return kLinearWorkspaceBytes + (weight.scales != nullptr ? dequantized_bytes(weight) : 0);
}

namespace {

// The algorithm for a shape: kept, or measured now, on this call's operands.
bool choose(const LaunchContext& ctx, CudaState& state, GemmPlan& plan, const GemmShape& shape,
            TensorView out, TensorView x, const LinearWeight& weight) {
  GemmShape key = shape;
  key.m = representative_rows(shape.m);
  if (const LtMatmulAlgo* known = state.cache.find(key);
      known != nullptr && plan.permits(state.handle, *known, kLinearWorkspaceBytes)) {
    plan.algo = *known;
    return true;
  }
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  cudaStreamIsCapturing(stream_of(ctx), &capture);
  const bool measures = shape.m <= kMaxMeasuredRows && capture == cudaStreamCaptureStatusNone;
  const auto candidates = plan.candidates(state.handle, kLinearWorkspaceBytes, measures ? kNumCandidates : 1);
  if (candidates.empty()) return false;
  plan.algo = candidates[0].algo;
  if (!measures) return true;
  if (candidates.size() > 1) {
    const auto best = quickest(plan, candidates, state.handle, out.data, x.data, weight.data, ctx.workspace,
                               kLinearWorkspaceBytes, stream_of(ctx));
    if (!best) return true;  // the first one's error will say why
    plan.algo = *best;
  }
  state.cache.add(key, plan.algo);
  return true;
}

// `adds`: to what `out` holds, without a bias. An algorithm is then measured on `scratch`, else on `out`.
void linear_by_library(const LaunchContext& ctx, TensorView out, TensorView x, const LinearWeight& weight,
                       const float* bias, bool adds = false, TensorView scratch = {}) {
  auto& state = *static_cast<CudaState*>(ctx.state);
  const GemmShape shape = {x.shape[0],    weight.n,         weight.k,          x.stride[0],
                           out.stride[0], lt_type(x.dtype), lt_type(out.dtype)};
  char text[160];
  const auto describe = [&] {
    std::snprintf(text, sizeof text, "[%lld, %lld] x [%lld, %lld] %s -> %s", static_cast<long long>(shape.m),
                  static_cast<long long>(shape.k), static_cast<long long>(shape.n),
                  static_cast<long long>(shape.k), dtype_name(x.dtype), dtype_name(out.dtype));
    return text;
  };
  auto found = state.plans.find(shape);
  if (found == state.plans.end()) {
    if (state.plans.size() >= kMaxPlans) state.plans.clear();
    GemmPlan plan(state.lt, shape);
    if (!choose(ctx, state, plan, shape, adds ? scratch : out, x, weight)) {
      note_error(ctx, "linear", describe(),
                 plan.status != 0 ? state.lt.status_string(plan.status) : "cuBLASLt has no algorithm for it");
      return;
    }
    found = state.plans.emplace(shape, std::move(plan)).first;
  }
  if (bias != nullptr) broadcast_bias(ctx, out, bias);
  const int status =
      found->second.run(state.handle, found->second.algo, out.data, x.data, weight.data,
                        adds || bias != nullptr, ctx.workspace, kLinearWorkspaceBytes, ctx.stream);
  if (status != 0) {
    note_error(ctx, "linear", describe(), state.lt.status_string(status));
    return;
  }
  check_launch(ctx, "linear", out);
}

// With many rows the products cost more than the weights: a part at a time is made 16-bit again, or fp32. Not
// for the kernels of few rows, which read their weight before the kernel in front has ended.
void linear_dequantized(const LaunchContext& ctx, TensorView out, TensorView x, const LinearWeight& weight,
                        const float* bias) {
  const int64_t at_once = dequantized_rows(weight);
  void* place = static_cast<std::byte*>(ctx.workspace) + kLinearWorkspaceBytes;
  for (int64_t row = 0; row < weight.n; row += at_once) {
    const LinearWeight part = {place, std::min(at_once, weight.n - row), weight.k, weight.dtype};
    dequantize_rows(ctx, TensorView(place, weight.dtype, part.n, weight.k), weight, row);
    linear_by_library(ctx, out.columns(row, part.n), x, part, bias != nullptr ? bias + row : nullptr);
  }
}

}  // namespace

void linear(const LaunchContext& ctx, TensorView out, TensorView x, const LinearWeight& weight,
            const float* bias) {
  if (x.shape[0] == 0) return;
  if (weight.scales != nullptr) {
    return has_few_rows_kernel(x, weight) ? linear_int8_few_rows(ctx, out, x, weight, bias)
                                          : linear_dequantized(ctx, out, x, weight, bias);
  }
  if (has_one_row_kernel(out, x, weight)) return linear_one_row(ctx, out, x, weight, bias);
  if (has_wgmma_linear(out, x, weight)) return linear_wgmma(ctx, out, x, weight, bias);
  if (has_few_rows_linear(out, x, weight)) return linear_few_rows(ctx, out, x, weight, bias);
  linear_by_library(ctx, out, x, weight, bias);
}

// The library reads a sum while it multiplies, which costs it next to nothing, and the norm behind it then
// need not. Kernels of few rows wait for memory, and the norm hides behind their weights.
bool linear_add(const LaunchContext& ctx, TensorView sum, TensorView scratch, TensorView x,
                const LinearWeight& weight, const float* bias) {
  if (weight.scales != nullptr || bias != nullptr || sum.stride[0] != scratch.stride[0] ||
      has_one_row_kernel(scratch, x, weight) || has_wgmma_linear(scratch, x, weight) ||
      has_few_rows_linear(scratch, x, weight))
    return false;
  if (x.shape[0] > 0) linear_by_library(ctx, sum, x, weight, nullptr, /*adds=*/true, scratch);
  return true;
}

void linear_activate_and_mul(const LaunchContext& ctx, TensorView out, TensorView y, TensorView x,
                             const LinearWeight& weight, const float* bias, Activation activation) {
  if (has_one_row_kernel(out, x, weight)) return linear_one_row_gated(ctx, out, x, weight, bias, activation);
  if (has_wgmma_linear(out, x, weight)) return linear_wgmma_gated(ctx, out, x, weight, bias, activation);
  if (has_many_rows_gated(out, x, weight))
    return linear_many_rows_gated(ctx, out, x, weight, bias, activation);
  linear(ctx, y, x, weight, bias);
  activate_and_mul(ctx, out, y, activation);
}

}  // namespace quire::cuda
