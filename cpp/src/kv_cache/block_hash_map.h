// From block hashes to block ids: open addressing, no allocation after construction.
#pragma once

#include <cstdint>
#include <vector>

#include "messages/kv_cache_spec.h"
#include "request/block_hash.h"

namespace quire {

// Linear probing over at most half-full slots; removal shifts the run behind it back, so there are no
// tombstones and a lookup never slows down with age.
class BlockHashMap {
 public:
  explicit BlockHashMap(int32_t max_entries) {
    size_t capacity = 16;
    while (capacity < static_cast<size_t>(max_entries) * 2) capacity *= 2;
    slots_.resize(capacity);
    mask_ = capacity - 1;
  }

  // kNullBlock when it is not there.
  BlockId find(const BlockHash& hash) const {
    for (size_t i = home(hash);; i = (i + 1) & mask_) {
      if (slots_[i].id == kNullBlock || slots_[i].hash == hash) return slots_[i].id;
    }
  }
  void prefetch(const BlockHash& hash) const { __builtin_prefetch(&slots_[home(hash)]); }

  // Adds or replaces.
  void set(const BlockHash& hash, BlockId id) {
    size_t i = home(hash);
    while (slots_[i].id != kNullBlock && slots_[i].hash != hash) i = (i + 1) & mask_;
    slots_[i] = {hash, id};
  }

  // It must be there.
  void erase(const BlockHash& hash) {
    size_t hole = home(hash);
    while (slots_[hole].hash != hash || slots_[hole].id == kNullBlock) hole = (hole + 1) & mask_;
    for (size_t i = (hole + 1) & mask_; slots_[i].id != kNullBlock; i = (i + 1) & mask_) {
      // An entry may move back unless the hole lies before its home.
      if (((i - home(slots_[i].hash)) & mask_) >= ((i - hole) & mask_)) {
        slots_[hole] = slots_[i];
        hole = i;
      }
    }
    slots_[hole].id = kNullBlock;
  }

  void clear() {
    for (Slot& slot : slots_) slot.id = kNullBlock;
  }

 private:
  struct Slot {
    BlockHash hash;
    BlockId id = kNullBlock;
  };
  size_t home(const BlockHash& hash) const { return hash.low & mask_; }

  std::vector<Slot> slots_;
  size_t mask_ = 0;
};

}  // namespace quire
