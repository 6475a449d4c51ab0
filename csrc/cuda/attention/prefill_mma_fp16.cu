#include "attention/prefill_mma.cuh"

namespace quire::cuda {
void launch_prefill_mma_fp16(const LaunchContext& ctx, const AttentionParams& params) {
  launch_prefill_mma<fp16>(ctx, params);
}
}  // namespace quire::cuda
