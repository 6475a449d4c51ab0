#include <algorithm>

#include "quire/error.h"
#include "tokenizer/byte_fallback.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/pattern.h"
#include "tokenizer/pipeline.h"
#include "tokenizer/prepend_scheme.h"
#include "util/replace_all.h"
#include "util/str.h"
#include "util/utf8.h"

namespace quire::text {
namespace {

constexpr std::string_view kSupportedDecoders =
    "ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace, WordPiece, BPEDecoder, CTC, Sequence";

class ByteLevelDecoder final : public Decoder {
 public:
  explicit ByteLevelDecoder(const JsonNode& section) {
    section.allow_only({"type", "add_prefix_space", "trim_offsets", "use_regex"});  // none matters here
  }
  // A token that is not written in the alphabet (an added token with a space, say) stands for itself.
  std::string token_bytes(std::string_view token) const override {
    return from_byte_level(token).value_or(std::string(token));
  }
};

// What `tokenizers` does without a decoder.
class PlainDecoder final : public Decoder {
 public:
  std::string token_bytes(std::string_view token) const override { return std::string(token); }
  std::string_view separator() const override { return " "; }
};

// Takes out the spaces that English does not have in front of punctuation and contractions.
std::string clean_up(std::string token) {
  for (const auto& [written, meant] : {std::pair<std::string_view, std::string_view>{" .", "."},
                                       {" ?", "?"},
                                       {" !", "!"},
                                       {" ,", ","},
                                       {" ' ", "'"},
                                       {" n't", "n't"},
                                       {" 'm", "'m"},
                                       {" do not", " don't"},
                                       {" 's", "'s"},
                                       {" 've", "'ve"},
                                       {" 're", "'re"}}) {
    token = replace_all(token, written, meant);
  }
  return token;
}

// Of models that give a token for each moment (connectionist temporal classification): a token goes on for
// as long as it is repeated, and the padding token, which stands for nothing, parts two that are the same.
class CtcDecoder final : public Decoder {
 public:
  explicit CtcDecoder(const JsonNode& section)
      : pad_token_(section.at("pad_token").string()),
        word_delimiter_(section.at("word_delimiter_token").string()),
        cleans_up_(section.at("cleanup").boolean()) {
    section.allow_only({"type", "pad_token", "word_delimiter_token", "cleanup"});
    if (word_delimiter_.empty()) section.at("word_delimiter_token").fail("is empty, which is not supported");
  }
  std::string token_bytes(std::string_view token) const override {
    std::string bytes = replace_all(token, pad_token_, "");
    return cleans_up_ ? replace_all(clean_up(std::move(bytes)), word_delimiter_, " ") : bytes;
  }
  bool merges_repeats() const override { return true; }

 private:
  std::string pad_token_;
  std::string word_delimiter_;
  bool cleans_up_;
};

// One stage that turns each token into another.
class TokenStage {
 public:
  virtual ~TokenStage() = default;
  virtual std::string apply(std::string token, bool is_first, bool is_last) const = 0;
  virtual bool minds_first() const { return false; }
  virtual bool minds_last() const { return false; }
};

class ReplaceStage final : public TokenStage {
 public:
  explicit ReplaceStage(const JsonNode& section)
      : pattern_(section.at("pattern")), content_(section.at("content").string()) {
    section.allow_only({"type", "pattern", "content"});
  }
  std::string apply(std::string token, bool, bool) const override {
    std::string out;
    RegexScratch scratch;
    pattern_.for_each(token, scratch, [&](size_t begin, size_t end, bool is_match) {
      out += is_match ? std::string_view(content_) : std::string_view(token).substr(begin, end - begin);
    });
    return out;
  }

