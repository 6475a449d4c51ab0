#include "attention/selector.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "attention/decode_work.cuh"
#include "attention/params.h"
#include "attention/prefill_mma.cuh"
#include "ops.h"

namespace quire::cuda {
namespace {

bool is_power_of_two(int x) { return x > 0 && (x & (x - 1)) == 0; }

// The shared memory of a block of the decode kernel, and of one of the mma prefill, for
// head sizes that they take.
struct SharedBytes {
  int decode, prefill;
};
template <int D>
constexpr SharedBytes kSharedBytes = {DecodeShared<D>::kBytes, PrefillShared<D>::kBytes};

SharedBytes shared_bytes(int head_size) {
  return with_head_size(head_size, [&]<int D>() { return kSharedBytes<D>; });
}

// Pairs of blocks read half as much. But what a block waits for the other, and has nothing to do at the end
// of its prompt, takes longer where prompts are shorter than this in the mean, or too few. Found with
// quire_cuda_attention_bench.
constexpr int64_t kPairTokens = 1024, kManyTokens = 8192;
// Where the longest has so many keys.
constexpr int64_t kPairTokensOfLong = 512;
constexpr int32_t kPairKeys = 4096;

constexpr const char* kSizes = "head size is not 64, 80, 96, 128 or 256";
bool has_tensor_core_size(int d) { return d == 64 || d == 80 || d == 96 || d == 128 || d == 256; }

const char* shared_memory_refusal(int decode_bytes, int prefill_bytes, const DeviceLimits& limits) {
  return shared_memory_fits(std::max(decode_bytes, prefill_bytes), limits.max_shared_bytes_per_block)
             ? nullptr
             : "the device has too little shared memory for the head size";
}

}  // namespace

const char* attention_kernel_name(AttentionKernel kernel) {
  switch (kernel) {
    case AttentionKernel::kWgmma: return "wgmma";
    case AttentionKernel::kMma: return "mma";
    default: return "simt";
  }
}

const char* attention_kernel_refusal(AttentionKernel kernel, const AttentionLayer& layer,
                                     const DeviceLimits& limits) {
  const int d = layer.head_size;
  // What the layout of a page asks for.
  if (layer.block_size < 16 || !is_power_of_two(layer.block_size))
    return "block size is not a power of two of at least 16";
  if (d <= 0 || d % 16 != 0) return "head size is not a multiple of 16";
  if (d > 256) return "head size is above 256";
  const bool is_16_bit = layer.dtype == DType::kBFloat16 || layer.dtype == DType::kFloat16;
  switch (kernel) {
    case AttentionKernel::kSimt:
      return is_16_bit || layer.dtype == DType::kFloat32 ? nullptr
                                                         : "dtype is not float32, float16 or bfloat16";
    case AttentionKernel::kMma:
      if (!is_16_bit) return "dtype is not float16 or bfloat16";
      if (limits.compute_capability < 80) return "compute capability is below 8.0";
      if (!has_tensor_core_size(d)) return kSizes;
      return shared_memory_refusal(shared_bytes(d).decode, shared_bytes(d).prefill, limits);
    case AttentionKernel::kWgmma:
      if (!is_16_bit) return "dtype is not float16 or bfloat16";
      if (limits.compute_capability / 10 != 9) return "compute capability is not 9.x";
      if (!has_tensor_core_size(d)) return kSizes;
      if (layer.num_heads > wgmma_prefill_rows(d) * layer.num_kv_heads)
        return "a KV head has more query heads than a block has rows";
      return shared_memory_refusal(shared_bytes(d).decode, prefill_wgmma_shared_bytes(d), limits);
  }
  return "unknown kernel";
}

AttentionKernel select_attention_kernel(const AttentionLayer& layer, const DeviceLimits& limits) {
  const char* wanted = std::getenv("QUIRE_ATTENTION_KERNEL");
  AttentionKernel best = AttentionKernel::kSimt;
  bool found = false;
  for (const AttentionKernel kernel : kAttentionKernels) {
    if (attention_kernel_refusal(kernel, layer, limits) != nullptr) continue;
    if (wanted != nullptr && std::strcmp(wanted, attention_kernel_name(kernel)) == 0) return kernel;
    if (!found) best = kernel;
    found = true;
  }
  return best;
}

int prefill_rows(const AttentionLayer& layer) {
  if (layer.kernel != static_cast<int32_t>(AttentionKernel::kWgmma)) return kMmaPrefillRows;
  const int heads = layer.num_heads / layer.num_kv_heads;
  return wgmma_prefill_rows(layer.head_size) / heads * heads;
}

int prefill_blocks(const AttentionMetadata& batch, const AttentionLayer& layer) {
  const int64_t rows = batch.seq_lens.shape[0] - batch.num_decode_rows;
  if (rows == 0 || layer.kernel != static_cast<int32_t>(AttentionKernel::kWgmma) ||
      !has_prefill_pairs(layer.head_size) || layer.soft_cap > 0.0F || layer.alibi_slopes != nullptr)
    return 1;
  const char* wanted = std::getenv("QUIRE_PREFILL_BLOCKS");
  for (const int blocks : {1, kPrefillPair})
    if (wanted != nullptr && std::atoi(wanted) == blocks) return blocks;
  // Behind a narrow window the keys of two blocks are a good part more than those of one.
  if (layer.sliding_window > 0 && layer.sliding_window < kPairKeys) return 1;
  const int64_t tokens = batch.slot_mapping.shape[0] - batch.num_decode_rows, mean = tokens / rows;
  const bool is_worth_it = batch.max_seq_len >= kPairKeys ? mean >= kPairTokensOfLong
                                                          : mean >= kPairTokens && tokens >= kManyTokens;
  return is_worth_it ? kPrefillPair : 1;
}

void explain_attention_kernel(const AttentionLayer& layer, const DeviceLimits& limits, char* text,
                              size_t size) {
  const AttentionKernel chosen = select_attention_kernel(layer, limits);
  size_t used = 0;
  const auto append = [&](const char* format, const char* a, const char* b) {
    if (used >= size) return;
    const int written = std::snprintf(text + used, size - used, format, a, b);
    if (written > 0) used += static_cast<size_t>(written);
  };
  append("%s%s", attention_kernel_name(chosen), "");
  const char* separator = " (";
  for (const AttentionKernel kernel : kAttentionKernels) {
    const char* reason = attention_kernel_refusal(kernel, layer, limits);
    if (reason == nullptr) continue;
    append("%s%s: ", separator, attention_kernel_name(kernel));
    append("%s%s", reason, "");
    separator = "; ";
  }
  if (separator[0] == ';') append("%s%s", ")", "");
}

const char* select_attention(AttentionLayer& layer) {
  const DeviceLimits& limits = device_limits();
  const AttentionKernel kernel = select_attention_kernel(layer, limits);
  layer.kernel = static_cast<int32_t>(kernel);
  return attention_kernel_refusal(kernel, layer, limits);
}

}  // namespace quire::cuda
