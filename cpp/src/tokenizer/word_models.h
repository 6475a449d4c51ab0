// The models that look words up: WordPiece (BERT) piece by piece, WordLevel whole.
#pragma once

#include "tokenizer/pipeline.h"
#include "tokenizer/token_table.h"

namespace quire::text {

// Reads {token: id}. Throws InvalidArgument, naming the key, for ids that are none or given twice.
void read_vocab(const JsonNode& vocab, TokenTable& table);

// Of what is left of a word, the longest piece that is a token; a word that does not come out is unknown.
class WordPieceModel final : public TokenizerModel {
 public:
  explicit WordPieceModel(const JsonNode& section);

  void tokenize(std::string_view word, EncodeScratch& scratch, std::vector<int32_t>& ids,
                TokenPlaces* places) const override;
  int32_t token_to_id(std::string_view token) const override { return vocab_.find(token); }
  std::optional<std::string_view> id_to_token(int32_t id) const override;
  int32_t id_end() const override { return vocab_.id_end(); }
  size_t vocab_size() const override { return vocab_.size(); }

 private:
  bool append_pieces(std::string_view word, std::vector<int32_t>& ids, TokenPlaces* places) const;

  TokenTable vocab_;
  std::string unk_token_;
  int32_t unk_id_;
  std::string prefix_;  // of pieces that do not begin a word
  size_t max_characters_;
  size_t max_token_bytes_ = 0;
};

class WordLevelModel final : public TokenizerModel {
 public:
  explicit WordLevelModel(const JsonNode& section);

  void tokenize(std::string_view word, EncodeScratch& scratch, std::vector<int32_t>& ids,
                TokenPlaces* places) const override;
  int32_t token_to_id(std::string_view token) const override { return vocab_.find(token); }
  std::optional<std::string_view> id_to_token(int32_t id) const override;
  int32_t id_end() const override { return vocab_.id_end(); }
  size_t vocab_size() const override { return vocab_.size(); }

 private:
  TokenTable vocab_;
  std::string unk_token_;
  int32_t unk_id_;
};

}  // namespace quire::text
