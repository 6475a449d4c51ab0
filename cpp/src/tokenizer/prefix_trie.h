// The tokens that a text begins with.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "tokenizer/token_table.h"

namespace quire::text {

// A double array: the child of `node` by `byte` is base ^ byte, if that unit says it is. Const once built.
class PrefixTrie {
 public:
  struct Entry {
    size_t size;
    int32_t id;
  };

  PrefixTrie() = default;
  // Of the tokens named, whose strings are in `tokens`.
  PrefixTrie(const TokenTable& tokens, const std::vector<Entry>& entries);

  // Calls take(length, id) for each token that `text` begins with, the shortest first.
  template <typename Take>
  void for_each_prefix(std::string_view text, const Take& take) const {
    if (units_.empty()) return;
    uint32_t node = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      const uint32_t child = units_[node].base ^ static_cast<unsigned char>(text[i]);
      if (units_[child].parent != node) return;
      node = child;
      if (units_[node].id >= 0) take(i + 1, units_[node].id);
    }
  }

 private:
  static constexpr uint32_t kFree = UINT32_MAX;
  static constexpr uint32_t kRoot = UINT32_MAX - 1;
  struct Unit {
    uint32_t base = 0;
    uint32_t parent = kFree;
    int32_t id = -1;
  };

  uint32_t find_base(const std::vector<unsigned char>& labels);

  std::vector<Unit> units_;
  std::vector<size_t> num_free_;  // of each 256 units, while building
};

}  // namespace quire::text
