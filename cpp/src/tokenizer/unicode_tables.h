// Unicode data as Hugging Face `tokenizers` has it: generated/unicode_tables.cpp, which
// tools/make_unicode_tables.py makes.
//
// Its parts carry different Unicode versions, so there is a table for each part that asks: the split
// regexes, the added tokens, the Digits pre-tokenizer and the normalizers.
#pragma once

#include <cstdint>
#include <span>

#include "util/code_points.h"

namespace quire::unicode {

struct CombiningClass {
  char32_t code_point;
  uint8_t combining_class;
};

struct Composition {
  char32_t first;
  char32_t second;
  char32_t composed;
};

// In the order of the generator's CATEGORIES.
enum class Category : uint8_t {
  kCn,
  kCc,
  kCf,
  kCo,
  kCs,
  kLl,
  kLm,
  kLo,
  kLt,
  kLu,
  kMc,
  kMe,
  kMn,
  kNd,
  kNl,  //
  kNo,
  kPc,
  kPd,
  kPe,
  kPf,
  kPi,
  kPo,
  kPs,
  kSc,
  kSk,
  kSm,
  kSo,
  kZl,
  kZp,
  kZs,
};

// Where a run of one category starts: the code point << 5 | the category. Sorted; the first starts at 0.
extern const std::span<const uint32_t> kCategoryStarts;

extern const std::span<const CodePointRange> kRegexSpace;       // \s
extern const std::span<const CodePointRange> kRegexWord;        // \w
extern const std::span<const CodePointRange> kAddedTokenSpace;  // what lstrip and rstrip take along
extern const std::span<const CodePointRange> kAddedTokenWord;   // what single_word must not touch
extern const std::span<const CodePointRange> kNumeric;          // the Digits pre-tokenizer
extern const std::span<const CodePointRange> kPunctuation;      // Punctuation and BertPreTokenizer
extern const std::span<const CodePointRange> kWhitespaceWord;   // words of the Whitespace pre-tokenizer
extern const std::span<const CodePointRange> kCombiningMarks;   // the StripAccents normalizer
extern const std::span<const CodePointRange> kNonspacingMarks;  // BertNormalizer's strip_accents
extern const std::span<const CodePointRange> kBertRemoved;      // BertNormalizer's clean_text
extern const std::span<const CodePointRange> kBertSpace;
extern const std::span<const CodePointRange> kNmtRemoved;
extern const std::span<const CodePointRange> kNmtSpace;

// Grapheme clusters of less than six bytes, which are all that the Precompiled normalizer asks about: what
// joins the character before it, what joins the one after it, and what joins neither.
extern const std::span<const CodePointRange> kGraphemeExtending;
extern const std::span<const CodePointRange> kGraphemePrepended;
extern const std::span<const CodePointRange> kGraphemeControls;

// The Lowercase normalizer, character by character.
extern const std::span<const CodePointMapping> kLowercase;
extern const std::span<const char32_t> kLowercasePool;

// Characters that (?i:) takes for one another; each class ends in 0.
extern const std::span<const char32_t> kCaseClasses;
// Characters that fold to several, and what they fold to, each ending in 0.
extern const std::span<const CodePointRange> kMultipleFoldCharacters;
extern const std::span<const char32_t> kMultipleFolds;

// All sorted by their first member. Decompositions are full; Hangul syllables are left to arithmetic.
extern const std::span<const CombiningClass> kCombiningClasses;  // those that are not 0
extern const std::span<const Composition> kCompositions;
extern const std::span<const CodePointMapping> kCanonicalDecompositions;
extern const std::span<const char32_t> kCanonicalDecompositionsPool;
// Only those that differ from the canonical one.
extern const std::span<const CodePointMapping> kCompatibilityDecompositions;
extern const std::span<const char32_t> kCompatibilityDecompositionsPool;

}  // namespace quire::unicode
