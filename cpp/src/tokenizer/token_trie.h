// Looking for added tokens.
#pragma once

#include <cstdint>
#include <string_view>

#include "util/aho_corasick.h"

namespace quire::text {

// What begins first is found, and of those the longest. Insert, then link, then find; thread-safe once
// linked.
class TokenTrie {
 public:
  // The first of equal strings keeps its index. Empty strings are ignored.
  void insert(std::string_view text, int32_t index) { strings_.insert(text, index); }
  void link() { strings_.link(); }
  bool empty() const { return strings_.empty(); }
  // The first match at or after `start`: its index, and where it begins and ends. -1 when there is none.
  int32_t find(std::string_view text, size_t start, size_t& begin, size_t& end) const;

 private:
  AhoCorasick strings_;
};

}  // namespace quire::text
