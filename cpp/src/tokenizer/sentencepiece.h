// SentencePiece's own file, tokenizer.model.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/pipeline.h"
#include "tokenizer/precompiled.h"

namespace quire::text {

// What a tokenizer.model (a protocol buffer, ModelProto) says, as far as it matters to encoding.
struct SentencePieceFile {
  enum class Type : uint8_t { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };
  struct Piece {
    std::string text;
    float score = 0;
    Type type = Type::kNormal;
  };
  std::vector<Piece> pieces;  // by id
  bool is_bpe = false;        // else unigram
  bool byte_fallback = false;
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  std::string charsmap;  // empty: none

  // The first id of that type, or -1.
  int32_t find(Type type) const;
};

// `file` is its name in messages. Throws InvalidArgument for what is no such file, or one of a kind that is
// not supported (word or character models, marks behind words).
SentencePieceFile parse_sentencepiece(std::string_view bytes, const std::string& file);

// Throws InvalidArgument, beginning with `file`.
std::unique_ptr<const TokenizerModel> make_model(const SentencePieceFile& parsed, const std::string& file);
// Normalizes as SentencePiece does: it maps characters, and writes spaces as U+2581, with one at the front.
std::unique_ptr<const PreTokenizer> make_pre_tokenizer(const SentencePieceFile& parsed,
                                                       const std::string& file);
// The other sections, as tokenizer.json has them.
Json make_sections(const SentencePieceFile& parsed, bool adds_bos, bool adds_eos);

}  // namespace quire::text
