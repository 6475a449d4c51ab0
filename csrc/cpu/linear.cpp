// Linear layers: x is staged once, then threads take panels of the weight.
#include "convert.h"
#include "ops.h"
#include "parallel.h"

namespace quire::cpu {
namespace {

LinearKind kind_of(const LinearWeight& weight) {
  if (weight.scales == nullptr) return static_cast<LinearKind>(type_index(weight.dtype));
  return type_index(weight.dtype) == kF32 ? kLinearInt8F32 : kLinearInt8BF16;
}

size_t staged_bytes(const LinearKernels& kernels, int64_t m, int64_t k) {
  return (kernels.staged_bytes(m, k) + 63) / 64 * 64;
}

// One after the other, whatever the number of rows.
void sum_rows(TensorView x, int64_t begin, int64_t end, float* sums) {
  for (int64_t r = begin; r < end; ++r) {
    float sum = 0.0F;
    for (int64_t i = 0; i < x.shape[1]; ++i) {
      sum += x.dtype == DType::kFloat32 ? reinterpret_cast<const float*>(x.at(r))[i]
                                        : bf16_to_float(reinterpret_cast<const uint16_t*>(x.at(r))[i]);
    }
    sums[r] = sum;
  }
}

}  // namespace

size_t linear_workspace_bytes(const Isa& isa, int64_t max_tokens, const LinearWeight& weight) {
  // The zero points may not be known yet.
  const size_t sums = weight.scales != nullptr ? static_cast<size_t>(max_tokens) * sizeof(float) : 0;
  return staged_bytes(isa.matmul.linear[kind_of(weight)], max_tokens, weight.k) + sums;
}

void linear(const Isa& isa, const LaunchContext& ctx, TensorView out, TensorView x,
            const LinearWeight& weight, const float* bias) {
  const LinearKernels& kernels = isa.matmul.linear[kind_of(weight)];
  auto* row_sums = reinterpret_cast<float*>(static_cast<std::byte*>(ctx.workspace) +
                                            staged_bytes(kernels, x.shape[0], weight.k));
  const LinearArgs args = {.x = x.data,
                           .x_stride = x.stride[0],
                           .m = x.shape[0],
                           .n = weight.n,
                           .k = weight.k,
                           .weight = weight.data,
                           .out = out.data,
                           .out_stride = out.stride[0],
                           .out_is_bf16 = out.dtype == DType::kBFloat16,
                           .bias = bias,
                           .staged = ctx.workspace,
                           .scales = weight.scales,
                           .zero_points = weight.zero_points,
                           .row_sums = row_sums};
  if (args.m == 0) return;
  constexpr int64_t kRows = 16, kGrainElements = 131072;
  const int64_t blocks = (args.m + kRows - 1) / kRows;
  parallel_ranges(ctx, blocks, std::max<int64_t>(1, kGrainElements / (kRows * args.k)),
                  [&](int64_t begin, int64_t end) {
                    const int64_t last = std::min(args.m, end * kRows);
                    kernels.stage(args, begin * kRows, last);
                    if (weight.zero_points != nullptr) sum_rows(x, begin * kRows, last, row_sums);
                  });
  const size_t scratch_bytes = kernels.scratch_bytes(args.m, args.k);
  const int64_t panels = (args.n + kPanelColumns - 1) / kPanelColumns;
  const auto release = isa.matmul.release;
  // Weights below this many elements are done before another thread has woken up.
  constexpr int64_t kGrainWork = 65536;
  if (args.m * args.n * args.k < kGrainWork) {
    kernels.multiply(args, 0, panels, thread_scratch(scratch_bytes));
    if (release != nullptr) release();
    return;
  }
  const int64_t threads = ctx.host != nullptr ? ctx.host->num_threads : 1;
  // With one row a kernel multiplies pairs of panels, with many it works on eight by turns, and would rather
  // not be handed part of them.
  constexpr int64_t kManyRows = 32;
  const int64_t together = args.m == 1 ? 2 : args.m > kManyRows ? 8 : 1;
  const int64_t grain = std::clamp<int64_t>(panels / (2 * threads), 1, together);
  WorkQueue queue(panels, grain, threads);
  on_all_threads(ctx, [&](int32_t, int32_t) {
    void* scratch = thread_scratch(scratch_bytes);
    int64_t begin, end;
    while (queue.take(&begin, &end)) kernels.multiply(args, begin, end, scratch);
    if (release != nullptr) release();
  });
}

}  // namespace quire::cpu
