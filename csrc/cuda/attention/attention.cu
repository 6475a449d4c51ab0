// paged_attention: decode rows to the decode kernel, the others to the prefill kernel of the layer's choice.
#include <bit>

#include "attention/params.h"
#include "attention/selector.h"
#include "common/launch.h"
#include "ops.h"

namespace quire::cuda {
void paged_attention(const LaunchContext& ctx, TensorView out, TensorView query, const KVCacheView& cache,
                     const AttentionMetadata& batch, const AttentionLayer& layer) {
  AttentionParams p{};
  p.num_tokens = static_cast<int>(query.shape[0]);
  p.num_rows = static_cast<int>(batch.seq_lens.shape[0]);
  if (p.num_tokens == 0 || p.num_rows == 0) return;
  p.query = query.data;
  p.query_stride = query.stride[0];
  p.query_head_stride = query.stride[1];
  p.out = out.data;
  p.out_stride = out.stride[0];
  p.out_head_stride = out.stride[1];
  p.cache = static_cast<const std::byte*>(cache.data);
  p.page_stride_bytes = cache.page_stride_bytes;
  p.block_table = batch.block_table.as<int32_t>();
  p.block_table_stride = batch.block_table.stride[0];
  p.state_indices = batch.state_indices.as<int32_t>();
  p.query_start_loc = batch.query_start_loc.as<int32_t>();
  p.seq_lens = batch.seq_lens.as<int32_t>();
  p.num_decode_rows = batch.num_decode_rows;
  p.num_heads = layer.num_heads;
  p.num_kv_heads = layer.num_kv_heads;
  p.num_queries_per_kv = p.num_heads / p.num_kv_heads;
  p.head_size = layer.head_size;
  p.prefill_rows = prefill_rows(layer);
  p.prefill_blocks = prefill_blocks(batch, layer);
  p.cached_head_tokens =
      device_limits().l2_bytes / 2 / (2 * p.head_size * static_cast<int>(dtype_bytes(layer.dtype)));
  p.block_size = layer.block_size;
  p.block_shift = std::countr_zero(static_cast<uint32_t>(layer.block_size));
  p.waits_for_prefixes = batch.has_new_prefixes;
  p.scale = layer.scale;
  p.soft_cap = layer.soft_cap;
  p.sliding_window = layer.sliding_window;
  p.alibi_slopes = layer.alibi_slopes;
  p.sinks = layer.sinks;

  const auto kernel = static_cast<AttentionKernel>(layer.kernel);
  if (kernel == AttentionKernel::kSimt) return launch_simt(ctx, p, layer.dtype);

  const bool is_bf16 = layer.dtype == DType::kBFloat16;
  p.plan = static_cast<AttentionPlan*>(batch.plan);
  p.decode_blocks = decode_grid(p.head_size);
  p.decode_clusters =
      decode_clusters(p.num_decode_rows, decode_units(p.num_heads, p.num_kv_heads), p.head_size);
  p.partial_out = static_cast<float*>(ctx.workspace);
  p.partial_max_sum = p.partial_out + static_cast<int64_t>(2) * p.decode_blocks * kDecodeHeads * p.head_size;
  if (p.plan == nullptr || (p.num_decode_rows > 0 && ctx.workspace == nullptr))
    return note_error(ctx, "paged_attention", "",
                      p.plan == nullptr ? "no plan was given" : "no workspace was given");
  if (const int parts = common_prefix_parts(batch, layer)) {
    float* memory = p.partial_max_sum + static_cast<int64_t>(2) * p.decode_blocks * kDecodeHeads * 2;
    p.common_prefix = {
        .out = memory, .parts = parts, .num_rows = p.num_decode_rows, .num_heads = p.num_heads};
    p.common_prefix.max_sums =
        reinterpret_cast<float2*>(memory + p.common_prefix.place(parts, 0, 0) * p.head_size);
    launch_common_prefix(ctx, p, layer.dtype);
  }
  if (p.num_decode_rows > 0) (is_bf16 ? launch_decode_bf16 : launch_decode_fp16)(ctx, p);
  if (p.num_rows == p.num_decode_rows) return;
  if (kernel == AttentionKernel::kWgmma) return launch_prefill_wgmma(ctx, p, layer.dtype);
  (is_bf16 ? launch_prefill_mma_bf16 : launch_prefill_mma_fp16)(ctx, p);
}

}  // namespace quire::cuda
