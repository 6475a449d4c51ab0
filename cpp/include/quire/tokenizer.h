// Text to token ids and back.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quire/export.h"

namespace quire {

// Turns token ids into text as they arrive. The pieces, joined, equal Tokenizer::decode of all ids. Held back
// are parts of a character and runs of byte-fallback tokens, until they are whole. Not thread-safe.
class QUIRE_API IncrementalDetokenizer {
 public:
  virtual ~IncrementalDetokenizer();
  // Appends the text that `ids` completed to `out` (perhaps nothing).
  virtual void append(std::span<const int32_t> ids, std::string& out) = 0;
  // Appends what is still held back, incomplete bytes as U+FFFD. Call once, at the end.
  virtual void finish(std::string& out) = 0;
};

// A part of a text: its bytes [begin, end).
struct TextSpan {
  size_t begin = 0;
  size_t end = 0;
  bool operator==(const TextSpan&) const = default;
};

struct Encoding {
  std::vector<int32_t> ids;
  std::vector<TextSpan> offsets;  // of each id
};

// Makes bytes code points, as Python and the `tokenizers` package count. `text` is valid UTF-8, and `spans`
// are those of an Encoding of it. Takes one pass over the text.
QUIRE_API void count_code_points(std::string_view text, std::span<TextSpan> spans);

// A model's tokenizer, run in C++. Ids equal those of the Python `tokenizers` package.
// Thread-safe: const after loading.
class QUIRE_API Tokenizer {
 public:
  virtual ~Tokenizer();

  // Reads tokenizer.json from a model directory, and nothing else; without one, tekken.json,
  // tokenizer.model, *.tiktoken, or vocab.json and merges.txt, with what tokenizer_config.json says of
  // special tokens. Text is neither cut nor filled up, whatever "truncation" and "padding" say. Throws
  // InvalidArgument naming the file and the key for anything missing, malformed or unsupported.
  static std::shared_ptr<const Tokenizer> load(const std::string& directory);

  // `add_special_tokens` runs the post-processor (BOS and the like). Special tokens written in the text
  // are recognised either way. Invalid UTF-8 throws InvalidArgument.
  virtual std::vector<int32_t> encode(std::string_view text, bool add_special_tokens = true) const = 0;
  // The same ids, and the part of the text that each stands for: whole characters, so that tokens of one
  // character have the same part. Tokens that the post-processor adds have {0, 0}. Offsets are those of the
  // `tokenizers` package: a character that another one is composed with, as by NFC, or that is dropped, is in
  // no part.
  virtual Encoding encode_with_offsets(std::string_view text, bool add_special_tokens = true) const = 0;
  // Negative ids throw InvalidArgument. Ids that no token has give nothing: models pad their vocabularies.
  // Incomplete UTF-8 becomes U+FFFD.
  virtual std::string decode(std::span<const int32_t> ids, bool skip_special_tokens = true) const = 0;
  virtual std::unique_ptr<IncrementalDetokenizer> detokenizer(bool skip_special_tokens = true) const = 0;

  // One past the highest id, added tokens included.
  virtual int32_t vocab_size() const = 0;
  // The entry as tokenizer.json writes it ("Ġthe"), or nothing for an unused id.
  virtual std::optional<std::string> id_to_token(int32_t id) const = 0;
  virtual std::optional<int32_t> token_to_id(std::string_view token) const = 0;
  virtual bool is_special(int32_t id) const = 0;
  // The bytes that the token adds to a text, perhaps a part of a character; empty for ids that no token has.
  virtual std::string_view token_bytes(int32_t id) const = 0;
  // A token stands for at most so many bytes of text: the longest one's, and four times that where a
  // normalizer may shorten the text first. Longer text than a context of such tokens can be refused before it
  // is encoded.
  virtual size_t max_token_bytes() const = 0;
};

}  // namespace quire
