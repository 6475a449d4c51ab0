// The parts of a regular expression.
#pragma once

#include <memory>
#include <vector>

#include "tokenizer/unicode.h"

namespace quire::text {

struct RegexNode {
  enum class Kind {
    kEmpty,      // matches the empty string
    kSet,        // one character of `set`
    kConcat,     // the children, one after the other
    kAlternate,  // the first child that leads to a match
    kRepeat,     // the child, `min` to `max` times
    kLook,       // the child matches here (or, if `negated`, does not); consumes nothing
    kAtomic,     // the child's first match, never reconsidered
    kAssert,     // a place in the text
  };
  enum class Mode { kGreedy, kLazy, kPossessive };
  enum class Assertion {
    kLineStart,
    kLineEnd,
    kTextStart,
    kTextEnd,
    kTextEndOrFinalNewline,
    kWordEdge,
    kNoWordEdge
  };
  static constexpr int kUnlimited = -1;

  Kind kind = Kind::kEmpty;
  std::vector<std::unique_ptr<RegexNode>> children;
  unicode::CodePointSet set;
  int min = 0;
  int max = kUnlimited;
  Mode mode = Mode::kGreedy;
  bool negated = false;
  Assertion assertion = Assertion::kLineStart;

  // Whether it can match the empty string.
  bool is_nullable() const;
};

using RegexNodePtr = std::unique_ptr<RegexNode>;

// Reads a pattern in the dialect that Hugging Face `tokenizers` reads (Oniguruma's Ruby syntax over
// Unicode), or the part of it that split patterns use. Throws InvalidArgument, naming the construct and
// its position, for everything else.
RegexNodePtr parse_regex(std::string_view pattern);

}  // namespace quire::text
