// The ids of words seen lately.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace quire::text {

// Direct-mapped and of fixed size: a new word takes the place of the one in its bucket. Holds short words
// with few ids, which are nearly all. Not thread-safe; belongs to one EncodeScratch, and to one model.
class WordCache {
 public:
  static constexpr size_t kMaxWordBytes = 23;
  static constexpr size_t kMaxIds = 8;

  // The ids of `word`, if it is here. `hash` is hash_bytes(word).
  std::span<const int32_t> find(std::string_view word, uint64_t hash) const {
    if (buckets_.empty() || word.size() > kMaxWordBytes) return {};
    const Bucket& bucket = buckets_[hash % kNumBuckets];
    if (bucket.size != word.size() || std::memcmp(bucket.word, word.data(), word.size()) != 0) return {};
    return {bucket.ids, bucket.num_ids};
  }

  void insert(std::string_view word, uint64_t hash, std::span<const int32_t> ids) {
    if (word.size() > kMaxWordBytes || ids.size() > kMaxIds || ids.empty()) return;
    if (buckets_.empty()) buckets_.resize(kNumBuckets);
    Bucket& bucket = buckets_[hash % kNumBuckets];
    bucket.size = static_cast<uint8_t>(word.size());
    bucket.num_ids = static_cast<uint8_t>(ids.size());
    std::memcpy(bucket.word, word.data(), word.size());
    std::memcpy(bucket.ids, ids.data(), ids.size_bytes());
  }

 private:
  static constexpr size_t kNumBuckets = 16384;  // 1 MiB

  struct Bucket {
    uint8_t size = 0;  // 0: empty
    uint8_t num_ids = 0;
    char word[kMaxWordBytes];
    int32_t ids[kMaxIds];
  };
  std::vector<Bucket> buckets_;
};

}  // namespace quire::text
