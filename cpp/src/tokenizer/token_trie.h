// Looking for many strings at once.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace quire::text {

// Strings to look for, all at once: what begins first is found, and of those the longest. Searching takes
// time in the length of the text, whatever the strings are (Aho and Corasick, 1975). Insert, then link, then
// find; thread-safe once linked.
class TokenTrie {
 public:
  // The first of equal strings keeps its index. Empty strings are ignored.
  void insert(std::string_view text, int32_t index);
  void link();
  bool empty() const { return nodes_.empty(); }
  // The first match at or after `start`: its index, and where it begins and ends. -1 when there is none.
  int32_t find(std::string_view text, size_t start, size_t& begin, size_t& end) const;

 private:
  static constexpr uint32_t kRoot = 0;
  static constexpr uint32_t kNone = 0;  // no child and no sibling: the root is neither

  // A beginning of some strings.
  struct Node {
    int32_t index = -1;  // of the string that ends here
    uint32_t depth = 0;
    uint32_t first_child = kNone;
    uint32_t next_sibling = kNone;
    uint32_t fail = kRoot;   // the longest proper suffix that is a beginning too
    uint32_t match = kNone;  // the longest suffix, perhaps itself, that is a string
    char byte = 0;
  };

  uint32_t child(uint32_t node, char byte) const;

  std::vector<Node> nodes_;                  // nodes_[0] is the root
  std::array<uint32_t, 256> first_bytes_{};  // the root's children: text comes back to it all the time
};

}  // namespace quire::text
