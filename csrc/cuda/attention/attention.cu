// paged_attention: decode rows to the decode kernel, the others to a prefill kernel, by the selector's
// choice.
#include <bit>

#include "attention/params.h"
#include "attention/selector.h"
#include "common/launch.h"
#include "ops.h"

namespace quire::cuda {

void paged_attention(const LaunchContext& ctx, const PagedAttentionArgs& args) {
  const KVCacheView& cache = args.kv_cache;
  AttentionParams p{};
  p.num_tokens = static_cast<int>(args.query.shape[0]);
  p.num_rows = static_cast<int>(args.seq_lens.shape[0]);
  if (p.num_tokens == 0 || p.num_rows == 0) return;
  p.query = args.query.data;
  p.query_stride = args.query.stride[0];
  p.query_head_stride = args.query.stride[1];
  p.out = args.out.data;
  p.out_stride = args.out.stride[0];
  p.out_head_stride = args.out.stride[1];
  p.cache = static_cast<const std::byte*>(cache.data);
  p.page_stride_bytes = cache.page_stride_bytes;
  p.block_table = args.block_table.as<int32_t>();
  p.block_table_stride = args.block_table.stride[0];
  p.query_start_loc = args.query_start_loc.as<int32_t>();
  p.seq_lens = args.seq_lens.as<int32_t>();
  p.num_decode_rows = args.num_decode_rows;
  p.num_heads = static_cast<int>(args.query.shape[1]);
  p.num_kv_heads = cache.num_kv_heads;
  p.group = p.num_heads / p.num_kv_heads;
  p.head_size = cache.head_size;
  p.block_size = cache.block_size;
  p.block_shift = std::countr_zero(static_cast<uint32_t>(cache.block_size));
  p.scale = args.scale;
  p.soft_cap = args.soft_cap;
  p.sliding_window = args.sliding_window;
  p.alibi_slopes = args.alibi_slopes;
  p.sinks = args.sinks;

  const AttentionFeatures features = {.dtype = cache.dtype,
                                      .head_size = cache.head_size,
                                      .block_size = cache.block_size,
                                      .soft_cap = args.soft_cap > 0.0F,
                                      .sliding_window = args.sliding_window > 0,
                                      .alibi = args.alibi_slopes != nullptr,
                                      .sinks = args.sinks != nullptr};
  const AttentionKernel kernel = select_attention_kernel(features, device_limits());
  if (kernel == AttentionKernel::kSimt) return launch_simt(ctx, p, cache.dtype);

  const bool is_bf16 = cache.dtype == DType::kBFloat16;
  p.plan = static_cast<AttentionPlan*>(
      const_cast<void*>(args.plan));  // its counters are counted, and returned to 0
  p.decode_blocks = decode_grid(p.head_size);
  p.partial_out = static_cast<float*>(ctx.workspace);
  p.partial_max_sum = p.partial_out + static_cast<int64_t>(2) * p.decode_blocks * kDecodeHeads * p.head_size;
  if (p.plan == nullptr || (p.num_decode_rows > 0 && ctx.workspace == nullptr))
    return note_error(ctx, "paged_attention", "",
                      p.plan == nullptr ? "no plan was given" : "no workspace was given");
  if (p.num_decode_rows > 0) (is_bf16 ? launch_decode_bf16 : launch_decode_fp16)(ctx, p);
  if (p.num_rows == p.num_decode_rows) return;
  if (kernel == AttentionKernel::kWgmma) return launch_prefill_wgmma(ctx, p, cache.dtype);
  (is_bf16 ? launch_prefill_mma_bf16 : launch_prefill_mma_fp16)(ctx, p);
}

}  // namespace quire::cuda
