#include "attention/common_prefix.cuh"

#include <cstdlib>
#include <cstring>

#include "attention/prefill_wgmma.cuh"
#include "attention/selector.h"
#include "common/launch.h"
#include "ops.h"

namespace quire::cuda {
namespace {

using namespace wgmma_prefill;

// Fewer rows read their keys by themselves.
constexpr int kMinRows = 4;

// What rows must read of shared keys and values, together, for one more kernel and its parts to be worth it.
// Part of what they read so comes from the L2 cache. Found with quire_cuda_attention_bench.
constexpr int64_t kMinBytes = 128 << 20;
constexpr int kMinTokens = 256;

// Kernels with soft caps are there for these: no model has them with smaller heads.
constexpr int kMinSoftCapHeadSize = 128;

// Items of a multiprocessor, at most: what they leave in memory is bounded so.
constexpr int kMaxTurns = 2;

template <typename T, int D, bool kOptions>
void launch_kernel(const LaunchContext& ctx, const AttentionParams& p) {
  constexpr auto kernel = prefill_wgmma_kernel<T, D, kOptions, CommonPrefixItems>;
  constexpr int bytes = WgmmaShared<D>::kBytes;
  static std::atomic<uint64_t> prepared{0};
  const cudaError_t error = allow_shared_bytes(prepared, reinterpret_cast<const void*>(kernel), bytes);
  if (error != cudaSuccess) return note_error(ctx, "common_prefix", "", cudaGetErrorString(error));
  PrefillMaps maps;
  if (!make_prefill_maps<T, D>(maps, p))
    return note_error(ctx, "common_prefix", "", "the driver makes no tensor map of it");
  launch_dependent(ctx, kernel, static_cast<unsigned>(device_limits().num_sms), WgmmaShared<D>::kThreads,
                   bytes, p, maps, Divisor(p.num_queries_per_kv));
  check_launch(ctx, "common_prefix", "[%d rows, %d heads, %d KV heads, %d]", p.num_decode_rows, p.num_heads,
               p.num_kv_heads, D);
}

template <typename T>
void launch(const LaunchContext& ctx, const AttentionParams& p) {
  with_head_size(p.head_size, [&]<int D>() {
    if constexpr (D >= kMinSoftCapHeadSize) {
      if (p.soft_cap > 0.0F) return launch_kernel<T, D, true>(ctx, p);
    }
    launch_kernel<T, D, false>(ctx, p);
  });
}

}  // namespace

int common_prefix_parts(const AttentionMetadata& batch, const AttentionLayer& layer) {
  if (batch.common_prefix_len.data == nullptr || batch.num_decode_rows < kMinRows ||
      layer.kernel != static_cast<int32_t>(AttentionKernel::kWgmma) || layer.sliding_window > 0 ||
      layer.alibi_slopes != nullptr || (layer.soft_cap > 0.0F && layer.head_size < kMinSoftCapHeadSize))
    return 0;
  const int sms = device_limits().num_sms;
  const int items =
      layer.num_kv_heads *
      ceil_div(batch.num_decode_rows * (layer.num_heads / layer.num_kv_heads), prefill_rows(layer));
  // As many as make the last multiprocessor's work least.
  int best = 0, best_turns = 0;
  for (int parts = 1; items * parts <= kMaxTurns * sms; ++parts) {
    const int turns = ceil_div(items * parts, sms);
    if (best > 0 && turns * best >= best_turns * parts) continue;
    best = parts;
    best_turns = turns;
  }
  return best;
}

bool use_cascade_attention(const KVCacheView& kv_cache, int32_t num_decode_rows, int32_t common_prefix_len) {
  const AttentionLayer layer = {
      .dtype = kv_cache.dtype, .head_size = kv_cache.head_size, .block_size = kv_cache.block_size};
  const char* wanted = std::getenv("QUIRE_CASCADE_ATTENTION");
  const bool is_always = wanted != nullptr && std::strcmp(wanted, "always") == 0;
  const int64_t token_bytes = int64_t{2} * kv_cache.num_kv_heads * kv_cache.head_size *
                              static_cast<int64_t>(dtype_bytes(kv_cache.dtype));
  return num_decode_rows >= kMinRows && common_prefix_len >= (is_always ? kCommonTokens : kMinTokens) &&
         (is_always || num_decode_rows * token_bytes * common_prefix_len >= kMinBytes) &&
         select_attention_kernel(layer, device_limits()) == AttentionKernel::kWgmma;
}

size_t common_prefix_bytes(int head_size) {
  return static_cast<size_t>(kMaxTurns) * static_cast<size_t>(device_limits().num_sms) *
         static_cast<size_t>(wgmma_prefill_rows(head_size)) * (static_cast<size_t>(head_size) + 2) *
         sizeof(float);
}

void launch_common_prefix(const LaunchContext& ctx, const AttentionParams& params, DType dtype) {
  dtype == DType::kBFloat16 ? launch<bf16>(ctx, params) : launch<fp16>(ctx, params);
}

}  // namespace quire::cuda
