// The character map of a SentencePiece model.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/rewriter.h"

namespace quire::text {

// A double array (as darts-clone packs one) from strings to places in a pool of replacements. Const after
// construction.
class CharacterMap {
 public:
  struct Match {
    size_t length;  // bytes of the text that are replaced
    std::string_view replacement;
  };

  // `bytes`: the size of the array in bytes (little-endian, 32 bits), the array, the pool, in which each
  // replacement ends in a zero byte. Throws InvalidArgument, in words to go on after a key, unless it is.
  explicit CharacterMap(std::string bytes);

  std::optional<Match> find_shortest(std::string_view text) const { return find(text, false); }
  std::optional<Match> find_longest(std::string_view text) const { return find(text, true); }
  // Whether nothing in the map begins with this byte, which is ASCII.
  bool is_left_alone(unsigned char ascii) const { return left_alone_[ascii]; }

 private:
  std::optional<Match> find(std::string_view text, bool longest) const;

  std::vector<uint32_t> units_;
  std::string pool_;
  std::array<bool, 128> left_alone_{};
};

// As the Precompiled normalizer of `tokenizers` applies one: a cluster of characters of less than six bytes
// becomes what the shortest key that it begins with does; otherwise, each character by itself. Sets
// `drops_start` when nothing stays of the first character. `alignment`, of `text`, becomes that of the
// result; or is null.
std::string apply_by_clusters(const CharacterMap& map, std::string_view text, bool& drops_start,
                              Alignment* alignment);

}  // namespace quire::text
