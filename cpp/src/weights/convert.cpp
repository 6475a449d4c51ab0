#include "weights/convert.h"

#include <algorithm>
#include <cstring>

#include "util/check.h"
#include "util/half_float.h"
#include "util/sanitizer_ranges.h"

namespace quire {
namespace {

// A loop for each pair, without branches, so that the compiler can use vectors. A file need not keep its
// tensors at multiples of their types' sizes.
template <typename To, typename From, typename One>
[[gnu::always_inline]] inline void map_all(void* out, const void* values, int64_t count, One one) {
  auto* to = static_cast<To*>(out);
  const auto* from = static_cast<const std::byte*>(values);
  for (int64_t i = 0; i < count; ++i) {
    From value;
    std::memcpy(&value, from + static_cast<size_t>(i) * sizeof(From), sizeof(From));
    to[i] = one(value);
  }
}

#if defined(__x86_64__)
// Several times as fast as with the instructions that every x86-64 has.
template <typename To, typename From, typename One>
QUIRE_RANGES_TOLD [[gnu::target("avx2")]] void map_avx2(void* out, const void* values, int64_t count,
                                                        One one) {
  map_all<To, From>(out, values, count, one);
}
#endif

template <typename To, typename From, typename One>
QUIRE_RANGES_TOLD void map_plain(void* out, const void* values, int64_t count, One one) {
  map_all<To, From>(out, values, count, one);
}

template <typename To, typename From, typename One>
void map(void* out, const void* values, int64_t count, One one) {
  sanitizer_reads(values, static_cast<size_t>(count) * sizeof(From));
  sanitizer_writes(out, static_cast<size_t>(count) * sizeof(To));
#if defined(__x86_64__)
  static const bool has_avx2 = __builtin_cpu_supports("avx2");
  if (has_avx2) return map_avx2<To, From>(out, values, count, one);
#endif
  map_plain<To, From>(out, values, count, one);
}

// Whether no value has all bits of `exponent`.
template <typename Bits>
[[gnu::always_inline]] inline bool all_below(const void* values, int64_t count, Bits exponent) {
  const auto* from = static_cast<const std::byte*>(values);
  Bits most = 0;
  for (int64_t i = 0; i < count; ++i) {
    Bits value;
    std::memcpy(&value, from + static_cast<size_t>(i) * sizeof(Bits), sizeof(Bits));
    const Bits bits = value & exponent;
    most = bits > most ? bits : most;
  }
  return most != exponent;
}

[[gnu::always_inline]] inline bool all_finite_of(const void* values, DType dtype, int64_t count) {
  if (dtype == DType::kFloat32) return all_below<uint32_t>(values, count, 0x7F800000);
  return all_below<uint16_t>(values, count, dtype == DType::kFloat16 ? 0x7C00 : 0x7F80);
}

#if defined(__x86_64__)
QUIRE_RANGES_TOLD
[[gnu::target("avx2")]] bool all_finite_avx2(const void* values, DType dtype, int64_t count) {
  return all_finite_of(values, dtype, count);
}
#endif

QUIRE_RANGES_TOLD bool all_finite_plain(const void* values, DType dtype, int64_t count) {
  return all_finite_of(values, dtype, count);
}

}  // namespace

bool all_finite(const void* values, DType dtype, int64_t count) {
  sanitizer_reads(values, static_cast<size_t>(count) * dtype_bytes(dtype));
#if defined(__x86_64__)
  static const bool has_avx2 = __builtin_cpu_supports("avx2");
  if (has_avx2) return all_finite_avx2(values, dtype, count);
#endif
  return all_finite_plain(values, dtype, count);
}

namespace {

// Quantized checkpoints add 128 where they pack values into words.
void convert_bytes(void* out, DType dtype, const void* values, bool is_signed, int64_t count) {
  const auto* from = static_cast<const uint8_t*>(values);
  const uint8_t flip = is_signed ? 0 : 0x80;
  for (int64_t i = 0; i < count; ++i) {
    const auto value = static_cast<int8_t>(from[i] ^ flip);
    if (dtype == DType::kInt8) {
      static_cast<int8_t*>(out)[i] = value;
    } else {
      static_cast<float*>(out)[i] = static_cast<float>(value);
    }
  }
}

}  // namespace

void convert(void* out, DType dtype, const void* values, DType values_dtype, int64_t count) {
  if (values_dtype == DType::kInt8 || values_dtype == DType::kUInt8) {
    QUIRE_CHECK(dtype == DType::kInt8 || dtype == DType::kFloat32, "bytes become int8 or float32");
    return convert_bytes(out, dtype, values, values_dtype == DType::kInt8, count);
  }
  if (dtype == values_dtype) {
    if (count > 0) std::memcpy(out, values, static_cast<size_t>(count) * dtype_bytes(dtype));
    return;
  }
  const auto from = [&](DType a, DType b) { return values_dtype == a && dtype == b; };
  constexpr DType f32 = DType::kFloat32, f16 = DType::kFloat16, bf16 = DType::kBFloat16;
  if (from(f32, bf16))
    return map<uint16_t, float>(out, values, count, [](float x) { return float_to_bf16(x); });
  if (from(f32, f16))
    return map<uint16_t, float>(out, values, count, [](float x) { return float_to_fp16(x); });
  if (from(bf16, f32))
    return map<float, uint16_t>(out, values, count, [](uint16_t x) { return bf16_to_float(x); });
  if (from(f16, f32))
    return map<float, uint16_t>(out, values, count, [](uint16_t x) { return fp16_to_float(x); });
  if (from(f16, bf16)) {
    return map<uint16_t, uint16_t>(out, values, count,
                                   [](uint16_t bits) { return float_to_bf16(fp16_to_float(bits)); });
  }
  QUIRE_CHECK(from(bf16, f16), dtype_name(values_dtype), " to ", dtype_name(dtype));
  map<uint16_t, uint16_t>(out, values, count,
                          [](uint16_t bits) { return float_to_fp16(bf16_to_float(bits)); });
}

void fill_dummy(void* out, DType dtype, int64_t begin, int64_t count, float center, float scale,
                uint64_t seed) {
  constexpr int64_t kChunk = 256;
  float values[kChunk];
  for (int64_t done = 0; done < count; done += kChunk) {
    const int64_t n = std::min(kChunk, count - done);
    for (int64_t i = 0; i < n; ++i) {
      // SplitMix64 (Steele et al., 2014) of the place in the sequence; its upper 24 bits.
      uint64_t z =
          (seed + 1) * 0xD1B54A32D192ED03 + static_cast<uint64_t>(begin + done + i) * 0x9E3779B97F4A7C15;
      z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
      z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
      const float unit = static_cast<float>(static_cast<int64_t>((z ^ (z >> 31)) >> 40)) * 0x1p-23F - 1.0F;
      values[i] = center + scale * unit;
    }
    convert(static_cast<std::byte*>(out) + static_cast<size_t>(done) * dtype_bytes(dtype), dtype, values,
            DType::kFloat32, n);
  }
}

}  // namespace quire
