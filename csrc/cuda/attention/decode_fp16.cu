#include "attention/decode.cuh"

namespace quire::cuda {
void launch_decode_fp16(const LaunchContext& ctx, const AttentionParams& params) {
  launch_decode<fp16>(ctx, params);
}
}  // namespace quire::cuda
