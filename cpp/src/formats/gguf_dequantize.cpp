// Blocks of quantized values. The products are written as the Python package gguf has them: each rounded to
// fp32, none fused (see CMakeLists.txt).
#include <array>
#include <bit>
#include <cstring>

#include "formats/gguf.h"
#include "util/check.h"
#include "util/half_float.h"

namespace quire {
namespace {

float half_at(const uint8_t* bytes) {
  uint16_t bits;
  std::memcpy(&bits, bytes, sizeof(bits));
  return fp16_to_float(bits);
}

// 32 values: a scale, and 8 bits each.
[[gnu::always_inline]] inline void dequantize_q8_0(const uint8_t* block, float* out) {
  const float d = half_at(block);
  for (int i = 0; i < 32; ++i) out[i] = static_cast<float>(static_cast<int8_t>(block[2 + i])) * d;
}

// 32 values: a scale, the low nibbles first.
[[gnu::always_inline]] inline void dequantize_q4_0(const uint8_t* block, float* out) {
  const float d = half_at(block);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>((block[2 + i] & 15) - 8);
    out[16 + i] = d * static_cast<float>((block[2 + i] >> 4) - 8);
  }
}

// 256 values in eight parts: two scales for the block, six bits of each for a part, packed in twelve bytes.
[[gnu::always_inline]] inline void dequantize_q4_k(const uint8_t* block, float* out) {
  const float d = half_at(block);
  const float min = half_at(block + 2);
  const uint8_t* scales = block + 4;
  const uint8_t* values = block + 16;
  for (int part = 0; part < 8; ++part) {
    int scale, offset;
    if (part < 4) {
      scale = scales[part] & 63;
      offset = scales[part + 4] & 63;
    } else {
      scale = (scales[part + 4] & 15) | ((scales[part - 4] >> 2) & 48);
      offset = (scales[part + 4] >> 4) | ((scales[part] >> 2) & 48);
    }
    const float part_scale = d * static_cast<float>(scale);
    const float part_min = min * static_cast<float>(offset);
    const uint8_t* bytes = values + part / 2 * 32;
    const int shift = part % 2 * 4;
    for (int i = 0; i < 32; ++i) {
      const float product = part_scale * static_cast<float>((bytes[i] >> shift) & 15);
      out[part * 32 + i] = product - part_min;
    }
  }
}

// 256 values in sixteen parts with a scale each: four low bits, two high ones.
[[gnu::always_inline]] inline void dequantize_q6_k(const uint8_t* block, float* out) {
  const uint8_t* low = block;
  const uint8_t* high = block + 128;
  const uint8_t* scales = block + 192;
  const float d = half_at(block + 208);
  for (int part = 0; part < 16; ++part, scales += 1, out += 16) {
    const int half = part / 8, row = part / 2 % 4, column = part % 2 * 16;
    const uint8_t* nibbles = low + half * 64 + row % 2 * 32 + column;
    const uint8_t* tops = high + half * 32 + column;
    const float scale = d * static_cast<float>(static_cast<int8_t>(*scales));
    for (int i = 0; i < 16; ++i) {
      const int nibble = (nibbles[i] >> (row / 2 * 4)) & 15;
      const int top = (tops[i] >> (row * 2)) & 3;
      out[i] = scale * static_cast<float>((nibble | top << 4) - 32);
    }
  }
}

template <int64_t kBytes, int64_t kValues, auto kOne>
[[gnu::always_inline]] inline void dequantize_each(const uint8_t* blocks, int64_t num_blocks, float* out) {
  for (int64_t i = 0; i < num_blocks; ++i) kOne(blocks + i * kBytes, out + i * kValues);
}

// In whatever instructions the caller has.
[[gnu::always_inline]] inline void dequantize_all(GgmlType type, const uint8_t* blocks, int64_t num_blocks,
                                                  float* out) {
  switch (type) {
    case GgmlType::kQ4_0: return dequantize_each<18, 32, dequantize_q4_0>(blocks, num_blocks, out);
    case GgmlType::kQ8_0: return dequantize_each<34, 32, dequantize_q8_0>(blocks, num_blocks, out);
    case GgmlType::kQ4_K: return dequantize_each<144, 256, dequantize_q4_k>(blocks, num_blocks, out);
    case GgmlType::kQ6_K: return dequantize_each<210, 256, dequantize_q6_k>(blocks, num_blocks, out);
    default: QUIRE_CHECK(false, "no type of blocks");
  }
}

#if defined(__x86_64__)
// Two to three times as fast as with the instructions that every x86-64 has, and none of them fuses.
[[gnu::target("avx2")]] void dequantize_avx2(GgmlType type, const uint8_t* blocks, int64_t num_blocks,
                                             float* out) {
  dequantize_all(type, blocks, num_blocks, out);
}
#endif

constexpr std::array<GgmlTypeInfo, 7> kTypes = {{{GgmlType::kF32, "F32", 1, 4},
                                                 {GgmlType::kF16, "F16", 1, 2},
                                                 {GgmlType::kQ4_0, "Q4_0", 32, 18},
                                                 {GgmlType::kQ8_0, "Q8_0", 32, 34},
                                                 {GgmlType::kQ4_K, "Q4_K", 256, 144},
                                                 {GgmlType::kQ6_K, "Q6_K", 256, 210},
                                                 {GgmlType::kBF16, "BF16", 1, 2}}};

}  // namespace

const GgmlTypeInfo& ggml_type_info(GgmlType type) {
  for (const GgmlTypeInfo& info : kTypes) {
    if (info.type == type) return info;
  }
  QUIRE_CHECK(false, "ggml type ", static_cast<uint32_t>(type));
}

void dequantize_blocks(GgmlType type, const std::byte* blocks, int64_t num_blocks, float* out) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(blocks);
#if defined(__x86_64__)
  static const bool has_avx2 = __builtin_cpu_supports("avx2");
  if (has_avx2) return dequantize_avx2(type, bytes, num_blocks, out);
#endif
  dequantize_all(type, bytes, num_blocks, out);
}

}  // namespace quire
