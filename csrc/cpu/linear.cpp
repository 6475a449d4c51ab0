// Linear layers: x is staged once, then threads take panels of the weight.
#include "ops.h"
#include "parallel.h"

namespace quire::cpu {

size_t linear_workspace_bytes(const Isa& isa, int64_t max_tokens, const LinearWeight& weight) {
  return isa.matmul.staged_bytes[type_index(weight.dtype)](max_tokens, weight.k);
}

void linear(const Isa& isa, const LaunchContext& ctx, TensorView out, TensorView x,
            const LinearWeight& weight, const float* bias) {
  const MatmulKernels& matmul = isa.matmul;
  const int type = type_index(weight.dtype);
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
                           .staged = ctx.workspace};
  if (args.m == 0) return;
  constexpr int64_t kRows = 16, kGrainElements = 131072;
  const int64_t blocks = (args.m + kRows - 1) / kRows;
  parallel_ranges(ctx, blocks, std::max<int64_t>(1, kGrainElements / (kRows * args.k)),
                  [&](int64_t begin, int64_t end) {
                    matmul.stage[type](args, begin * kRows, std::min(args.m, end * kRows));
                  });
  const size_t scratch_bytes = matmul.linear_scratch_bytes[type](args.m);
  const int64_t panels = (args.n + kPanelColumns - 1) / kPanelColumns;
  // Weights below this many elements are done before another thread has woken up.
  constexpr int64_t kGrainWork = 65536;
  if (args.m * args.n * args.k < kGrainWork) {
    matmul.linear[type](args, 0, panels, thread_scratch(scratch_bytes));
    if (matmul.release != nullptr) matmul.release();
    return;
  }
  const int64_t threads = ctx.host != nullptr ? ctx.host->num_threads : 1;
  // With many rows a kernel works on groups of panels, and would rather not be handed part of one.
  constexpr int64_t kManyRows = 32, kGroup = 8;
  const int64_t grain = args.m > kManyRows ? std::clamp<int64_t>(panels / (2 * threads), 1, kGroup) : 1;
  WorkQueue queue(panels, grain, threads);
  on_all_threads(ctx, [&](int32_t, int32_t) {
    void* scratch = thread_scratch(scratch_bytes);
    int64_t begin, end;
    while (queue.take(&begin, &end)) matmul.linear[type](args, begin, end, scratch);
    if (matmul.release != nullptr) matmul.release();
  });
}

}  // namespace quire::cpu
