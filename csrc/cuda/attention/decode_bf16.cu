#include "attention/decode.cuh"

namespace quire::cuda {
void launch_decode_bf16(const LaunchContext& ctx, const AttentionParams& params) {
  launch_decode<bf16>(ctx, params);
}
}  // namespace quire::cuda
