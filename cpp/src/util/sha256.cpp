#include "util/sha256.h"

#include <bit>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace quire {
namespace {

// The first 32 bits of the fractional parts of the cube roots of the first 64 primes.
alignas(64) constexpr uint32_t kRounds[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

#if defined(__x86_64__)
bool has_sha_instructions() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return false;
  const bool has_sse = (c & bit_SSE4_1) != 0 && (c & bit_SSSE3) != 0;
  return has_sse && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & bit_SHA) != 0;
}

// Four rounds take four words of the schedule, which the instructions extend four at a time from the sixteen
// before. They hold the state as (a b e f) and (c d g h), the first letter in the uppermost word.
[[gnu::target("sha,sse4.1,ssse3")]] void compress_with_instructions(Sha256State& state,
                                                                    const Sha256Block& block) {
  const auto load = [](const uint32_t* from) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  };
  const __m128i dcba = load(state.data()), hgfe = load(state.data() + 4);
  const __m128i cdab = _mm_shuffle_epi32(dcba, 0xB1), efgh = _mm_shuffle_epi32(hgfe, 0x1B);
  __m128i abef = _mm_alignr_epi8(cdab, efgh, 8), cdgh = _mm_blend_epi16(efgh, cdab, 0xF0);
  const __m128i abef_before = abef, cdgh_before = cdgh;
  __m128i words[4];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    __m128i& next = words[i % 4];
    if (i < 4) {
      next = load(block.data() + 4 * i);
    } else {
      const __m128i last = words[(i + 3) % 4];
      const __m128i seven_back = _mm_alignr_epi8(last, words[(i + 2) % 4], 4);
      next = _mm_sha256msg2_epu32(_mm_add_epi32(_mm_sha256msg1_epu32(next, words[(i + 1) % 4]), seven_back),
                                  last);
    }
    const __m128i round = _mm_add_epi32(next, load(kRounds + 4 * i));
    cdgh = _mm_sha256rnds2_epu32(cdgh, abef, round);
    abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(round, 0x0E));
  }
  abef = _mm_add_epi32(abef, abef_before);
  cdgh = _mm_add_epi32(cdgh, cdgh_before);
  const __m128i feba = _mm_shuffle_epi32(abef, 0x1B), dchg = _mm_shuffle_epi32(cdgh, 0xB1);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state.data()), _mm_blend_epi16(feba, dchg, 0xF0));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state.data() + 4), _mm_alignr_epi8(dchg, feba, 8));
}
#endif

}  // namespace

void sha256_compress_portable(Sha256State& state, const Sha256Block& block) {
  uint32_t w[64];
  for (size_t i = 0; i < 16; ++i) w[i] = block[i];
  for (size_t i = 16; i < 64; ++i) {
    const uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ w[i - 15] >> 3;
    const uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ w[i - 2] >> 10;
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (size_t i = 0; i < 64; ++i) {
    const uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const uint32_t t1 = h + s1 + (g ^ (e & (f ^ g))) + kRounds[i] + w[i];
    const uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const uint32_t t2 = s0 + ((a & b) | (c & (a | b)));
    h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
  }
  const uint32_t after[8] = {a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < 8; ++i) state[i] += after[i];
}

void sha256_compress(Sha256State& state, const Sha256Block& block) {
#if defined(__x86_64__)
  static const bool has_instructions = has_sha_instructions();
  if (has_instructions) return compress_with_instructions(state, block);
#endif
  sha256_compress_portable(state, block);
}

void Sha256::add_byte(uint8_t byte) {
  uint32_t& word = block_[num_bytes_ / 4 % 16];
  word = word << 8 | byte;
  if (++num_bytes_ % 64 == 0) sha256_compress(state_, block_);
}

void Sha256::add_block(const uint8_t* bytes) {
  Sha256Block block;
  for (uint32_t& word : block) {
    word = uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 | uint32_t{bytes[2]} << 8 | bytes[3];
    bytes += 4;
  }
  num_bytes_ += 64;
  sha256_compress(state_, block);
}

Sha256& Sha256::add(std::span<const std::byte> bytes) {
  const auto* next = reinterpret_cast<const uint8_t*>(bytes.data());
  const uint8_t* const end = next + bytes.size();
  while (next != end && num_bytes_ % 64 != 0) add_byte(*next++);
  for (; end - next >= 64; next += 64) add_block(next);
  while (next != end) add_byte(*next++);
  return *this;
}

Sha256& Sha256::add_field(std::string_view text) {
  for (int shift = 56; shift >= 0; shift -= 8) add_byte(static_cast<uint8_t>(uint64_t{text.size()} >> shift));
  return add(text);
}

Sha256State Sha256::finish() {
  const uint64_t num_bits = num_bytes_ * 8;
  add_byte(0x80);
  while (num_bytes_ % 64 != 56) add_byte(0);
  for (int shift = 56; shift >= 0; shift -= 8) add_byte(static_cast<uint8_t>(num_bits >> shift));
  return state_;
}

}  // namespace quire
