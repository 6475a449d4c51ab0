// Prefill on Hopper of a batch's prompts.
#include "attention/prefill_wgmma.cuh"
#include "common/launch.h"

namespace quire::cuda {
namespace {

using namespace wgmma_prefill;

template <typename T, int D, bool kOptions, int kBlocks>
void launch_kernel(const LaunchContext& ctx, const AttentionParams& p) {
  constexpr auto kernel = prefill_wgmma_kernel<T, D, kOptions, PrefillItems<kBlocks>>;
  constexpr int bytes = WgmmaShared<D>::kBytes;
  static std::atomic<uint64_t> prepared{0};
  const cudaError_t error = allow_shared_bytes(prepared, reinterpret_cast<const void*>(kernel), bytes);
  if (error != cudaSuccess) return note_error(ctx, "prefill_wgmma_attention", "", cudaGetErrorString(error));
  PrefillMaps maps;
  if (!make_prefill_maps<T, D>(maps, p))
    return note_error(ctx, "prefill_wgmma_attention", "", "the driver makes no tensor map of it");
  int most = device_limits().num_sms;
  if constexpr (kBlocks > 1) {
    static KnownClusters known;
    most = active_clusters(known, reinterpret_cast<const void*>(kernel), kBlocks, WgmmaShared<D>::kThreads,
                           bytes);
    if (most == 0)
      return note_error(ctx, "prefill_wgmma_attention", "", "the device has no room for two blocks of it");
  }
  launch_dependent(ctx, kernel, Grid(prefill_grid(p, most, kBlocks) * kBlocks, kBlocks),
                   WgmmaShared<D>::kThreads, bytes, p, maps, Divisor(p.num_queries_per_kv));
  check_launch(ctx, "prefill_wgmma_attention", "[%d tokens, %d heads, %d KV heads, %d]", p.num_tokens,
               p.num_heads, p.num_kv_heads, D);
}

template <typename T>
void launch(const LaunchContext& ctx, const AttentionParams& p) {
  const bool options = p.soft_cap > 0.0F || p.alibi_slopes != nullptr;
  with_head_size(p.head_size, [&]<int D>() {
    if constexpr (has_prefill_pairs(D)) {
      if (p.prefill_blocks > 1) return launch_kernel<T, D, false, kPrefillPair>(ctx, p);
    }
    options ? launch_kernel<T, D, true, 1>(ctx, p) : launch_kernel<T, D, false, 1>(ctx, p);
  });
}

}  // namespace

void launch_prefill_wgmma(const LaunchContext& ctx, const AttentionParams& params, DType dtype) {
  dtype == DType::kBFloat16 ? launch<bf16>(ctx, params) : launch<fp16>(ctx, params);
}

int prefill_wgmma_shared_bytes(int head_size) {
  return with_head_size(head_size, [&]<int D>() { return WgmmaShared<D>::kBytes; });
}

}  // namespace quire::cuda
