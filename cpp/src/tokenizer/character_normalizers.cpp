#include "tokenizer/character_normalizers.h"

#include "tokenizer/unicode.h"
#include "tokenizer/unicode_normalization.h"

namespace quire::text {
namespace {

using unicode::CodePointBitmap;
using unicode::CodePointSet;

CodePointSet lowered() {
  std::vector<CodePointRange> ranges;
  for (const auto& entry : unicode::kLowercase) ranges.push_back({entry.code_point, entry.code_point});
  return CodePointSet(ranges);
}

class Lowercase final : public Normalizer {
 public:
  bool is_surely_normalized(std::string_view text) const override {
    return lower_.skip_members(text, 0) == text.size();
  }
  std::string normalize(std::string_view text, bool&, Alignment* alignment) const override {
    Rewriter out(text, alignment, text.size());
    for (size_t pos = 0; pos < text.size();) {
      const size_t begin = lower_.skip_members(text, pos);
      out.copy(pos, begin);
      if ((pos = begin) == text.size()) break;
      const char32_t c = decode_utf8(text, pos);
      if (c < 0x80) {
        out.put(c + (U'a' - U'A'), begin, pos);
      } else {
        for (const char32_t lower : find_mapping(unicode::kLowercase, unicode::kLowercasePool, c))
          out.put(lower, begin, pos);
      }
    }
    return out.finish();
  }

 private:
  CodePointBitmap lower_{lowered().complement()};
};

// Drops some characters, makes spaces of others, and sets spaces around others still.
class EditCharacters final : public Normalizer {
 public:
  EditCharacters(CodePointSet dropped, CodePointSet spaces, CodePointSet set_apart)
      : dropped_(dropped),
        spaces_(spaces),
        set_apart_(set_apart),
        left_alone_(dropped.united_with(spaces).united_with(set_apart).complement()) {}
  bool is_surely_normalized(std::string_view text) const override {
    return left_alone_.skip_members(text, 0) == text.size();
  }
  std::string normalize(std::string_view text, bool& drops_start, Alignment* alignment) const override {
    Rewriter out(text, alignment, text.size());
    for (size_t pos = 0; pos < text.size();) {
      const size_t begin = left_alone_.skip_members(text, pos);
      out.copy(pos, begin);
      if ((pos = begin) == text.size()) break;
      const char32_t c = decode_utf8(text, pos);
      if (dropped_.contains(c)) {
        if (begin == 0) drops_start = true;
      } else if (spaces_.contains(c)) {
        out.put(U' ', begin, pos);
      } else {
        out.put(U' ', begin, pos);
        out.copy(begin, pos);
        out.put(U' ', begin, pos);
      }
    }
    return out.finish();
  }

 private:
  CodePointBitmap dropped_;
  CodePointBitmap spaces_;
  CodePointBitmap set_apart_;
  CodePointBitmap left_alone_;
};

std::unique_ptr<const Normalizer> make_dropping(std::span<const CodePointRange> dropped) {
  return std::make_unique<EditCharacters>(CodePointSet(dropped), CodePointSet(), CodePointSet());
}

class Strip final : public Normalizer {
 public:
  explicit Strip(const JsonNode& section)
      : left_(section.at("strip_left").boolean()), right_(section.at("strip_right").boolean()) {
    section.allow_only({"type", "strip_left", "strip_right"});
  }
  bool is_surely_normalized(std::string_view text) const override { return stripped(text) == text; }
  std::string normalize(std::string_view text, bool& drops_start, Alignment* alignment) const override {
    const std::string_view kept = stripped(text);
    if (kept.data() != text.data()) drops_start = true;
    const auto begin = static_cast<size_t>(kept.data() - text.data());
    Rewriter out(text, alignment, kept.size());
    out.copy(begin, begin + kept.size());
    return out.finish();
  }

