#include "tokenizer/bpe_model.h"
#include "tokenizer/pipeline.h"
#include "tokenizer/unigram_model.h"
#include "tokenizer/word_models.h"

namespace quire::text {
namespace {

// Early files leave the type out.
std::string type_of(const JsonNode& section) {
  if (const auto type = section.find("type")) return type->string();
  if (section.find("merges")) return "BPE";
  if (section.find("max_input_chars_per_word")) return "WordPiece";
  if (const auto vocab = section.find("vocab"); vocab && vocab->json().is_array()) return "Unigram";
  return "BPE";
}

}  // namespace

bool can_take_bytes(const JsonNode& section) {
  if (type_of(section) != "BPE" || section.boolean_or("byte_fallback", false)) return false;
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (const auto affix = section.find(key); affix && !affix->string().empty()) return false;
  }
  return true;
}

std::unique_ptr<const TokenizerModel> make_model(const JsonNode& section, bool takes_bytes) {
  const std::string type = type_of(section);
  if (type == "BPE") return std::make_unique<BpeModel>(section, takes_bytes);
  if (type == "Unigram") return std::make_unique<UnigramModel>(section);
  if (type == "WordPiece") return std::make_unique<WordPieceModel>(section);
  if (type == "WordLevel") return std::make_unique<WordLevelModel>(section);
  fail_unsupported_type(section, "BPE, Unigram, WordPiece, WordLevel");
}

}  // namespace quire::text
