#include "quire/error.h"
#include "tokenizer/pipeline.h"
#include "tokenizer/unicode_normalization.h"
#include "util/str.h"

namespace quire::text {
namespace {

constexpr std::string_view kSupportedNormalizers = "NFC, NFD, NFKC, NFKD, Sequence";

class UnicodeNormalizer final : public Normalizer {
 public:
  explicit UnicodeNormalizer(unicode::NormalizationForm form) : form_(form) {}
  bool is_surely_normalized(std::string_view text) const override {
    return unicode::is_surely_normalized(text, form_);
  }
  std::string normalize(std::string_view text) const override { return unicode::normalize(text, form_); }

 private:
  unicode::NormalizationForm form_;
};

class SequenceNormalizer final : public Normalizer {
 public:
  explicit SequenceNormalizer(const JsonNode& section) {
    section.allow_only({"type", "normalizers"});
    for (const JsonNode& stage : section.at("normalizers").elements())
      stages_.push_back(make_normalizer(stage));
  }
  bool is_surely_normalized(std::string_view text) const override {
    for (const auto& stage : stages_) {
      if (!stage->is_surely_normalized(text)) return false;
    }
    return true;
  }
  std::string normalize(std::string_view text) const override {
    std::string normalized(text);
    for (const auto& stage : stages_) normalized = stage->normalize(normalized);
    return normalized;
  }

 private:
  std::vector<std::unique_ptr<const Normalizer>> stages_;
};

}  // namespace

std::unique_ptr<const Normalizer> make_normalizer(const std::optional<JsonNode>& section) {
  using unicode::NormalizationForm;
  if (!section) return nullptr;
  const std::string& type = section->at("type").string();
  if (type == "Sequence") return std::make_unique<SequenceNormalizer>(*section);
  for (const auto& [name, form] : {std::pair{"NFC", NormalizationForm::kNfc},
                                   {"NFD", NormalizationForm::kNfd},
                                   {"NFKC", NormalizationForm::kNfkc},
                                   {"NFKD", NormalizationForm::kNfkd}}) {
    if (type != name) continue;
    section->allow_only({"type"});
    return std::make_unique<UnicodeNormalizer>(form);
  }
  fail_unsupported_type(*section, kSupportedNormalizers);
}

void fail_unsupported_type(const JsonNode& section, std::string_view supported) {
  const JsonNode type = section.at("type");
  type.fail(str("'", type.string(), "' is not supported; supported: ", supported));
}

}  // namespace quire::text
