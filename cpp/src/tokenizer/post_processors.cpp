#include <map>

#include "tokenizer/pipeline.h"
#include "util/str.h"

namespace quire::text {
namespace {

constexpr std::string_view kSupportedPostProcessors = "TemplateProcessing, ByteLevel, Sequence";

// Puts special tokens around the sequence.
class TemplateProcessing final : public PostProcessor {
 public:
  explicit TemplateProcessing(const JsonNode& section) {
    section.allow_only({"type", "single", "pair", "special_tokens"});
    std::map<std::string, std::vector<int32_t>> special_ids;
    const JsonNode tokens = section.at("special_tokens");
    for (const auto& [name, value] : tokens.object().items()) {
      const JsonNode token = tokens.at(name);
      token.allow_only({"id", "ids", "tokens"});
      for (const JsonNode& id : token.at("ids").elements()) {
        special_ids[name].push_back(static_cast<int32_t>(id.integer(0, INT32_MAX)));
      }
    }
    for (const JsonNode& piece : section.at("single").elements()) {
      piece.allow_only({"Sequence", "SpecialToken"});
      if (const auto sequence = piece.find("Sequence")) {
        if (sequence->at("id").string() != "A") sequence->at("id").fail("must be A in a single template");
        pieces_.push_back({true, {}});
        continue;
      }
      const JsonNode id = piece.at("SpecialToken").at("id");
      const auto known = special_ids.find(id.string());
      if (known == special_ids.end()) id.fail(str("'", id.string(), "' is not among special_tokens"));
      pieces_.push_back({false, known->second});
    }
  }

  void apply(std::vector<int32_t>& ids, bool add_special_tokens) const override {
    std::vector<int32_t> result;
    for (const Piece& piece : pieces_) {
      if (!piece.is_sequence && !add_special_tokens) continue;
      const std::vector<int32_t>& part = piece.is_sequence ? ids : piece.ids;
      result.insert(result.end(), part.begin(), part.end());
    }
    ids = std::move(result);
  }

 private:
  struct Piece {
    bool is_sequence;
    std::vector<int32_t> ids;
  };
  std::vector<Piece> pieces_;
};

class SequencePostProcessor final : public PostProcessor {
 public:
  explicit SequencePostProcessor(const JsonNode& section) {
    section.allow_only({"type", "processors"});
    for (const JsonNode& stage : section.at("processors").elements()) {
      if (auto processor = make_post_processor(stage)) stages_.push_back(std::move(processor));
    }
  }
  void apply(std::vector<int32_t>& ids, bool add_special_tokens) const override {
    for (const auto& stage : stages_) stage->apply(ids, add_special_tokens);
  }

 private:
  std::vector<std::unique_ptr<const PostProcessor>> stages_;
};

}  // namespace

std::unique_ptr<const PostProcessor> make_post_processor(const std::optional<JsonNode>& section) {
  if (!section) return nullptr;
  const std::string& type = section->at("type").string();
  if (type == "TemplateProcessing") return std::make_unique<TemplateProcessing>(*section);
  if (type == "Sequence") return std::make_unique<SequencePostProcessor>(*section);
  if (type != "ByteLevel") fail_unsupported_type(*section, kSupportedPostProcessors);
  section->allow_only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
  return nullptr;  // it moves offsets only
}

}  // namespace quire::text
