// Unicode data as Python's str has it, which is what templates run on: generated/python_unicode_tables.cpp,
// which tools/make_unicode_tables.py makes.
#pragma once

#include <span>

#include "util/code_points.h"

namespace quire::chat {

// The characters of which str.isspace() and so on are true. All tables are sorted.
extern const std::span<const CodePointRange> kSpace;
extern const std::span<const CodePointRange> kPrintable;
extern const std::span<const CodePointRange> kAlpha;
extern const std::span<const CodePointRange> kDecimal;
extern const std::span<const CodePointRange> kDigit;
extern const std::span<const CodePointRange> kNumeric;
extern const std::span<const CodePointRange> kUpperLetters;
extern const std::span<const CodePointRange> kLowerLetters;
extern const std::span<const CodePointRange> kTitleLetters;
extern const std::span<const CodePointRange> kCased;          // after which title() writes small letters
extern const std::span<const CodePointRange> kCaseIgnorable;  // looked through to find a word's final sigma

// Only characters that change.
extern const std::span<const CodePointMapping> kLower;
extern const std::span<const char32_t> kLowerPool;
extern const std::span<const CodePointMapping> kUpper;
extern const std::span<const char32_t> kUpperPool;
extern const std::span<const CodePointMapping> kTitle;
extern const std::span<const char32_t> kTitlePool;

}  // namespace quire::chat
