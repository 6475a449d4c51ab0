// Strings by id, and ids by string.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace quire::text {

inline uint64_t hash_bytes(std::string_view bytes) {
  // Eight bytes a round, multiplied and folded; words are short.
  uint64_t hash = 0x9E3779B97F4A7C15u ^ bytes.size();
  const auto mix = [&hash](uint64_t word) {
    hash = (hash ^ word) * 0xD6E8FEB86659FD93u;
    hash ^= hash >> 32;
  };
  size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    uint64_t word = 0;
    __builtin_memcpy(&word, bytes.data() + i, 8);
    mix(word);
  }
  uint64_t word = 0;
  for (size_t shift = 0; i < bytes.size(); ++i, shift += 8) {
    word |= uint64_t{static_cast<unsigned char>(bytes[i])} << shift;
  }
  mix(word);
  return hash;
}

// A map from strings to ids with an inverse. The strings lie in one buffer. Ids need not be dense, but the
// table takes memory for all of them.
class TokenTable {
 public:
  static constexpr int32_t kNone = -1;

  // False, and nothing changes, when the id or the string is already taken.
  bool insert(std::string_view token, int32_t id);

  int32_t find(std::string_view token) const;
  // Valid until the next insert. Empty when contains(id) is false.
  std::string_view token(int32_t id) const {
    if (!contains(id)) return {};
    const Entry& entry = entries_[static_cast<size_t>(id)];
    return std::string_view(buffer_).substr(entry.offset, entry.size);
  }
  bool contains(int32_t id) const {
    return id >= 0 && static_cast<size_t>(id) < entries_.size() &&
           entries_[static_cast<size_t>(id)].size != kUnused;
  }
  int32_t id_end() const { return static_cast<int32_t>(entries_.size()); }  // one past the highest id
  size_t size() const { return size_; }

 private:
  static constexpr uint32_t kUnused = UINT32_MAX;
  struct Entry {
    size_t offset = 0;
    uint32_t size = kUnused;
  };

  void grow();

  std::string buffer_;
  std::vector<Entry> entries_;    // by id
  std::vector<int32_t> buckets_;  // open addressing, a power of two, at most half full
  size_t size_ = 0;
};

}  // namespace quire::text
