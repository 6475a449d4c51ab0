// SHA-256 (FIPS 180-4), with the processor's SHA instructions where it has them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace quire {

using Sha256State = std::array<uint32_t, 8>;
using Sha256Block =
    std::array<uint32_t, 16>;  // the message's words, whose first byte is the most significant

// The compression function: `state` takes in one block. Thread-safe.
void sha256_compress(Sha256State& state, const Sha256Block& block);

// sha256_compress in plain C++.
void sha256_compress_portable(Sha256State& state, const Sha256Block& block);

// The hash of a message that is given in pieces.
class Sha256 {
 public:
  Sha256& add(std::span<const std::byte> bytes);
  Sha256& add(std::string_view text) { return add(std::as_bytes(std::span(text))); }
  // The length and then the text, so that lists of texts differ when their members do.
  Sha256& add_field(std::string_view text);
  // The hash of all that was added. Call once, last.
  Sha256State finish();

 private:
  void add_byte(uint8_t byte);
  void add_block(const uint8_t* bytes);

  Sha256State state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                     0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  Sha256Block block_{};
  uint64_t num_bytes_ = 0;
};

}  // namespace quire