 private:
  std::string_view stripped(std::string_view text) const {
    if (left_) text.remove_prefix(space_.skip_members(text, 0));
    while (right_ && !text.empty()) {
      const size_t last = previous_utf8(text, text.size());
      size_t pos = last;
      if (!space_.contains(decode_utf8(text, pos))) break;
      text = text.substr(0, last);
    }
    return text;
  }

  CodePointBitmap space_{CodePointSet(unicode::kAddedTokenSpace)};
  bool left_;
  bool right_;
};

// Blocks of characters that BERT takes for words each.
constexpr CodePointRange kBertWords[] = {{0x4E00, 0x9FFF},   {0x3400, 0x4DBF},   {0x20000, 0x2A6DF},
                                         {0x2A700, 0x2B73F}, {0x2B740, 0x2B81F}, {0x2B920, 0x2CEAF},
                                         {0xF900, 0xFAFF},   {0x2F800, 0x2FA1F}};

class BertNormalizer final : public Normalizer {
 public:
  explicit BertNormalizer(const JsonNode& section) {
    section.allow_only({"type", "clean_text", "handle_chinese_chars", "strip_accents", "lowercase"});
    const bool lowercase = section.at("lowercase").boolean();
    if (section.at("clean_text").boolean()) {
      stages_.push_back(std::make_unique<EditCharacters>(CodePointSet(unicode::kBertRemoved),
                                                         CodePointSet(unicode::kBertSpace), CodePointSet()));
    }
    if (section.at("handle_chinese_chars").boolean()) {
      stages_.push_back(std::make_unique<EditCharacters>(CodePointSet(), CodePointSet(),
                                                         CodePointSet(std::span(kBertWords))));
    }
    strip_accents_ = section.boolean_or("strip_accents", lowercase);
    if (strip_accents_) after_nfd_.push_back(make_dropping(unicode::kNonspacingMarks));
    if (lowercase) after_nfd_.push_back(std::make_unique<Lowercase>());
  }
  bool is_surely_normalized(std::string_view text) const override {
    const auto leaves_alone = [&](const auto& stage) { return stage->is_surely_normalized(text); };
    return std::ranges::all_of(stages_, leaves_alone) &&
           (!strip_accents_ || unicode::is_surely_normalized(text, kNfd)) &&
           std::ranges::all_of(after_nfd_, leaves_alone);
  }
  std::string normalize(std::string_view text, bool& drops_start, Alignment* alignment) const override {
    std::string out(text);
    const auto run = [&](const auto& stage) {
      if (!stage->is_surely_normalized(out)) out = stage->normalize(out, drops_start, alignment);
    };
    std::ranges::for_each(stages_, run);
    if (strip_accents_ && !unicode::is_surely_normalized(out, kNfd))
      out = unicode::normalize(out, kNfd, alignment);
    std::ranges::for_each(after_nfd_, run);
    return out;
  }

 private:
  static constexpr auto kNfd = unicode::NormalizationForm::kNfd;

  std::vector<std::unique_ptr<const Normalizer>> stages_;
  bool strip_accents_ = false;
  std::vector<std::unique_ptr<const Normalizer>> after_nfd_;
};

}  // namespace

std::unique_ptr<const Normalizer> make_character_normalizer(const JsonNode& section) {
  const std::string& type = section.at("type").string();
  if (type == "BertNormalizer") return std::make_unique<BertNormalizer>(section);
  if (type == "Strip") return std::make_unique<Strip>(section);
  if (type != "Lowercase" && type != "StripAccents" && type != "Nmt") return nullptr;
  section.allow_only({"type"});
  if (type == "Lowercase") return std::make_unique<Lowercase>();
  if (type == "StripAccents") return make_dropping(unicode::kCombiningMarks);
  return std::make_unique<EditCharacters>(CodePointSet(unicode::kNmtRemoved),
                                          CodePointSet(unicode::kNmtSpace), CodePointSet());
}

}  // namespace quire::text
