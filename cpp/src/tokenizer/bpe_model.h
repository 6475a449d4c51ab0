// Byte-level byte pair encoding.
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

// The model of GPT-2, Llama 3 and Qwen. Pieces arrive as the bytes themselves; only the vocabulary is
// written in the byte-level alphabet.
class BpeModel final : public TokenizerModel {
 public:
  // `section` is model of tokenizer.json. Throws InvalidArgument, naming the key.
  explicit BpeModel(const JsonNode& section);

  void tokenize(std::string_view piece, EncodeScratch& scratch, std::vector<int32_t>& ids) const override;
  int32_t token_to_id(std::string_view token) const override { return vocab_.find(token); }
  std::optional<std::string_view> id_to_token(int32_t id) const override;
  int32_t id_end() const override { return vocab_.id_end(); }
  size_t vocab_size() const override { return vocab_.size(); }

 private:
  void read_vocab(const JsonNode& vocab);
  void read_merges(const JsonNode& merges);
  void append_merge(const JsonNode& merges, size_t index, std::string_view left, std::string_view right);
  // Appends the ids of the single bytes.
  void split_to_bytes(std::string_view piece, std::vector<int32_t>& ids) const;
  // Merge ids[begin..] in place. The first compares all pairs each time and is for short words.
  void merge_short(std::vector<int32_t>& ids, size_t begin) const;
  void merge_long(std::vector<int32_t>& ids, size_t begin) const;

  TokenTable vocab_;
  TokenTable by_bytes_;                // the same, by the bytes the tokens stand for
  std::array<int32_t, 256> byte_ids_;  // -1: not in the vocabulary
  MergeTable merges_;
  int32_t num_merges_ = 0;
  int32_t unk_id_ = -1;  // for bytes that have no id; without it they are dropped
  bool fuse_unk_ = false;
  bool ignore_merges_ = false;  // a piece that is a token as a whole is that token
};

}  // namespace quire::text
