#include "tokenizer/unicode_normalization.h"

#include <algorithm>
#include <vector>

#include "tokenizer/unicode.h"

namespace quire::unicode {
namespace {

// Hangul syllables are composed by arithmetic: a leading consonant, a vowel, perhaps a trailing consonant.
constexpr char32_t kSyllables = 0xAC00, kLeads = 0x1100, kVowels = 0x1161, kTrails = 0x11A7;
constexpr char32_t kNumLeads = 19, kNumVowels = 21, kNumTrails = 28;
constexpr char32_t kNumSyllables = kNumLeads * kNumVowels * kNumTrails;

// How many characters of the text went into each one written. Kept for an alignment, and else empty.
using Counts = std::vector<uint32_t>;

bool composes(NormalizationForm form) {
  return form == NormalizationForm::kNfc || form == NormalizationForm::kNfkc;
}

bool is_compatible(NormalizationForm form) {
  return form == NormalizationForm::kNfkc || form == NormalizationForm::kNfkd;
}

uint8_t combining_class(char32_t c) {
  const auto found =
      std::lower_bound(kCombiningClasses.begin(), kCombiningClasses.end(), c,
                       [](const auto& entry, char32_t value) { return entry.code_point < value; });
  return found != kCombiningClasses.end() && found->code_point == c ? found->combining_class : 0;
}

inline void append_decomposed(char32_t c, bool compatible, std::u32string& out) {
  if (c < 0x80) {
    out += c;
  } else if (c - kSyllables < kNumSyllables) {
    const char32_t index = c - kSyllables;
    out += kLeads + index / (kNumVowels * kNumTrails);
    out += kVowels + index / kNumTrails % kNumVowels;
    if (index % kNumTrails != 0) out += kTrails + index % kNumTrails;
  } else {
    std::u32string_view mapped;
    if (compatible) mapped = find_mapping(kCompatibilityDecompositions, kCompatibilityDecompositionsPool, c);
    if (mapped.empty()) mapped = find_mapping(kCanonicalDecompositions, kCanonicalDecompositionsPool, c);
    if (mapped.empty()) mapped = {&c, 1};
    out += mapped;
  }
}

// Sorts each run of marks by combining class; equal classes keep their order.
void order_marks(std::u32string& text, std::vector<uint8_t>& classes, Counts& counts) {
  classes.resize(text.size());
  std::transform(text.begin(), text.end(), classes.begin(), combining_class);
  std::vector<size_t> order;
  std::u32string run;
  Counts run_counts;
  for (size_t start = 0; start < text.size();) {
    size_t end = start;
    while (end < text.size() && classes[end] != 0) ++end;
    if (end - start > 1) {
      order.resize(end - start);
      for (size_t i = 0; i < order.size(); ++i) order[i] = start + i;
      std::stable_sort(order.begin(), order.end(),
                       [&](size_t a, size_t b) { return classes[a] < classes[b]; });
      run.clear();
      for (size_t index : order) run += text[index];
      std::copy(run.begin(), run.end(), text.begin() + static_cast<ptrdiff_t>(start));
      if (!counts.empty()) {
        run_counts.clear();
        for (size_t index : order) run_counts.push_back(counts[index]);
        std::copy(run_counts.begin(), run_counts.end(), counts.begin() + static_cast<ptrdiff_t>(start));
      }
      std::sort(classes.begin() + static_cast<ptrdiff_t>(start),
                classes.begin() + static_cast<ptrdiff_t>(end));
    }
    start = end + 1;
  }
}

// What the two compose to, or 0.
char32_t compose_pair(char32_t first, char32_t second) {
  if (first - kLeads < kNumLeads && second - kVowels < kNumVowels) {
    return kSyllables + ((first - kLeads) * kNumVowels + (second - kVowels)) * kNumTrails;
  }
  if (first - kSyllables < kNumSyllables && (first - kSyllables) % kNumTrails == 0 &&
      second - kTrails - 1 < kNumTrails - 1) {
    return first + (second - kTrails);
  }
  const auto found = std::lower_bound(
      kCompositions.begin(), kCompositions.end(), std::pair(first, second),
      [](const auto& entry, const auto& pair) { return std::pair(entry.first, entry.second) < pair; });
  const bool match = found != kCompositions.end() && found->first == first && found->second == second;
  return match ? found->composed : 0;
}

// Joins each character to the last starter unless one between them, of the same class or a starter, is in
// the way.
void compose(std::u32string& text, std::vector<uint8_t>& classes, Counts& counts) {
  constexpr size_t kNone = SIZE_MAX;
  const bool counts_kept = !counts.empty();
  size_t starter = kNone, size = 0;
  int last_class = -1;  // of what was kept since the starter; -1 when nothing was
  for (size_t i = 0; i < text.size(); ++i) {
    const char32_t c = text[i];
    const int c_class = classes[i];
    if (starter != kNone && last_class < c_class) {
      if (const char32_t composed = compose_pair(text[starter], c)) {
        text[starter] = composed;
        if (counts_kept) counts[starter] += counts[i];
        continue;
      }
    }
    if (c_class == 0) {
      starter = size;
      last_class = -1;
    } else {
      last_class = c_class;
    }
    if (counts_kept) counts[size] = counts[i];
    text[size++] = c;
  }
  text.resize(size);
}

// Characters that every form of this kind leaves alone whatever stands next to them.
CodePointBitmap make_inert(NormalizationForm form) {
  std::vector<CodePointRange> touched;
  const auto touch = [&](char32_t first, char32_t last) { touched.push_back({first, last}); };
  const bool composing = composes(form);
  for (const auto& entry : kCombiningClasses) touch(entry.code_point, entry.code_point);
  for (const auto& entry : kCanonicalDecompositions) {
    // A composed character stays when composing, if its parts do compose again.
    std::u32string text = {entry.code_point}, decomposed;
    append_decomposed(entry.code_point, false, decomposed);
    std::vector<uint8_t> classes;
    Counts counts;
    order_marks(decomposed, classes, counts);
    compose(decomposed, classes, counts);
    if (!composing || decomposed != text) touch(entry.code_point, entry.code_point);
  }
  if (composing) {
    for (const auto& entry : kCompositions) touch(entry.second, entry.second);
    touch(kVowels, kVowels + kNumVowels - 1);
    touch(kTrails, kTrails + kNumTrails - 1);
  } else {
    touch(kSyllables, kSyllables + kNumSyllables - 1);
  }
  if (is_compatible(form)) {
    for (const auto& entry : kCompatibilityDecompositions) touch(entry.code_point, entry.code_point);
  }
  return CodePointBitmap(CodePointSet(touched).complement());
}

const CodePointBitmap& inert(NormalizationForm form) {
  static const CodePointBitmap bitmaps[] = {
      make_inert(NormalizationForm::kNfc), make_inert(NormalizationForm::kNfd),
      make_inert(NormalizationForm::kNfkc), make_inert(NormalizationForm::kNfkd)};
  return bitmaps[static_cast<int>(form)];
}

}  // namespace

bool is_surely_normalized(std::string_view text, NormalizationForm form) {
  return inert(form).skip_members(text, 0) == text.size();
}

std::string normalize(std::string_view text, NormalizationForm form, text::Alignment* alignment) {
  std::u32string characters;
  characters.reserve(text.size());
  Counts counts;
  for (size_t pos = 0; pos < text.size();) {
    append_decomposed(decode_utf8(text, pos), is_compatible(form), characters);
    if (alignment == nullptr) continue;
    counts.push_back(1);
    counts.resize(characters.size(), 0);
  }
  std::vector<uint8_t> classes;
  order_marks(characters, classes, counts);
  if (composes(form)) compose(characters, classes, counts);
  text::Rewriter out(text, alignment, text.size());
  if (alignment == nullptr) {
    for (const char32_t c : characters) out.put(c, 0, 0);
    return out.finish();
  }
  // A character stands for the first of those that went into it; one that none went into, for the last so
  // far.
  size_t end = 0;  // of what went into those written
  for (size_t i = 0; i < characters.size(); ++i) {
    const size_t place = counts[i] > 0 || end == 0 ? end : end - 1;
    out.put(characters[i], place, place + 1);
    for (uint32_t n = 0; n < counts[i]; ++n) decode_utf8(text, end);
  }
  return out.finish();
}

}  // namespace quire::unicode
