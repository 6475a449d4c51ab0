#include "tokenizer/token_table.h"

namespace quire::text {

int32_t TokenTable::find(std::string_view token) const {
  if (slots_.empty()) return kNone;
  const size_t mask = slots_.size() - 1;
  for (size_t slot = hash_bytes(token) & mask;; slot = (slot + 1) & mask) {
    const int32_t id = slots_[slot];
    if (id == kNone || this->token(id) == token) return id;
  }
}

bool TokenTable::insert(std::string_view token, int32_t id) {
  if (contains(id) || find(token) != kNone) return false;
  if ((size_ + 1) * 2 > slots_.size()) grow();
  if (static_cast<size_t>(id) >= entries_.size()) entries_.resize(static_cast<size_t>(id) + 1);
  entries_[static_cast<size_t>(id)] = {buffer_.size(), static_cast<uint32_t>(token.size())};
  buffer_ += token;
  const size_t mask = slots_.size() - 1;
  size_t slot = hash_bytes(token) & mask;
  while (slots_[slot] != kNone) slot = (slot + 1) & mask;
  slots_[slot] = id;
  ++size_;
  return true;
}

void TokenTable::grow() {
  slots_.assign(slots_.empty() ? 1024 : slots_.size() * 2, kNone);
  const size_t mask = slots_.size() - 1;
  for (size_t id = 0; id < entries_.size(); ++id) {
    if (entries_[id].size == kUnused) continue;
    size_t slot = hash_bytes(token(static_cast<int32_t>(id))) & mask;
    while (slots_[slot] != kNone) slot = (slot + 1) & mask;
    slots_[slot] = static_cast<int32_t>(id);
  }
}

}  // namespace quire::text
