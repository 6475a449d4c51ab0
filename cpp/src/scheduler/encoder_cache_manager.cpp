#include "scheduler/encoder_cache_manager.h"

#include <algorithm>

#include "util/check.h"

namespace quire {

int32_t EncoderCacheManager::num_unused_embeds(const std::string& mm_hash) const {
  const auto entry = entries_.find(mm_hash);
  return entry != entries_.end() && entry->second.owners.empty() ? entry->second.num_embeds : 0;
}

bool EncoderCacheManager::acquire(RequestId request_id, const MultiModalFeature& feature) {
  const auto [entry, inserted] = entries_.try_emplace(feature.mm_hash);
  Entry& value = entry->second;
  if (inserted) {
    value.num_embeds = feature.num_embeds;
    while (num_free_ < feature.num_embeds) {
      QUIRE_CHECK(!unused_.empty(), "no space for ", feature.num_embeds, " embeddings");
      forget(entries_.find(unused_.front()));
    }
    num_free_ -= feature.num_embeds;
  } else if (value.owners.empty()) {
    unused_.erase(value.unused);
    num_unused_ -= value.num_embeds;
  }
  if (std::find(value.owners.begin(), value.owners.end(), request_id) == value.owners.end())
    value.owners.push_back(request_id);
  return inserted;
}

void EncoderCacheManager::release(RequestId request_id, const std::string& mm_hash) {
  const auto entry = entries_.find(mm_hash);
  if (entry == entries_.end()) return;
  Entry& value = entry->second;
  if (std::erase(value.owners, request_id) == 0 || !value.owners.empty()) return;
  value.unused = unused_.insert(unused_.end(), mm_hash);
  num_unused_ += value.num_embeds;
}

bool EncoderCacheManager::discard(RequestId request_id, const std::string& mm_hash) {
  const auto entry = entries_.find(mm_hash);
  if (entry == entries_.end() || entry->second.owners != std::vector<RequestId>{request_id}) return false;
  num_free_ += entry->second.num_embeds;
  entries_.erase(entry);
  return true;
}

void EncoderCacheManager::forget(std::unordered_map<std::string, Entry>::iterator entry) {
  num_free_ += entry->second.num_embeds;
  num_unused_ -= entry->second.num_embeds;
  unused_.erase(entry->second.unused);
  freed_.push_back(entry->first);
  entries_.erase(entry);
}

void EncoderCacheManager::forget_unused() {
  while (!unused_.empty()) forget(entries_.find(unused_.front()));
}

void EncoderCacheManager::take_freed(std::vector<std::string>& out) {
  out.clear();
  out.swap(freed_);
}

}  // namespace quire
