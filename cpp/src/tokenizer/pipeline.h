// The stages between text and ids, one interface each: a tokenizer.json names an implementation of each by
// its "type", and the factories below build it. To add one: a class, and a line in its factory.
//
//   text -> added tokens cut out -> Normalizer -> PreTokenizer -> TokenizerModel -> PostProcessor -> ids
//   ids  -> Decoder -> text
//
// All are const after construction and shared by threads; what a call needs room for is in EncodeScratch.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/json.h"
#include "tokenizer/regex.h"
#include "tokenizer/word_cache.h"

namespace quire::text {

// A stretch of text without added tokens, and the pieces it has been cut into so far.
struct PreTokenized {
  struct Piece {
    size_t begin;
    size_t end;
  };
  std::string_view text;
  std::vector<Piece> pieces;  // in order; none is empty

  // Storage for stages that change the text or cut it anew.
  std::string own_text;
  std::vector<Piece> new_pieces;
};

// Room for one call of encode. Reused, so that its vectors and its cache are warm.
struct EncodeScratch {
  PreTokenized pre_tokenized;
  RegexScratch regex;
  WordCache cache;
  std::vector<int32_t> ids;

  // Gives back what grows with the text.
  void forget_text() {
    pre_tokenized = {};
    regex = {};
    ids = std::vector<int32_t>();  // {} would keep the memory
  }
};

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // True when normalizing would leave the text alone: the common case, and cheaper than normalize.
  virtual bool is_surely_normalized(std::string_view text) const = 0;
  virtual std::string normalize(std::string_view text) const = 0;
};

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  virtual void apply(PreTokenized& pre_tokenized, EncodeScratch& scratch) const = 0;
};

class TokenizerModel {
 public:
  virtual ~TokenizerModel() = default;
  // Appends the ids of one piece.
  virtual void tokenize(std::string_view piece, EncodeScratch& scratch, std::vector<int32_t>& ids) const = 0;

  virtual int32_t token_to_id(std::string_view token) const = 0;  // -1 when there is none
  virtual std::optional<std::string_view> id_to_token(int32_t id) const = 0;
  virtual int32_t id_end() const = 0;  // one past the highest id
  virtual size_t vocab_size() const = 0;
};

// Turns each token into bytes by itself; the bytes of a sequence are then joined.
class Decoder {
 public:
  virtual ~Decoder() = default;
  virtual std::string token_bytes(std::string_view token) const = 0;
  // What stands between two tokens.
  virtual std::string_view separator() const = 0;
};

class PostProcessor {
 public:
  virtual ~PostProcessor() = default;
  // Puts in tokens around `ids`; only those that are not special unless `add_special_tokens`.
  virtual void apply(std::vector<int32_t>& ids, bool add_special_tokens) const = 0;
};

// How many normalizers, pre-tokenizers or post-processors a tokenizer may have; each goes over the whole
// text, and files in use have a handful. make_normalizer and the like refuse more.
inline constexpr size_t kMaxStages = 32;

// Throws for one stage too many of those that a Sequence and the Sequences in it hold.
void check_num_stages(const JsonNode& section, size_t num_stages);

// Each takes its section of tokenizer.json, or nothing when that is null, and throws InvalidArgument naming
// the key for what is malformed or not supported. A null result means: nothing to do.
std::unique_ptr<const Normalizer> make_normalizer(const std::optional<JsonNode>& section);
std::unique_ptr<const PreTokenizer> make_pre_tokenizer(const std::optional<JsonNode>& section);
std::unique_ptr<const TokenizerModel> make_model(const JsonNode& section);
std::unique_ptr<const Decoder> make_decoder(const std::optional<JsonNode>& section);
std::unique_ptr<const PostProcessor> make_post_processor(const std::optional<JsonNode>& section);

// Complains that section.type is not among those supported.
[[noreturn]] void fail_unsupported_type(const JsonNode& section, std::string_view supported);

}  // namespace quire::text