 private:
  Pattern pattern_;
  std::string content_;
};

class StripStage final : public TokenStage {
 public:
  explicit StripStage(const JsonNode& section)
      : character_(read_one_character(section.at("content"))),
        start_(static_cast<size_t>(section.at("start").integer(0, INT32_MAX))),
        stop_(static_cast<size_t>(section.at("stop").integer(0, INT32_MAX))) {
    section.allow_only({"type", "content", "start", "stop"});
  }
  std::string apply(std::string token, bool, bool) const override {
    std::string_view kept = token;
    for (size_t i = 0; i < start_ && kept.starts_with(character_); ++i) kept.remove_prefix(character_.size());
    for (size_t i = 0; i < stop_ && kept.ends_with(character_); ++i) kept.remove_suffix(character_.size());
    return std::string(kept);
  }
  const std::string& character() const { return character_; }
  size_t start() const { return start_; }
  size_t stop() const { return stop_; }

 private:
  std::string character_;
  size_t start_;
  size_t stop_;
};

class MetaspaceStage final : public TokenStage {
 public:
  explicit MetaspaceStage(const JsonNode& section)
      : replacement_(read_metaspace_replacement(section)), scheme_(read_prepend_scheme(section)) {
    section.allow_only({"type", "replacement", "add_prefix_space", "prepend_scheme", "split", "str_rep"});
  }
  std::string apply(std::string token, bool is_first, bool) const override {
    return replace_all(token, replacement_, is_first && minds_first() ? "" : " ");
  }
  bool minds_first() const override { return scheme_ != PrependScheme::kNever; }

 private:
  std::string replacement_;
  PrependScheme scheme_;
};

class WordPieceStage final : public TokenStage {
 public:
  explicit WordPieceStage(const JsonNode& section)
      : prefix_(section.at("prefix").string()), cleans_up_(section.at("cleanup").boolean()) {
    section.allow_only({"type", "prefix", "cleanup"});
  }
  std::string apply(std::string token, bool is_first, bool) const override {
    if (!is_first) token = token.starts_with(prefix_) ? token.substr(prefix_.size()) : " " + token;
    return cleans_up_ ? clean_up(std::move(token)) : token;
  }
  bool minds_first() const override { return true; }

 private:
  std::string prefix_;
  bool cleans_up_;
};

class BpeSuffixStage final : public TokenStage {
 public:
  explicit BpeSuffixStage(const JsonNode& section) : suffix_(section.at("suffix").string()) {
    section.allow_only({"type", "suffix"});
    if (suffix_.empty()) section.at("suffix").fail("is empty, which is not supported");
  }
  std::string apply(std::string token, bool, bool is_last) const override {
    return replace_all(token, suffix_, is_last ? "" : " ");
  }
  bool minds_last() const override { return true; }

 private:
  std::string suffix_;
};

// Stages for tokens one by one, perhaps ByteFallback among them, perhaps Fuse behind them, and behind that
// perhaps a Strip at the start of the text: whatever can be told as the tokens arrive.
class StagedDecoder final : public Decoder {
 public:
  void add(const JsonNode& section) {
    const std::string& type = section.at("type").string();
    if (type == "Fuse") {
      section.allow_only({"type"});
      is_fused_ = true;
      return;
    }
    if (is_fused_) return add_behind_fuse(section, type);
    if (type == "ByteFallback") {
      section.allow_only({"type"});
      if (has_byte_fallback_) section.fail("is a second ByteFallback, which is not supported");
      has_byte_fallback_ = true;
      return;
    }
    std::unique_ptr<const TokenStage> stage = make_stage(section, type);
    minds_first_ |= stage->minds_first();
    minds_last_ |= stage->minds_last();
    (has_byte_fallback_ ? behind_bytes_ : before_bytes_).push_back(std::move(stage));
  }

