// Stop strings, looked for in a text as it grows.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "util/aho_corasick.h"

namespace quire {

// A byte of text costs the same however many strings there are. Immutable: completions share it, and each
// keeps the State of its own search.
class StopStrings {
 public:
  using State = AhoCorasick::State;

  explicit StopStrings(const std::vector<std::string>& strings);  // non-empty ones

  struct Match {
    size_t begin = 0;  // in the text
    size_t index = 0;  // of the string
  };
  // Reads `text` from byte `from` on, which is where this `state` has come to. Of the strings that end there,
  // the one that begins first; of those with one beginning, the first of the list. A string may have begun
  // before `from`.
  std::optional<Match> search(std::string_view text, size_t from, State& state) const;
  // How many of the last bytes may be the beginning of a string.
  size_t num_pending_bytes(State state) const { return strings_.depth(state); }

 private:
  AhoCorasick strings_;
};

}  // namespace quire
