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
#include "tokenizer/rewriter.h"
#include "tokenizer/token_offsets.h"
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
  bool begins_text = false;   // what it begins with, the whole text began with
  bool ends_text = false;
  Alignment* alignment = nullptr;  // of `text`, where offsets are asked for

  // Storage for stages that change the text or cut it anew.
  std::string own_text;
  std::vector<Piece> new_pieces;
};

// The best way to cut a piece up to a place in it: the last token of that way.
struct UnigramNode {
  double score;
  int32_t id;
  uint32_t begin;  // where that token begins; kUnreached while there is no way
  static constexpr uint32_t kUnreached = UINT32_MAX;
};

// Room for one call of encode. Reused, so that its vectors and its cache are warm.
struct EncodeScratch {
  PreTokenized pre_tokenized;
  RegexScratch regex;
  WordCache cache;
  std::vector<UnigramNode> lattice;
  std::vector<int32_t> ids;

  // Where offsets are asked for: the alignments of a text without raw added tokens, and of a part of it
  // without any, and the places of the tokens of one piece.
  Alignment text_alignment;
  Alignment part_alignment;
  std::vector<PreTokenized::Piece> token_places;

  // Gives back what grows with the text.
  void forget_text() {
    pre_tokenized = {};
    regex = {};
    lattice = std::vector<UnigramNode>();
    ids = std::vector<int32_t>();  // {} would keep the memory
    text_alignment = part_alignment = {};
    token_places = std::vector<PreTokenized::Piece>();
  }
};

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // True when normalizing would leave the text alone: the common case, and cheaper than normalize.
  virtual bool is_surely_normalized(std::string_view text) const = 0;
  // Sets `drops_start` when nothing stays of the first character, and otherwise leaves it alone. `alignment`,
  // of `text`, becomes that of the result; or is null.
  virtual std::string normalize(std::string_view text, bool& drops_start, Alignment* alignment) const = 0;
};

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  virtual void apply(PreTokenized& pre_tokenized, EncodeScratch& scratch) const = 0;
};

class TokenizerModel {
 public:
  virtual ~TokenizerModel() = default;
  using TokenPlaces = std::vector<PreTokenized::Piece>;
  // Appends the ids of one piece, and where in it each token lies unless `places` is null.
  virtual void tokenize(std::string_view piece, EncodeScratch& scratch, std::vector<int32_t>& ids,
                        TokenPlaces* places) const = 0;

  virtual int32_t token_to_id(std::string_view token) const = 0;  // -1 when there is none
  virtual std::optional<std::string_view> id_to_token(int32_t id) const = 0;
  virtual int32_t id_end() const = 0;  // one past the highest id
  virtual size_t vocab_size() const = 0;
};

// Turns tokens into text: each into bytes by itself, and then what only their neighbours tell.
class Decoder {
 public:
  virtual ~Decoder() = default;
  // The bytes of a token that is neither the first nor the last, or of a byte token (see is_byte_token).
  virtual std::string token_bytes(std::string_view token) const = 0;
  // What stands between two tokens.
  virtual std::string_view separator() const { return ""; }

  // The bytes at an end of the sequence, where they are others; only asked where these say so.
  virtual bool has_other_ends() const { return false; }
  virtual std::string end_bytes(std::string_view token, bool is_first, bool is_last) const {
    static_cast<void>(is_first), static_cast<void>(is_last);
    return token_bytes(token);
  }
  virtual bool needs_last() const { return false; }  // whether the last is another than those between

  // Whether the same token several times in a row is that token once.
  virtual bool merges_repeats() const { return false; }
  // Whether the token is one byte of a text that only the tokens next to it complete.
  virtual bool is_byte_token(std::string_view) const { return false; }
  // What becomes of the text of a run of byte tokens, which begins the sequence or not.
  virtual std::string run_text(std::string text, bool is_first) const {
    static_cast<void>(is_first);
    return text;
  }
  // What is taken off the start of the whole text: up to `start_cut()` times this character.
  virtual std::string_view cut_character() const { return ""; }
  virtual size_t start_cut() const { return 0; }
};

class PostProcessor {
 public:
  virtual ~PostProcessor() = default;
  // Puts in tokens around `ids`; only those that are not special unless `add_special_tokens`. `offsets`, of
  // the ids, go with them; or are null.
  virtual void apply(std::vector<int32_t>& ids, bool add_special_tokens, TokenOffsets* offsets) const = 0;
  virtual bool trims_offsets() const { return false; }
};

// How many normalizers, pre-tokenizers or post-processors a tokenizer may have; each goes over the whole
// text, and files in use have a handful. make_normalizer and the like refuse more.
inline constexpr size_t kMaxStages = 32;

// Throws for one stage too many of those that a Sequence and the Sequences in it hold.
void check_num_stages(const JsonNode& section, size_t num_stages);

// Each takes its section of tokenizer.json, or nothing when that is null, and throws InvalidArgument naming
// the key for what is malformed or not supported. A null result means: nothing to do.
std::unique_ptr<const Normalizer> make_normalizer(const std::optional<JsonNode>& section);
//
// make_pre_tokenizer sets `gives_bytes` where its pieces are bytes to be taken as they are: behind a final
// ByteLevel, for a model that can take them. The model must be told.
std::unique_ptr<const PreTokenizer> make_pre_tokenizer(const std::optional<JsonNode>& section,
                                                       bool model_can_take_bytes, bool& gives_bytes);
bool can_take_bytes(const JsonNode& model_section);
std::unique_ptr<const TokenizerModel> make_model(const JsonNode& section, bool takes_bytes);
std::unique_ptr<const Decoder> make_decoder(const std::optional<JsonNode>& section);
std::unique_ptr<const PostProcessor> make_post_processor(const std::optional<JsonNode>& section);

// Complains that section.type is not among those supported.
[[noreturn]] void fail_unsupported_type(const JsonNode& section, std::string_view supported);

}  // namespace quire::text
