#include "quire/error.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/character_normalizers.h"
#include "tokenizer/pattern.h"
#include "tokenizer/pipeline.h"
#include "tokenizer/precompiled.h"
#include "tokenizer/unicode_normalization.h"
#include "util/base64.h"
#include "util/str.h"

namespace quire::text {
namespace {

constexpr std::string_view kSupportedNormalizers =
    "NFC, NFD, NFKC, NFKD, Lowercase, StripAccents, Strip, Prepend, Replace, Precompiled, BertNormalizer, "
    "Nmt, ByteLevel, Sequence";

class UnicodeNormalizer final : public Normalizer {
 public:
  explicit UnicodeNormalizer(unicode::NormalizationForm form) : form_(form) {}
  bool is_surely_normalized(std::string_view text) const override {
    return unicode::is_surely_normalized(text, form_);
  }
  std::string normalize(std::string_view text, bool&, Alignment* alignment) const override {
    return unicode::normalize(text, form_, alignment);
  }

 private:
  unicode::NormalizationForm form_;
};

class Prepend final : public Normalizer {
 public:
  explicit Prepend(const JsonNode& section) : prefix_(section.at("prepend").string()) {
    section.allow_only({"type", "prepend"});
  }
  bool is_surely_normalized(std::string_view text) const override { return text.empty(); }
  std::string normalize(std::string_view text, bool&, Alignment* alignment) const override {
    if (text.empty()) return std::string();
    Rewriter out(text, alignment, prefix_.size() + text.size());
    out.put(prefix_, 0, 1);
    out.copy(0, text.size());
    return out.finish();
  }

 private:
  std::string prefix_;
};

class Replace final : public Normalizer {
 public:
  explicit Replace(const JsonNode& section)
      : pattern_(section.at("pattern")), content_(section.at("content").string()) {
    section.allow_only({"type", "pattern", "content"});
  }
  bool is_surely_normalized(std::string_view text) const override { return pattern_.is_surely_absent(text); }
  std::string normalize(std::string_view text, bool& drops_start, Alignment* alignment) const override {
    Rewriter out(text, alignment, text.size() + text.size() / 2);
    RegexScratch scratch;
    size_t first_size = 0;
    if (!text.empty()) decode_utf8(text, first_size);
    pattern_.for_each(text, scratch, [&](size_t begin, size_t end, bool is_match) {
      if (!is_match) return out.copy(begin, end);
      // What takes the place of several characters stands for the last of them, and of none for the last so
      // far.
      if (begin == 0 && end > (content_.empty() ? 0 : first_size)) drops_start = true;
      out.put(content_, end > 0 ? end - 1 : 0, end);
    });
    return out.finish();
  }

 private:
  Pattern pattern_;
  std::string content_;
};

class ByteLevelNormalizer final : public Normalizer {
 public:
  bool is_surely_normalized(std::string_view text) const override { return text.empty(); }
  std::string normalize(std::string_view text, bool&, Alignment* alignment) const override {
    Rewriter out(text, alignment, text.size() + text.size() / 2);
    write_byte_level(text, 0, text.size(), out);
    return out.finish();
  }
};

class Precompiled final : public Normalizer {
 public:
  explicit Precompiled(const JsonNode& section) : map_(read(section.at("precompiled_charsmap"))) {
    section.allow_only({"type", "precompiled_charsmap"});
  }
  bool is_surely_normalized(std::string_view text) const override {
    for (const char c : text) {
      const auto byte = static_cast<unsigned char>(c);
      if (byte >= 0x80 || !map_.is_left_alone(byte)) return false;
    }
    return true;
  }
  std::string normalize(std::string_view text, bool& drops_start, Alignment* alignment) const override {
    return apply_by_clusters(map_, text, drops_start, alignment);
  }

 private:
  static CharacterMap read(const JsonNode& node) {
    const auto bytes = decode_base64(node.string());
    if (!bytes) node.fail("is not valid base64");
    try {
      return CharacterMap(*bytes);
    } catch (const InvalidArgument& error) {
      node.fail(error.what());
    }
  }

  CharacterMap map_;
};

class SequenceNormalizer final : public Normalizer {
 public:
  explicit SequenceNormalizer(std::vector<std::unique_ptr<const Normalizer>> stages)
      : stages_(std::move(stages)) {}
  bool is_surely_normalized(std::string_view text) const override {
    for (const auto& stage : stages_) {
      if (!stage->is_surely_normalized(text)) return false;
    }
    return true;
  }
  std::string normalize(std::string_view text, bool& drops_start, Alignment* alignment) const override {
    std::string normalized(text);
    for (const auto& stage : stages_) {
      if (!stage->is_surely_normalized(normalized))
        normalized = stage->normalize(normalized, drops_start, alignment);
      check_rewritten_bytes(normalized.size(), text.size());
    }
    return normalized;
  }

 private:
  std::vector<std::unique_ptr<const Normalizer>> stages_;
};

std::unique_ptr<const Normalizer> make_one(const JsonNode& section) {
  using unicode::NormalizationForm;
  const std::string& type = section.at("type").string();
  for (const auto& [name, form] : {std::pair{"NFC", NormalizationForm::kNfc},
                                   {"NFD", NormalizationForm::kNfd},
                                   {"NFKC", NormalizationForm::kNfkc},
                                   {"NFKD", NormalizationForm::kNfkd}}) {
    if (type != name) continue;
    section.allow_only({"type"});
    return std::make_unique<UnicodeNormalizer>(form);
  }
  if (type == "Prepend") return std::make_unique<Prepend>(section);
  if (type == "Replace") return std::make_unique<Replace>(section);
  if (type == "Precompiled") return std::make_unique<Precompiled>(section);
  if (type == "ByteLevel") {
    section.allow_only({"type"});
    return std::make_unique<ByteLevelNormalizer>();
  }
  if (auto normalizer = make_character_normalizer(section)) return normalizer;
  fail_unsupported_type(section, kSupportedNormalizers);
}

// Appends the stages of `section`, sequences flattened.
void collect(const JsonNode& section, std::vector<std::unique_ptr<const Normalizer>>& stages) {
  if (section.at("type").string() == "Sequence") {
    section.allow_only({"type", "normalizers"});
    for (const JsonNode& stage : section.at("normalizers").elements()) collect(stage, stages);
    return;
  }
  stages.push_back(make_one(section));
  check_num_stages(section, stages.size());
}

}  // namespace

std::unique_ptr<const Normalizer> make_normalizer(const std::optional<JsonNode>& section) {
  if (!section) return nullptr;
  std::vector<std::unique_ptr<const Normalizer>> stages;
  collect(*section, stages);
  if (stages.empty()) return nullptr;
  if (stages.size() == 1) return std::move(stages[0]);
  return std::make_unique<SequenceNormalizer>(std::move(stages));
}

void check_num_stages(const JsonNode& section, size_t num_stages) {
  if (num_stages > kMaxStages)
    section.fail(str("is stage ", num_stages, " of its kind; at most ", kMaxStages, " are supported"));
}

void fail_unsupported_type(const JsonNode& section, std::string_view supported) {
  const JsonNode type = section.at("type");
  type.fail(str("'", type.string(), "' is not supported; supported: ", supported));
}

}  // namespace quire::text