  std::string token_bytes(std::string_view token) const override {
    std::string written = run(before_bytes_, std::string(token), false, false);
    if (const auto byte = has_byte_fallback_ ? byte_of_token(written) : std::nullopt)
      return std::string(1, static_cast<char>(*byte));
    return run(behind_bytes_, std::move(written), false, false);
  }
  bool has_other_ends() const override { return minds_first_ || minds_last_; }
  std::string end_bytes(std::string_view token, bool is_first, bool is_last) const override {
    return run(behind_bytes_, run(before_bytes_, std::string(token), is_first, is_last), is_first, is_last);
  }
  bool needs_last() const override { return minds_last_; }
  bool is_byte_token(std::string_view token) const override {
    return has_byte_fallback_ && byte_of_token(run(before_bytes_, std::string(token), false, false));
  }
  std::string run_text(std::string text, bool is_first) const override {
    return run(behind_bytes_, std::move(text), is_first, false);
  }
  std::string_view cut_character() const override {
    return strip_ ? strip_->character() : std::string_view();
  }
  size_t start_cut() const override { return strip_ ? strip_->start() : 0; }

 private:
  using Stages = std::vector<std::unique_ptr<const TokenStage>>;

  static std::string run(const Stages& stages, std::string token, bool is_first, bool is_last) {
    // Of all tokens of a vocabulary, so that replacements of replacements could fill the memory.
    const size_t most = 1024 + 16 * token.size();
    for (const auto& stage : stages) {
      token = stage->apply(std::move(token), is_first, is_last);
      if (token.size() > most)
        throw InvalidArgument(str("the decoder makes a token longer than ", most, " bytes"));
    }
    return token;
  }

  static std::unique_ptr<const TokenStage> make_stage(const JsonNode& section, const std::string& type) {
    if (type == "Replace") return std::make_unique<ReplaceStage>(section);
    if (type == "Strip") return std::make_unique<StripStage>(section);
    if (type == "Metaspace") return std::make_unique<MetaspaceStage>(section);
    if (type == "WordPiece") return std::make_unique<WordPieceStage>(section);
    if (type == "BPEDecoder") return std::make_unique<BpeSuffixStage>(section);
    if (type == "ByteLevel" || type == "CTC")
      section.fail(str("beside other decoders is not supported; ", type, " alone is"));
    fail_unsupported_type(section, kSupportedDecoders);
  }

  void add_behind_fuse(const JsonNode& section, const std::string& type) {
    if (type != "Strip" || strip_) {
      section.fail(str("is a ", type, " behind Fuse; one Strip there is supported, and nothing else"));
    }
    strip_ = std::make_unique<StripStage>(section);
    if (strip_->stop() > 0) {
      section.at("stop").fail(
          str("is ", strip_->stop(), " behind Fuse, which is not supported; set it to 0"));
    }
  }

  Stages before_bytes_;
  Stages behind_bytes_;
  std::unique_ptr<const StripStage> strip_;
  bool has_byte_fallback_ = false;
  bool is_fused_ = false;
  bool minds_first_ = false;
  bool minds_last_ = false;
};

// Appends the sections of the stages, sequences flattened.
void collect(const JsonNode& section, std::vector<JsonNode>& stages) {
  if (section.at("type").string() == "Sequence") {
    section.allow_only({"type", "decoders"});
    for (const JsonNode& stage : section.at("decoders").elements()) collect(stage, stages);
    return;
  }
  check_num_stages(section, stages.size() + 1);
  stages.push_back(section);
}

}  // namespace

std::unique_ptr<const Decoder> make_decoder(const std::optional<JsonNode>& section) {
  if (!section) return std::make_unique<PlainDecoder>();
  std::vector<JsonNode> stages;
  collect(*section, stages);
  if (stages.size() == 1 && stages[0].at("type").string() == "ByteLevel")
    return std::make_unique<ByteLevelDecoder>(stages[0]);
  if (stages.size() == 1 && stages[0].at("type").string() == "CTC")
    return std::make_unique<CtcDecoder>(stages[0]);
  auto decoder = std::make_unique<StagedDecoder>();
  for (const JsonNode& stage : stages) decoder->add(stage);
  return decoder;
}

}  // namespace quire::text
