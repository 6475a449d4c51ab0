#include "attention/prefill_mma.cuh"

namespace quire::cuda {
void launch_prefill_mma_bf16(const LaunchContext& ctx, const AttentionParams& params) {
  launch_prefill_mma<bf16>(ctx, params);
}
}  // namespace quire::cuda
