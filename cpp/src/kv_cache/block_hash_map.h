// From block hashes to block ids: open addressing, no allocation after construction.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "messages/kv_cache_spec.h"
#include "request/block_hash.h"
#include "util/system_random.h"

namespace quire {

// Linear probing over at most half-full buckets; removal shifts the run behind it back, so there are no
// tombstones and a lookup never slows down with age.
class BlockHashMap {
 public:
  // Where an entry begins to look depends on numbers that are drawn for this map: nobody can choose hashes,
  // or write a recording of hashes, that all begin at one bucket.
  explicit BlockHashMap(int32_t max_entries) {
    fill_from_system(std::as_writable_bytes(std::span(secret_)));
    size_t capacity = 16;
    while (capacity < static_cast<size_t>(max_entries) * 2) capacity *= 2;
    buckets_.resize(capacity);
    mask_ = capacity - 1;
    shift_ = 64 - std::countr_zero(capacity);
  }

  // kNullBlock when it is not there.
  BlockId find(const BlockHash& hash) const {
    for (size_t i = home(hash);; i = (i + 1) & mask_) {
      if (buckets_[i].id == kNullBlock || buckets_[i].hash == hash) return buckets_[i].id;
    }
  }
  void prefetch(const BlockHash& hash) const { __builtin_prefetch(&buckets_[home(hash)]); }

  // Adds or replaces.
  void set(const BlockHash& hash, BlockId id) {
    size_t i = home(hash);
    while (buckets_[i].id != kNullBlock && buckets_[i].hash != hash) i = (i + 1) & mask_;
    buckets_[i] = {hash, id};
  }

  // Requires that the hash is there.
  void erase(const BlockHash& hash) {
    size_t hole = home(hash);
    while (buckets_[hole].hash != hash || buckets_[hole].id == kNullBlock) hole = (hole + 1) & mask_;
    for (size_t i = (hole + 1) & mask_; buckets_[i].id != kNullBlock; i = (i + 1) & mask_) {
      // An entry may move back unless the hole lies before its home.
      if (((i - home(buckets_[i].hash)) & mask_) >= ((i - hole) & mask_)) {
        buckets_[hole] = buckets_[i];
        hole = i;
      }
    }
    buckets_[hole].id = kNullBlock;
  }

  // The most buckets that finding an entry looks at. Walks through the whole map.
  size_t longest_search() const {
    size_t longest = 0;
    for (size_t i = 0; i < buckets_.size(); ++i) {
      if (buckets_[i].id != kNullBlock)
        longest = std::max(longest, ((i - home(buckets_[i].hash)) & mask_) + 1);
    }
    return longest;
  }

  void clear() {
    for (Bucket& bucket : buckets_) bucket.id = kNullBlock;
  }

 private:
  struct Bucket {
    BlockHash hash;
    BlockId id = kNullBlock;
  };
  size_t home(const BlockHash& hash) const {
    const auto product = static_cast<unsigned __int128>(hash.high ^ secret_[0]) * (hash.low ^ secret_[1]);
    const uint64_t mixed = static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
    // Hashes that differ in a counter only come out of one product in a pattern, with some secrets a dense
    // one: the highest bits of a second product depend on all of the first.
    return mixed * 0x9E3779B97F4A7C15 >> shift_;
  }

  std::vector<Bucket> buckets_;
  size_t mask_ = 0;
  int shift_ = 0;  // leaves as many bits as mask_ has
  uint64_t secret_[2];
};

}  // namespace quire
