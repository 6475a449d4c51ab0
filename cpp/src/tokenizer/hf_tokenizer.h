// The tokenizer of a tokenizer.json, put together from its stages.
#pragma once

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "quire/tokenizer.h"
#include "tokenizer/added_vocabulary.h"
#include "tokenizer/pipeline.h"

namespace quire::text {

// The bytes of every id, ready to be joined. Shared by a tokenizer and its detokenizers.
struct DecodeTable {
  std::unique_ptr<const Decoder> decoder;
  bool is_plain = true;           // the bytes joined are the text
  std::vector<bool> byte_tokens;  // empty: none is
  // The tokens as they are written, where the decoder minds which is the first or the last; else empty.
  std::vector<std::string> written;

  std::string bytes;
  std::vector<size_t> offsets;  // id i is bytes[offsets[i] .. offsets[i + 1])
  std::vector<bool> used;       // ids that have no token decode to nothing, without a separator
  std::vector<bool> special;
  std::string_view separator;

  int32_t id_end() const { return static_cast<int32_t>(used.size()); }
  std::string_view token(int32_t id) const {
    const auto i = static_cast<size_t>(id);
    return std::string_view(bytes).substr(offsets[i], offsets[i + 1] - offsets[i]);
  }
  size_t max_token_bytes() const {
    size_t most = 1;
    for (size_t i = 1; i < offsets.size(); ++i) most = std::max(most, offsets[i] - offsets[i - 1]);
    return most;
  }
};

// A tokenizer whose model, and perhaps pre-tokenizer, no tokenizer.json describes. With such a pre-tokenizer
// a text begins anew behind each special token in it.
struct TokenizerParts {
  Json document;                                      // the other sections
  std::unique_ptr<const TokenizerModel> model;        // null: the document has it
  std::unique_ptr<const PreTokenizer> pre_tokenizer;  // likewise
};

class HfTokenizer final : public Tokenizer {
 public:
  // `text` is the content of tokenizer.json; `file` is its name in messages.
  HfTokenizer(std::string_view text, const std::string& file);
  HfTokenizer(TokenizerParts parts, const std::string& file);

  std::vector<int32_t> encode(std::string_view text, bool add_special_tokens) const override;
  Encoding encode_with_offsets(std::string_view text, bool add_special_tokens) const override;
  std::string decode(std::span<const int32_t> ids, bool skip_special_tokens) const override;
  std::unique_ptr<IncrementalDetokenizer> detokenizer(bool skip_special_tokens) const override;

  int32_t vocab_size() const override { return decode_table_->id_end(); }
  std::optional<std::string> id_to_token(int32_t id) const override;
  std::optional<int32_t> token_to_id(std::string_view token) const override;
  bool is_special(int32_t id) const override;
  std::string_view token_bytes(int32_t id) const override;
  size_t max_token_bytes() const override;

 private:
  struct Place {
    bool begins_text;  // whether the whole text begins with a stretch of it
    bool ends_text;
  };

  void build(const JsonNode& document);
  std::shared_ptr<const DecodeTable> make_decode_table(std::unique_ptr<const Decoder> decoder) const;
  std::vector<int32_t> encode(std::string_view text, bool add_special_tokens, TokenOffsets* offsets) const;
  // Text that holds no raw added token; `offsets`, unless null, get as many as the scratch gets ids.
  void encode_segment(std::string_view text, Place place, EncodeScratch& scratch,
                      TokenOffsets* offsets) const;
  // Normalized text that holds no added token; its alignment is the scratch's.
  void encode_normalized(std::string_view text, Place place, EncodeScratch& scratch,
                         TokenOffsets* offsets) const;

  std::unique_ptr<EncodeScratch> take_scratch() const;
  void give_back(std::unique_ptr<EncodeScratch> scratch) const;

  std::unique_ptr<const TokenizerModel> model_;
  std::unique_ptr<const Normalizer> normalizer_;         // null: none
  std::unique_ptr<const PreTokenizer> pre_tokenizer_;    // null: none
  std::unique_ptr<const PostProcessor> post_processor_;  // null: none
  std::unique_ptr<const AddedVocabulary> added_;
  std::shared_ptr<const DecodeTable> decode_table_;
  bool restarts_ = false;  // behind special tokens

  // Rooms of calls that are over; as many as ever ran at once, up to a limit.
  mutable std::mutex scratches_mutex_;
  mutable std::vector<std::unique_ptr<EncodeScratch>> scratches_;
};

}  // namespace quire::text
