// Tokens that are found in the text before anything else looks at it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "tokenizer/pipeline.h"
#include "tokenizer/token_trie.h"

namespace quire::text {

struct AddedToken {
  std::string content;
  bool special = false;
  bool single_word = false;  // only where no word character touches it
  bool lstrip = false;       // takes the white space before it along
  bool rstrip = false;       // takes the white space after it along
  bool normalized = false;   // is looked for in the normalized text, as its normalized self
  std::string written;       // what decoding writes: `content`, normalized if `normalized`
};

class AddedVocabulary {
 public:
  // Text, or (if id >= 0) an added token.
  struct Segment {
    std::string_view text;
    int32_t id;
  };

  // `section` is added_tokens of tokenizer.json. As in Hugging Face `tokenizers`, a token that the model
  // knows has the model's id, and the others are numbered on from its vocabulary.
  AddedVocabulary(const std::optional<JsonNode>& section, const TokenizerModel& model,
                  const Normalizer* normalizer);

  // Cuts a text at the tokens that are looked for before normalization, and then those after.
  void split_raw(std::string_view text, std::vector<Segment>& out) const { split(raw_, text, out); }
  void split_normalized(std::string_view text, std::vector<Segment>& out) const {
    split(normalized_, text, out);
  }
  bool has_normalized() const { return !normalized_.empty(); }

  const AddedToken* find(int32_t id) const;
  int32_t token_to_id(std::string_view token) const;  // -1 when there is none
  bool is_special(std::string_view token) const { return special_.contains(std::string(token)); }
  int32_t id_end() const { return by_id_.empty() ? 0 : by_id_.rbegin()->first + 1; }

 private:
  void add(const AddedToken& token, const TokenizerModel& model);
  void split(const TokenTrie& trie, std::string_view text, std::vector<Segment>& out) const;

  std::map<int32_t, AddedToken> by_id_;
  std::unordered_map<std::string, int32_t> ids_;
  std::unordered_set<std::string> special_;
  TokenTrie raw_;
  TokenTrie normalized_;
  unicode::CodePointBitmap space_;
  unicode::CodePointBitmap word_;
};

}  // namespace quire::text
