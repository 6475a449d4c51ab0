// Byte pair encoding, over bytes or over characters.
#pragma once

#include <array>

#include "tokenizer/pipeline.h"
#include "tokenizer/token_table.h"

namespace quire::text {

// Merges of two ids into one, by rank.
class MergeTable {
 public:
  struct Merge {
    int32_t rank;  // the lowest goes first
    int32_t id;    // what the pair becomes
  };

  explicit MergeTable(size_t num_merges);

  // A pair listed twice keeps its last rank, as in Hugging Face `tokenizers`.
  void set(int32_t left, int32_t right, Merge merge);
  const Merge* find(int32_t left, int32_t right) const {
    for (size_t i = bucket_of(key_of(left, right));; i = (i + 1) & mask_) {
      if (buckets_[i].key == key_of(left, right)) return &buckets_[i].merge;
      if (buckets_[i].key == kEmpty) return nullptr;
    }
  }

 private:
  static constexpr uint64_t kEmpty = UINT64_MAX;
  struct Bucket {
    uint64_t key = kEmpty;
    Merge merge{};
  };

  static uint64_t key_of(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }
  size_t bucket_of(uint64_t key) const { return (key * 0x9E3779B97F4A7C15u) >> shift_; }

  size_t mask_;
  int shift_;
  std::vector<Bucket> buckets_;
};

// What a BPE model is made of, wherever it was read.
struct BpeParts {
  struct Merge {
    int32_t left;
    int32_t right;
    MergeTable::Merge merge;
  };
  TokenTable vocab;
  std::vector<Merge> merges;
  bool takes_bytes = false;    // pieces are bytes, and the vocabulary writes them in the byte-level alphabet
  bool byte_fallback = false;  // a character that has no token is the tokens <0x00> to <0xFF> of its bytes
  bool fuse_unk = false;
  bool ignore_merges = false;  // a piece that is a token as a whole is that token
  std::string prefix;          // of characters that do not begin a piece (continuing_subword_prefix)
  std::string suffix;          // of the character that ends a piece (end_of_word_suffix)
  int32_t unk_id = -1;         // for what has no id; without it that is dropped
};

// The model of GPT-2, Llama 3 and Qwen over bytes, of Llama 2, Mistral and Gemma over characters.
class BpeModel final : public TokenizerModel {
 public:
  // `section` is model of tokenizer.json. Throws InvalidArgument, naming the key.
  BpeModel(const JsonNode& section, bool takes_bytes);
  explicit BpeModel(BpeParts parts);

  void tokenize(std::string_view piece, EncodeScratch& scratch, std::vector<int32_t>& ids,
                TokenPlaces* places) const override;
  int32_t token_to_id(std::string_view token) const override { return parts_.vocab.find(token); }
  std::optional<std::string_view> id_to_token(int32_t id) const override;
  int32_t id_end() const override { return parts_.vocab.id_end(); }
  size_t vocab_size() const override { return parts_.vocab.size(); }

 private:
  // Whether words may be cut off before each mark of a space: no merge leads across one.
  bool find_whether_marks_cut() const;
  void tokenize_word(std::string_view word, EncodeScratch& scratch, std::vector<int32_t>& ids) const;
  void merge_word(std::string_view word, std::vector<int32_t>& ids) const;
  // Appends where the ids of a word lie in a piece, in which it begins at `begin`.
  void locate(std::string_view word, size_t begin, std::span<const int32_t> ids, TokenPlaces& places) const;
  // The token that a word is whatever merges say, or -1.
  int32_t find_whole(std::string_view word) const;
  // Calls take(id, begin, end) for the single bytes, or characters, and what of the word each stands for.
  template <typename Take>
  void split(std::string_view word, const Take& take) const;
  template <typename Take>
  void split_to_bytes(std::string_view word, const Take& take) const;
  template <typename Take>
  void split_to_characters(std::string_view word, const Take& take) const;
  bool has_byte_tokens(std::string_view character) const;
  // Merge ids[begin..] in place. The first compares all pairs each time and is for short words; the second
  // sets `firsts`, unless it is null, to the index at which the first part of each had been.
  void merge_short(std::vector<int32_t>& ids, size_t begin) const;
  void merge_long(std::vector<int32_t>& ids, size_t begin, std::vector<size_t>* firsts) const;

  BpeParts parts_;
  TokenTable by_bytes_;                // over bytes: the same, by the bytes the tokens stand for
  std::array<int32_t, 256> byte_ids_;  // over bytes, of each; with byte_fallback, of <0x00> and so on; or -1
  MergeTable merges_;
  bool marks_cut_ = false;
};

}  // namespace quire::text
