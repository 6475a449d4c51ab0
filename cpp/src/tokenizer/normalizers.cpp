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
  explicit SequenceNormalizer(std::vector<std::unique_ptr<const Normalizer>> stages)
      : stages_(std::move(stages)) {}
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
