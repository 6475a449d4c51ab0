#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "tokenizer/pipeline.h"
#include "util/str.h"

namespace quire::text {
namespace {

constexpr std::string_view kSupportedPostProcessors =
    "TemplateProcessing, BertProcessing, RobertaProcessing, ByteLevel, Sequence";

// Special tokens around a text.
constexpr size_t kMaxTemplateIds = 1024;

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
    bool has_sequence = false;
    size_t num_ids = 0;
    for (const JsonNode& piece : section.at("single").elements()) {
      piece.allow_only({"Sequence", "SpecialToken"});
      if (const auto sequence = piece.find("Sequence")) {
        if (sequence->at("id").string() != "A") sequence->at("id").fail("must be A in a single template");
        if (std::exchange(has_sequence, true))
          sequence->fail("is the text a second time, which is not supported");
        pieces_.push_back({true, {}});
        continue;
      }
      const JsonNode id = piece.at("SpecialToken").at("id");
      const auto known = special_ids.find(id.string());
      if (known == special_ids.end()) id.fail(str("'", id.string(), "' is not among special_tokens"));
      num_ids += known->second.size();
      if (num_ids > kMaxTemplateIds)
        id.fail(
            str("brings the special tokens to ", num_ids, "; at most ", kMaxTemplateIds, " are supported"));
      pieces_.push_back({false, known->second});
    }
  }

  void apply(std::vector<int32_t>& ids, bool add_special_tokens, TokenOffsets* offsets) const override {
    std::vector<int32_t> result;
    bool has_text = false;
    size_t num_in_front = 0, num_behind = 0;
    for (const Piece& piece : pieces_) {
      if (!piece.is_sequence && !add_special_tokens) continue;
      const std::vector<int32_t>& part = piece.is_sequence ? ids : piece.ids;
      if (piece.is_sequence) {
        has_text = true;
      } else {
        (has_text ? num_behind : num_in_front) += part.size();
      }
      result.insert(result.end(), part.begin(), part.end());
    }
    ids = std::move(result);
    if (offsets == nullptr) return;
    if (!has_text) offsets->clear();
    offsets->enclose(num_in_front, num_behind);
  }

 private:
  struct Piece {
    bool is_sequence;
    std::vector<int32_t> ids;
  };
  std::vector<Piece> pieces_;
};

// Takes white space off offsets, and leaves ids alone.
class Trimming final : public PostProcessor {
 public:
  explicit Trimming(const JsonNode& section)
      : trims_(section.boolean_or("trim_offsets", true)),
        keeps_prefix_space_(section.boolean_or("add_prefix_space", true)) {}
  void apply(std::vector<int32_t>&, bool, TokenOffsets* offsets) const override {
    if (trims_ && offsets != nullptr) offsets->trim(keeps_prefix_space_);
  }
  bool trims_offsets() const override { return trims_; }

 private:
  bool trims_;
  bool keeps_prefix_space_;
};

// A token before the text and one after it, as BERT and RoBERTa have them.
class Enclosing final : public PostProcessor {
 public:
  explicit Enclosing(const JsonNode& section)
      : first_(read(section.at("cls"))), last_(read(section.at("sep"))) {
    if (section.at("type").string() == "RobertaProcessing") trimming_.emplace(section);
    section.allow_only({"type", "sep", "cls", "trim_offsets", "add_prefix_space"});
  }
  void apply(std::vector<int32_t>& ids, bool add_special_tokens, TokenOffsets* offsets) const override {
    if (trimming_) trimming_->apply(ids, add_special_tokens, offsets);
    if (!add_special_tokens) return;
    if (offsets != nullptr) offsets->enclose(1, 1);
    ids.insert(ids.begin(), first_);
    ids.push_back(last_);
  }
  bool trims_offsets() const override { return trimming_ && trimming_->trims_offsets(); }

 private:
  // ["[SEP]", 102]
  static int32_t read(const JsonNode& node) {
    const std::vector<JsonNode> pair = node.elements();
    if (pair.size() != 2) node.fail("must be a pair of a token and its id");
    return static_cast<int32_t>(pair[1].integer(0, INT32_MAX));
  }

  std::optional<Trimming> trimming_;
  int32_t first_;
  int32_t last_;
};

class SequencePostProcessor final : public PostProcessor {
 public:
  explicit SequencePostProcessor(std::vector<std::unique_ptr<const PostProcessor>> stages)
      : stages_(std::move(stages)) {}
  void apply(std::vector<int32_t>& ids, bool add_special_tokens, TokenOffsets* offsets) const override {
    for (const auto& stage : stages_) stage->apply(ids, add_special_tokens, offsets);
  }
  bool trims_offsets() const override {
    return std::ranges::any_of(stages_, [](const auto& stage) { return stage->trims_offsets(); });
  }

 private:
  std::vector<std::unique_ptr<const PostProcessor>> stages_;
};

// Appends the stages of `section`, sequences flattened.
void collect(const JsonNode& section, std::vector<std::unique_ptr<const PostProcessor>>& stages) {
  const std::string& type = section.at("type").string();
  if (type == "Sequence") {
    section.allow_only({"type", "processors"});
    for (const JsonNode& stage : section.at("processors").elements()) collect(stage, stages);
  } else if (type == "TemplateProcessing") {
    check_num_stages(section, stages.size() + 1);
    stages.push_back(std::make_unique<TemplateProcessing>(section));
  } else if (type == "BertProcessing" || type == "RobertaProcessing") {
    check_num_stages(section, stages.size() + 1);
    stages.push_back(std::make_unique<Enclosing>(section));
  } else if (type == "ByteLevel") {
    section.allow_only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    check_num_stages(section, stages.size() + 1);
    stages.push_back(std::make_unique<Trimming>(section));
  } else {
    fail_unsupported_type(section, kSupportedPostProcessors);
  }
}

}  // namespace

std::unique_ptr<const PostProcessor> make_post_processor(const std::optional<JsonNode>& section) {
  std::vector<std::unique_ptr<const PostProcessor>> stages;
  if (section) collect(*section, stages);
  if (stages.empty()) return nullptr;
  if (stages.size() == 1) return std::move(stages[0]);
  return std::make_unique<SequencePostProcessor>(std::move(stages));
}

}  // namespace quire::text
