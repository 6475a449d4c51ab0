#include "tokenizer/word_pre_tokenizers.h"

#include "quire/error.h"
#include "tokenizer/prepend_scheme.h"
#include "tokenizer/splitter.h"
#include "tokenizer/unicode.h"
#include "util/str.h"

namespace quire::text {
namespace {

using unicode::CodePointBitmap;
using unicode::CodePointSet;

// Writes spaces as a visible character, with one at the front, and lets each word begin with it.
class Metaspace final : public PreTokenizer {
 public:
  explicit Metaspace(const JsonNode& section)
      : replacement_(read_metaspace_replacement(section)),
        scheme_(read_prepend_scheme(section)),
        split_(section.boolean_or("split", true)) {
    section.allow_only({"type", "replacement", "add_prefix_space", "prepend_scheme", "split", "str_rep"});
  }
  void apply(PreTokenized& pre_tokenized, EncodeScratch&) const override {
    rewrite_pieces(
        pre_tokenized, [&](std::string_view text, const PreTokenized::Piece& piece, Rewriter& out) {
          const bool begins_text = piece.begin == 0 && pre_tokenized.begins_text;
          const bool prepends =
              scheme_ == PrependScheme::kAlways || (scheme_ == PrependScheme::kFirst && begins_text);
          if (prepends && !text.starts_with(replacement_) && !text.starts_with(' '))
            out.put(replacement_, piece.begin, piece.begin + 1);
          for (size_t done = 0; done < text.size();) {
            const size_t space = std::min(text.find(' ', done), text.size());
            out.copy(piece.begin + done, piece.begin + space);
            if (space < text.size()) out.put(replacement_, piece.begin + space, piece.begin + space + 1);
            done = space + 1;
          }
        });
    if (!split_) return;
    split_pieces(pre_tokenized, Behavior::kMergedWithNext, [&](std::string_view text, const auto& add) {
      size_t done = 0;
      for (size_t found; (found = text.find(replacement_, done)) != text.npos;) {
        if (found > done) add(done, found, false);
        done = found + replacement_.size();
        add(found, done, true);
      }
      if (done < text.size()) add(done, text.size(), false);
    });
  }

 private:
  std::string replacement_;
  PrependScheme scheme_;
  bool split_;
};

// Cuts at single characters of a set.
class CutAtMembers final : public PreTokenizer {
 public:
  CutAtMembers(CodePointSet set, Behavior behavior) : set_(set), behavior_(behavior) {}
  void apply(PreTokenized& pre_tokenized, EncodeScratch&) const override {
    split_pieces(pre_tokenized, behavior_, [&](std::string_view text, const auto& add) {
      size_t done = 0;
      for (size_t pos = 0, next = 0; pos < text.size(); pos = next) {
        if (!set_.contains(decode_utf8(text, next))) continue;
        if (done < pos) add(done, pos, false);
        add(pos, next, true);
        done = next;
      }
      if (done < text.size()) add(done, text.size(), false);
    });
  }

 private:
  CodePointBitmap set_;
  Behavior behavior_;
};

class InTurn final : public PreTokenizer {
 public:
  InTurn(CutAtMembers first, CutAtMembers second) : first_(std::move(first)), second_(std::move(second)) {}
  void apply(PreTokenized& pre_tokenized, EncodeScratch& scratch) const override {
    first_.apply(pre_tokenized, scratch);
    second_.apply(pre_tokenized, scratch);
  }

 private:
  CutAtMembers first_;
  CutAtMembers second_;
};

// Runs of word characters, and runs of what is neither that nor a space.
class Whitespace final : public PreTokenizer {
 public:
  Whitespace()
      : word_(CodePointSet(unicode::kWhitespaceWord)), space_(CodePointSet(unicode::kAddedTokenSpace)) {}
  void apply(PreTokenized& pre_tokenized, EncodeScratch&) const override {
    split_pieces(pre_tokenized, Behavior::kIsolated, [&](std::string_view text, const auto& add) {
      enum class Class { kSpace, kWord, kOther };
      size_t run = 0;
      Class run_class = Class::kSpace;
      for (size_t pos = 0, next = 0; pos < text.size(); pos = next) {
        const char32_t c = decode_utf8(text, next);
        const Class its = word_.contains(c)    ? Class::kWord
                          : space_.contains(c) ? Class::kSpace
                                               : Class::kOther;
        if (its == run_class) continue;
        if (run_class != Class::kSpace) add(run, pos, true);
        run = pos;
        run_class = its;
      }
      if (run_class != Class::kSpace) add(run, text.size(), true);
    });
  }

