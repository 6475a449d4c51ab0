// GGUF files, written byte by byte.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace quire {

// Writes a file as the format describes it.
struct GgufBytes {
  std::string text;

  template <typename T>
  GgufBytes& add(T value) {
    text.append(reinterpret_cast<const char*>(&value), sizeof(value));
    return *this;
  }
  GgufBytes& add_string(std::string_view value) {
    add(uint64_t{value.size()});
    text += value;
    return *this;
  }
  GgufBytes& begin(uint32_t version, uint64_t num_tensors, uint64_t num_keys) {
    text += "GGUF";
    return add(version).add(num_tensors).add(num_keys);
  }
  GgufBytes& add_tensor(std::string_view name, uint64_t columns, uint64_t rows, uint32_t type, uint64_t at) {
    return add_string(name).add(uint32_t{2}).add(columns).add(rows).add(type).add(at);
  }
  GgufBytes& add_data(size_t num_bytes) {
    text.resize((text.size() + 31) / 32 * 32 + num_bytes);
    return *this;
  }
};

}  // namespace quire
