// Looking for many strings at once, in time linear in the text whatever the strings are: Aho and Corasick,
// "Efficient string matching: an aid to bibliographic search" (1975).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace quire {

// Insert, then link, then search; thread-safe once linked. Takes 28 bytes for each of the strings' bytes.
class AhoCorasick {
 public:
  // What has been read, as far as it matters: the longest end of it that a string begins with.
  using State = uint32_t;
  static constexpr State kStart = 0;

  // The first of equal strings keeps its index, which is at least 0. Empty strings are ignored.
  void insert(std::string_view text, int32_t index);
  void link();
  bool empty() const { return nodes_.size() == 1; }

  State next(State state, char byte) const {
    for (;; state = nodes_[state].fail) {
      const State to = child(state, byte);
      if (to != kNone || state == kStart) return to;
    }
  }
  // From a place where nothing is begun: the next one where a string may begin, or the text's end.
  size_t next_begin(std::string_view text, size_t pos) const {
    while (pos < text.size() && first_bytes_[static_cast<unsigned char>(text[pos])] == kNone) ++pos;
    return pos;
  }
  // Bytes of that end.
  size_t depth(State state) const { return nodes_[state].depth; }
  // The longest string that what has been read ends with: its index, or -1, and its length.
  int32_t match(State state) const { return nodes_[nodes_[state].match].index; }
  size_t match_length(State state) const { return nodes_[nodes_[state].match].depth; }

 private:
  static constexpr State kNone = kStart;  // no child, no sibling, no match: the root is none of these

  struct Node {
    int32_t index = -1;  // of the string that ends here
    uint32_t depth = 0;
    State first_child = kNone, next_sibling = kNone;
    State fail = kStart;  // the longest other beginning of a string that what was read ends with
    State match = kNone;  // the longest string that ends here
    char byte = 0;
  };

  State child(State node, char byte) const {
    if (node == kStart) return first_bytes_[static_cast<unsigned char>(byte)];
    State to = nodes_[node].first_child;
    while (to != kNone && nodes_[to].byte != byte) to = nodes_[to].next_sibling;
    return to;
  }

  std::vector<Node> nodes_{1};            // the root first
  std::array<State, 256> first_bytes_{};  // the root's children: text comes back to it all the time
};

}  // namespace quire
