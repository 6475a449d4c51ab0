#include "quire/error.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/pattern.h"
#include "tokenizer/pipeline.h"
#include "tokenizer/splitter.h"
#include "tokenizer/unicode.h"
#include "tokenizer/word_pre_tokenizers.h"
#include "util/str.h"

namespace quire::text {
namespace {

constexpr std::string_view kSupportedPreTokenizers =
    "ByteLevel, Split, Digits, Metaspace, Whitespace, WhitespaceSplit, Punctuation, BertPreTokenizer, "
    "CharDelimiterSplit, FixedLength, Sequence";

class Split final : public PreTokenizer {
 public:
  explicit Split(const JsonNode& section)
      : pattern_(section.at("pattern")),
        behavior_(read_behavior(section.at("behavior"))),
        invert_(section.at("invert").boolean()) {
    section.allow_only({"type", "pattern", "behavior", "invert"});
  }
  void apply(PreTokenized& pre_tokenized, EncodeScratch& scratch) const override {
    split_pieces(pre_tokenized, behavior_, [&](std::string_view text, const auto& add) {
      pattern_.for_each(text, scratch.regex, [&](size_t begin, size_t end, bool is_match) {
        add(begin, end, is_match != invert_);
      });
    });
  }

 private:
  Pattern pattern_;
  Behavior behavior_;
  bool invert_;
};

// Cuts numbers out, digit by digit or run by run.
class Digits final : public PreTokenizer {
 public:
  explicit Digits(const JsonNode& section)
      : individual_(section.at("individual_digits").boolean()),
        numeric_(unicode::CodePointSet(unicode::kNumeric)) {
    section.allow_only({"type", "individual_digits"});
  }
  void apply(PreTokenized& pre_tokenized, EncodeScratch&) const override {
    std::vector<PreTokenized::Piece>& out = pre_tokenized.new_pieces;
    out.clear();
    const std::string_view text = pre_tokenized.text;
    for (const PreTokenized::Piece& piece : pre_tokenized.pieces) {
      size_t run = piece.begin;  // where the current run of digits, or of anything else, began
      bool run_is_numeric = false;
      for (size_t pos = piece.begin, next = pos; pos < piece.end; pos = next) {
        const bool is_numeric = numeric_.contains(decode_utf8(text, next));
        if (pos > run && (is_numeric != run_is_numeric || (is_numeric && individual_))) {
          out.push_back({run, pos});
          run = pos;
        }
        run_is_numeric = is_numeric;
      }
      out.push_back({run, piece.end});
    }
    pre_tokenized.pieces.swap(out);
  }

 private:
  bool individual_;
  unicode::CodePointBitmap numeric_;
};

// Marks the way to byte-level tokens. Before a model that takes bytes as they are, the bytes stay; for
// whatever else looks at the text afterwards they are written in their alphabet.
class ByteLevel final : public PreTokenizer {
 public:
  ByteLevel(const JsonNode& section, bool writes_alphabet)
      : regex_(R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"),
        add_prefix_space_(section.at("add_prefix_space").boolean()),
        use_regex_(section.boolean_or("use_regex", true)),
        writes_alphabet_(writes_alphabet) {
    section.boolean_or("trim_offsets", true);  // the post-processor's
    section.allow_only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
  }
  void apply(PreTokenized& pre_tokenized, EncodeScratch& scratch) const override {
    if (add_prefix_space_) {
      rewrite_pieces(pre_tokenized, [](std::string_view text, const auto& piece, Rewriter& out) {
        if (!text.starts_with(' ')) out.put(U' ', piece.begin, piece.begin + 1);
        out.copy(piece.begin, piece.end);
      });
    }
    if (use_regex_) {
      split_pieces(pre_tokenized, Behavior::kIsolated, [&](std::string_view text, const auto& add) {
        Pattern::for_each_match(regex_, text, scratch.regex, add);
      });
    }
    if (writes_alphabet_) {
      const std::string_view source = pre_tokenized.text;
      rewrite_pieces(pre_tokenized, [&](std::string_view, const auto& piece, Rewriter& out) {
        write_byte_level(source, piece.begin, piece.end, out);
      });
    }
  }

 private:
  Regex regex_;
  bool add_prefix_space_;
  bool use_regex_;
  bool writes_alphabet_;
};

class Sequence final : public PreTokenizer {
 public:
  explicit Sequence(std::vector<std::unique_ptr<const PreTokenizer>> stages) : stages_(std::move(stages)) {}
  void apply(PreTokenized& pre_tokenized, EncodeScratch& scratch) const override {
    for (const auto& stage : stages_) stage->apply(pre_tokenized, scratch);
  }

 private:
  std::vector<std::unique_ptr<const PreTokenizer>> stages_;
};

// Appends the sections of the stages, sequences flattened.
void collect(const JsonNode& section, std::vector<JsonNode>& stages) {
  if (section.at("type").string() == "Sequence") {
    section.allow_only({"type", "pretokenizers"});
    for (const JsonNode& stage : section.at("pretokenizers").elements()) collect(stage, stages);
    return;
  }
  check_num_stages(section, stages.size() + 1);
  stages.push_back(section);
}

std::unique_ptr<const PreTokenizer> make_stage(const JsonNode& section, bool keeps_bytes) {
  const std::string& type = section.at("type").string();
  if (type == "Split") return std::make_unique<Split>(section);
  if (type == "Digits") return std::make_unique<Digits>(section);
  if (type == "ByteLevel") return std::make_unique<ByteLevel>(section, !keeps_bytes);
  if (auto stage = make_word_pre_tokenizer(section)) return stage;
  fail_unsupported_type(section, kSupportedPreTokenizers);
}

}  // namespace

std::unique_ptr<const PreTokenizer> make_pre_tokenizer(const std::optional<JsonNode>& section,
                                                       bool model_can_take_bytes, bool& gives_bytes) {
  std::vector<JsonNode> sections;
  if (section) collect(*section, sections);
  gives_bytes =
      model_can_take_bytes && !sections.empty() && sections.back().at("type").string() == "ByteLevel";
  std::vector<std::unique_ptr<const PreTokenizer>> stages;
  for (size_t i = 0; i < sections.size(); ++i) {
    stages.push_back(make_stage(sections[i], gives_bytes && i + 1 == sections.size()));
  }
  if (stages.empty()) return nullptr;
  if (stages.size() == 1) return std::move(stages[0]);
  return std::make_unique<Sequence>(std::move(stages));
}

}  // namespace quire::text