 private:
  CodePointBitmap word_;
  CodePointBitmap space_;
};

class FixedLength final : public PreTokenizer {
 public:
  explicit FixedLength(const JsonNode& section)
      : length_(static_cast<size_t>(section.at("length").integer(1, INT32_MAX))) {
    section.allow_only({"type", "length"});
  }
  void apply(PreTokenized& pre_tokenized, EncodeScratch&) const override {
    split_pieces(pre_tokenized, Behavior::kIsolated, [&](std::string_view text, const auto& add) {
      for (size_t begin = 0, end = 0; begin < text.size(); begin = end) {
        for (size_t n = 0; n < length_ && end < text.size(); ++n) decode_utf8(text, end);
        add(begin, end, true);
      }
    });
  }

 private:
  size_t length_;  // characters
};

CodePointSet spaces() { return CodePointSet(unicode::kAddedTokenSpace); }

}  // namespace

Behavior read_behavior(const JsonNode& node) {
  static constexpr std::pair<std::string_view, Behavior> kNames[] = {
      {"Isolated", Behavior::kIsolated},
      {"Removed", Behavior::kRemoved},
      {"MergedWithPrevious", Behavior::kMergedWithPrevious},
      {"MergedWithNext", Behavior::kMergedWithNext},
      {"Contiguous", Behavior::kContiguous}};
  for (const auto& [name, behavior] : kNames) {
    if (node.string() == name) return behavior;
  }
  node.fail(str("'", node.string(),
                "' is not supported; supported: Isolated, Removed, MergedWithPrevious, MergedWithNext, "
                "Contiguous"));
}

PrependScheme read_prepend_scheme(const JsonNode& section) {
  // Files from before there were schemes say only whether there is a space at the front.
  const bool adds = section.boolean_or("add_prefix_space", true);
  const auto scheme = section.find("prepend_scheme");
  if (!scheme) return adds ? PrependScheme::kAlways : PrependScheme::kNever;
  if (scheme->string() == "always") return PrependScheme::kAlways;
  if (scheme->string() == "first") return PrependScheme::kFirst;
  if (scheme->string() == "never") return PrependScheme::kNever;
  scheme->fail(str("'", scheme->string(), "' is not supported; supported: always, first, never"));
}

std::string read_one_character(const JsonNode& node) {
  const std::string& text = node.string();
  size_t end = 0;
  if (!text.empty()) decode_utf8(text, end);
  if (text.empty() || end != text.size()) node.fail(str("must be one character, got '", text, "'"));
  return text;
}

std::string read_metaspace_replacement(const JsonNode& section) {
  return read_one_character(section.at("replacement"));
}

std::unique_ptr<const PreTokenizer> make_word_pre_tokenizer(const JsonNode& section) {
  const std::string& type = section.at("type").string();
  if (type == "Metaspace") return std::make_unique<Metaspace>(section);
  if (type == "FixedLength") return std::make_unique<FixedLength>(section);
  if (type == "CharDelimiterSplit") {
    section.allow_only({"type", "delimiter"});
    const std::string delimiter = read_one_character(section.at("delimiter"));
    size_t pos = 0;
    return std::make_unique<CutAtMembers>(CodePointSet::of(decode_utf8(delimiter, pos)), Behavior::kRemoved);
  }
  if (type == "Punctuation") {
    section.allow_only({"type", "behavior"});
    const auto behavior = section.find("behavior");
    return std::make_unique<CutAtMembers>(CodePointSet(unicode::kPunctuation),
                                          behavior ? read_behavior(*behavior) : Behavior::kIsolated);
  }
  if (type != "Whitespace" && type != "WhitespaceSplit" && type != "BertPreTokenizer") return nullptr;
  section.allow_only({"type"});
  if (type == "Whitespace") return std::make_unique<Whitespace>();
  CutAtMembers at_spaces(spaces(), Behavior::kRemoved);
  if (type == "WhitespaceSplit") return std::make_unique<CutAtMembers>(std::move(at_spaces));
  return std::make_unique<InTurn>(std::move(at_spaces),
                                  CutAtMembers(CodePointSet(unicode::kPunctuation), Behavior::kIsolated));
}

}  // namespace quire::text
