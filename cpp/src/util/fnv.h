// A hash of plain values, the same on every machine of one byte order: FNV-1a, 64 bits.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>
#include <type_traits>

namespace quire {

class Fnv {
 public:
  Fnv& add(std::string_view text) {
    for (const char c : text) add_byte(static_cast<uint8_t>(c));
    return add(text.size());
  }
  template <typename T>
    requires std::is_arithmetic_v<T> || std::is_enum_v<T> || std::is_same_v<T, void*>
  Fnv& add(T value) {
    uint8_t bytes[sizeof(T)];
    std::memcpy(bytes, &value, sizeof(T));
    for (const uint8_t byte : bytes) add_byte(byte);
    return *this;
  }
  uint64_t value() const { return hash_; }

 private:
  void add_byte(uint8_t byte) { hash_ = (hash_ ^ byte) * 0x100000001B3U; }

  uint64_t hash_ = 0xCBF29CE484222325U;
};

}  // namespace quire
