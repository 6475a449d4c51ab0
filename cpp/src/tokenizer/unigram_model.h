// The model of T5 and XLM-R: of all ways to cut a piece into tokens, the one with the highest sum of scores.
#pragma once

#include <array>
#include <stdexcept>

#include "tokenizer/pipeline.h"
#include "tokenizer/prefix_trie.h"
#include "tokenizer/token_table.h"

namespace quire::text {

struct UnigramParts {
  struct Entry {
    std::string token;
    double score;
  };
  std::vector<Entry> vocab;  // by id
  int32_t unk_id = -1;       // for what no token covers; without it that is refused
  bool byte_fallback = false;
  std::vector<bool> unused;  // by id: tokens that no text is cut into; empty: none
  // As SentencePiece sums up scores, in single precision, and takes each unknown character for itself.
  bool is_sentencepiece = false;
};

class UnigramModel final : public TokenizerModel {
 public:
  // `section` is model of tokenizer.json. Throws InvalidArgument, naming the key.
  explicit UnigramModel(const JsonNode& section);
  // Throws std::domain_error, in words to go on after the vocabulary's name.
  explicit UnigramModel(const UnigramParts& parts);

  void tokenize(std::string_view piece, EncodeScratch& scratch, std::vector<int32_t>& ids,
                TokenPlaces* places) const override;
  int32_t token_to_id(std::string_view token) const override { return vocab_.find(token); }
  std::optional<std::string_view> id_to_token(int32_t id) const override;
  int32_t id_end() const override { return vocab_.id_end(); }
  size_t vocab_size() const override { return vocab_.size(); }

 private:
  double rounded(double score) const {
    return is_sentencepiece_ ? static_cast<double>(static_cast<float>(score)) : score;
  }
  void find_best_way(std::string_view piece, std::vector<UnigramNode>& lattice) const;
  // Appends the ids of an unknown stretch of the piece, but the last first.
  void append_unknown_reversed(std::string_view piece, PreTokenized::Piece place, std::vector<int32_t>& ids,
                               TokenPlaces* places) const;

  TokenTable vocab_;
  PrefixTrie trie_;
  std::vector<double> scores_;
  double unk_score_;
  int32_t unk_id_;
  bool byte_fallback_;
  bool is_sentencepiece_;
  std::array<int32_t, 256> byte_ids_;
};

}  // namespace quire::text
