// Many strings searched for at once in a text that grows: the automaton of Aho and Corasick, "Efficient
// string matching: an aid to bibliographic search" (1975). A byte costs the same however many strings there
// are.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace quire {

// Immutable, so it may be shared between completions and threads; each search keeps its own State.
class StopStrings {
 public:
  // Non-empty strings. Takes at most 24 bytes of memory for each of theirs.
  explicit StopStrings(const std::vector<std::string>& strings);

  using State = uint32_t;  // what has been read, as far as it matters; 0: nothing
  struct Match {
    size_t begin = 0;  // in the text
    size_t index = 0;  // of the string
  };
  // Reads `text` from byte `from` on, which is where this `state` has come to. Of the strings that end there,
  // the one that begins first; of those with one beginning, the first of the list. A string may have begun
  // before `from`.
  std::optional<Match> search(std::string_view text, size_t from, State& state) const;
  // How many of the last bytes may be the beginning of a string.
  size_t num_pending_bytes(State state) const { return nodes_[state].depth; }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Node {
    uint32_t first_child = kNone, next_sibling = kNone;
    uint32_t fail = 0;       // the longest other beginning of a string that what was read ends with
    uint32_t match = kNone;  // the longest string that ends here
    uint32_t depth = 0;
    uint8_t byte = 0;
  };
  uint32_t child(uint32_t node, uint8_t byte) const;
  uint32_t next(uint32_t node, uint8_t byte) const;

  std::vector<Node> nodes_;
  std::vector<uint32_t> lengths_;
  std::array<uint32_t, 256> root_;  // its children by byte; every search comes back to it
};

}  // namespace quire
