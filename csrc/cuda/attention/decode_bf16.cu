#include "attention/decode.cuh"

namespace quire::cuda {
void launch_decode_bf16(const LaunchContext& ctx, const AttentionParams& params) {
  launch_decode<bf16>(ctx, params);
}

// Of any of a head size's kernels: they take the same shared memory, which is what decides.
int resident_decode_clusters(int head_size) {
  return with_head_size(
      head_size, [&]<int D>() { return resident_clusters<decode_cluster_kernel<bf16, D, false, 1>, D>(); });
}
}  // namespace quire::cuda
