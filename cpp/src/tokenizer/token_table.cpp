#include "tokenizer/token_table.h"

namespace quire::text {

int32_t TokenTable::find(std::string_view token) const {
  if (buckets_.empty()) return kNone;
  const size_t mask = buckets_.size() - 1;
  for (size_t i = hash_bytes(token) & mask;; i = (i + 1) & mask) {
    const int32_t id = buckets_[i];
    if (id == kNone || this->token(id) == token) return id;
  }
}

bool TokenTable::insert(std::string_view token, int32_t id) {
  if (contains(id) || find(token) != kNone) return false;
  if ((size_ + 1) * 2 > buckets_.size()) grow();
  if (static_cast<size_t>(id) >= entries_.size()) entries_.resize(static_cast<size_t>(id) + 1);
  entries_[static_cast<size_t>(id)] = {buffer_.size(), static_cast<uint32_t>(token.size())};
  buffer_ += token;
  const size_t mask = buckets_.size() - 1;
  size_t i = hash_bytes(token) & mask;
  while (buckets_[i] != kNone) i = (i + 1) & mask;
  buckets_[i] = id;
  ++size_;
  return true;
}

void TokenTable::grow() {
  buckets_.assign(buckets_.empty() ? 1024 : buckets_.size() * 2, kNone);
  const size_t mask = buckets_.size() - 1;
  for (size_t id = 0; id < entries_.size(); ++id) {
    if (entries_[id].size == kUnused) continue;
    size_t i = hash_bytes(token(static_cast<int32_t>(id))) & mask;
    while (buckets_[i] != kNone) i = (i + 1) & mask;
    buckets_[i] = static_cast<int32_t>(id);
  }
}

}  // namespace quire::text
