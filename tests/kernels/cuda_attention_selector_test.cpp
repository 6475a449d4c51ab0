// Which attention kernel the CUDA backend chooses, and why not another. Needs no device.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "attention/selector.h"

namespace quire {
namespace {

using cuda::AttentionKernel;
using cuda::DeviceLimits;

// A block may have that much on devices of compute capability 8.6, 8.9 and 12.x.
constexpr int kSmallSharedBytes = 101376;

DeviceLimits limits(int compute_capability, int max_shared_bytes_per_block) {
  return {.compute_capability = compute_capability,
          .num_sms = 100,
          .max_shared_bytes_per_block = max_shared_bytes_per_block};
}
// The limits of devices of that compute capability.
DeviceLimits limits(int compute_capability) {
  return limits(compute_capability, compute_capability == 90   ? 232448
                                    : compute_capability == 80 ? 166912
                                                               : kSmallSharedBytes);
}

TEST(AttentionSelectorTest, TakesTheBestThatDoesNotRefuse) {
  AttentionLayer layer = {.dtype = DType::kBFloat16, .head_size = 128, .block_size = 16};
  EXPECT_EQ(cuda::select_attention_kernel(layer, limits(90)), AttentionKernel::kWgmma);
  EXPECT_EQ(cuda::select_attention_kernel(layer, limits(80)), AttentionKernel::kMma);
  EXPECT_EQ(cuda::select_attention_kernel(layer, limits(120)), AttentionKernel::kMma);
  layer.head_size = 96;
  EXPECT_EQ(cuda::select_attention_kernel(layer, limits(90)), AttentionKernel::kWgmma);
  layer.head_size = 48;
  EXPECT_EQ(cuda::select_attention_kernel(layer, limits(90)), AttentionKernel::kSimt);
  layer = {.dtype = DType::kFloat32, .head_size = 128, .block_size = 16};
  EXPECT_EQ(cuda::select_attention_kernel(layer, limits(90)), AttentionKernel::kSimt);
}

TEST(AttentionSelectorTest, SaysWhyItRefusedTheOthers) {
  const auto explain = [](const AttentionLayer& layer, const DeviceLimits& limits) {
    char text[256];
    cuda::explain_attention_kernel(layer, limits, text, sizeof text);
    return std::string(text);
  };
  EXPECT_EQ(explain({.dtype = DType::kFloat16, .head_size = 64, .block_size = 32}, limits(90)), "wgmma");
  EXPECT_EQ(explain({.dtype = DType::kFloat16, .head_size = 80, .block_size = 32}, limits(80)),
            "mma (wgmma: compute capability is not 9.x)");
  EXPECT_EQ(explain({.dtype = DType::kFloat16, .head_size = 48, .block_size = 32}, limits(90)),
            "simt (wgmma: head size is not 64, 80, 96, 128 or 256; mma: head size is not 64, 80, 96, 128 or "
            "256)");
  EXPECT_EQ(explain({.dtype = DType::kFloat32, .head_size = 64, .block_size = 32}, limits(80)),
            "simt (wgmma: dtype is not float16 or bfloat16; mma: dtype is not float16 or bfloat16)");
  EXPECT_EQ(
      explain(
          {.dtype = DType::kFloat16, .num_heads = 129, .num_kv_heads = 1, .head_size = 128, .block_size = 16},
          limits(90)),
      "mma (wgmma: a KV head has more query heads than a block has rows)");
  EXPECT_EQ(
      explain(
          {.dtype = DType::kFloat16, .num_heads = 256, .num_kv_heads = 2, .head_size = 128, .block_size = 16},
          limits(90)),
      "wgmma");
  char few[8];
  cuda::explain_attention_kernel({.dtype = DType::kFloat32, .head_size = 64, .block_size = 32}, limits(80),
                                 few, sizeof few);
  EXPECT_STREQ(few, "simt (w");
}

TEST(AttentionSelectorTest, RefusesWhatTheSharedMemoryIsTooSmallFor) {
  for (const int head_size : {64, 80, 96, 128, 256}) {
    const AttentionLayer layer = {.dtype = DType::kBFloat16, .head_size = head_size, .block_size = 16};
    EXPECT_EQ(cuda::select_attention_kernel(layer, limits(80)), AttentionKernel::kMma) << head_size;
    EXPECT_EQ(cuda::select_attention_kernel(layer, limits(86)),
              head_size == 256 ? AttentionKernel::kSimt : AttentionKernel::kMma)
        << head_size;
    EXPECT_EQ(cuda::select_attention_kernel(layer, limits(75, 65536)), AttentionKernel::kSimt);
    EXPECT_EQ(cuda::select_attention_kernel(layer, limits(80, 65536)), AttentionKernel::kSimt);
  }
  const AttentionLayer layer = {.dtype = DType::kBFloat16, .head_size = 128, .block_size = 16};
  EXPECT_EQ(cuda::select_attention_kernel(layer, limits(90, kSmallSharedBytes)), AttentionKernel::kMma);
  EXPECT_STREQ(cuda::attention_kernel_refusal(AttentionKernel::kWgmma, layer, limits(90, kSmallSharedBytes)),
               "the device has too little shared memory for the head size");
  // The mma prefill has 98304 bytes with this head size.
  EXPECT_EQ(cuda::attention_kernel_refusal(AttentionKernel::kMma, layer, limits(80, 98304 + 1024)), nullptr);
  EXPECT_NE(cuda::attention_kernel_refusal(AttentionKernel::kMma, layer, limits(80, 98304 - 1)), nullptr);
}

TEST(AttentionSelectorTest, LongPromptsHavePairsOfBlocks) {
  AttentionLayer layer = {.dtype = DType::kBFloat16,
                          .num_heads = 32,
                          .num_kv_heads = 8,
                          .head_size = 128,
                          .block_size = 16,
                          .kernel = static_cast<int32_t>(AttentionKernel::kWgmma)};
  const auto blocks = [&](int64_t tokens, int64_t rows, int32_t max_seq_len, int32_t num_decode_rows = 0) {
    AttentionMetadata batch;
    batch.seq_lens = TensorView(nullptr, DType::kInt32, rows + num_decode_rows);
    batch.slot_mapping = TensorView(nullptr, DType::kInt64, tokens + num_decode_rows);
    batch.num_decode_rows = num_decode_rows;
    batch.max_seq_len = max_seq_len;
    return cuda::prefill_blocks(batch, layer);
  };
  EXPECT_EQ(blocks(8192, 1, 8192), 2);
  EXPECT_EQ(blocks(16 * 1024, 16, 1024), 2);
  EXPECT_EQ(blocks(16 * 512, 16, 4096), 2);
  EXPECT_EQ(blocks(512, 1, 131072), 2);
  EXPECT_EQ(blocks(8192, 1, 8192, 200), 2);
  EXPECT_EQ(blocks(511, 1, 131072), 1);
  EXPECT_EQ(blocks(1024, 1, 1024), 1);
  EXPECT_EQ(blocks(16 * 512, 16, 512), 1);
  EXPECT_EQ(blocks(64 * 32, 64, 4096), 1);
  EXPECT_EQ(blocks(0, 0, 131072, 64), 1);
  setenv("QUIRE_PREFILL_BLOCKS", "1", 1);
  EXPECT_EQ(blocks(8192, 1, 8192), 1);
  setenv("QUIRE_PREFILL_BLOCKS", "2", 1);
  EXPECT_EQ(blocks(40, 1, 40), 2);
  setenv("QUIRE_PREFILL_BLOCKS", "pairs", 1);  // says nothing
  EXPECT_EQ(blocks(40, 1, 40), 1);
  EXPECT_EQ(blocks(8192, 1, 8192), 2);
  unsetenv("QUIRE_PREFILL_BLOCKS");
  layer.sliding_window = 1024;
  EXPECT_EQ(blocks(8192, 1, 8192), 1);
  layer.sliding_window = 4096;
  EXPECT_EQ(blocks(8192, 1, 8192), 2);
  layer.sliding_window = 0;
  layer.head_size = 64;
  EXPECT_EQ(blocks(8192, 1, 8192), 1);
  layer.head_size = 256;
  EXPECT_EQ(blocks(8192, 1, 8192), 2);
  layer.soft_cap = 50.0F;
  EXPECT_EQ(blocks(8192, 1, 8192), 1);
  layer.soft_cap = 0.0F;
  layer.kernel = static_cast<int32_t>(AttentionKernel::kMma);
  EXPECT_EQ(blocks(8192, 1, 8192), 1);
}

TEST(AttentionSelectorTest, TheEnvironmentNamesAKernelThatMustBeAbleTo) {
  const AttentionLayer layer = {.dtype = DType::kBFloat16, .head_size = 80, .block_size = 16};
  setenv("QUIRE_ATTENTION_KERNEL", "simt", 1);
  EXPECT_EQ(cuda::select_attention_kernel(layer, limits(90)), AttentionKernel::kSimt);
  setenv("QUIRE_ATTENTION_KERNEL", "wgmma", 1);  // not on that device
  EXPECT_EQ(cuda::select_attention_kernel(layer, limits(80)), AttentionKernel::kMma);
  unsetenv("QUIRE_ATTENTION_KERNEL");
}

}  // namespace
}  // namespace quire
