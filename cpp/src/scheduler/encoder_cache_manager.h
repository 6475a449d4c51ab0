// Which encoder outputs the workers hold, by content: a hash that several requests share is computed once.
//
// Outputs that no request refers to stay until the space is needed, the longest unused first. After vLLM v1's
// EncoderCacheManager. Not thread-safe; owned by the Scheduler.
#pragma once

#include <cstdint>
#include <list>
#include <string>
#include <unordered_map>
#include <vector>

#include "messages/recording.h"

namespace quire {

class EncoderCacheManager {
 public:
  // `cache_size` counts embeddings.
  explicit EncoderCacheManager(int32_t cache_size) : num_free_(cache_size) {}

  bool is_cached(const std::string& mm_hash) const { return entries_.contains(mm_hash); }
  // Whether `num_embeds` more would fit, after forgetting what nobody refers to.
  bool can_allocate(int32_t num_embeds) const { return num_embeds <= num_free_ + num_unused_; }
  // Embeddings of a cached output that nobody refers to: can_allocate counts on their space.
  int32_t num_unused_embeds(const std::string& mm_hash) const;
  // The request refers to the feature's output. Returns true when it was not there: it must be computed.
  // Space was found by can_allocate.
  bool acquire(RequestId request_id, const MultiModalFeature& feature);
  // The request is done with it; more than once does no harm.
  void release(RequestId request_id, const std::string& mm_hash);
  // Forgets an output that was never computed after all, unless others wait for it: then returns false.
  bool discard(RequestId request_id, const std::string& mm_hash);
  // Forgets what nobody refers to.
  void forget_unused();
  // Outputs forgotten since the last call; the workers free them.
  void take_freed(std::vector<std::string>& out);

  int32_t num_free() const { return num_free_; }

  void save(EncoderCacheSnapshot& out) const;
  void restore(const EncoderCacheSnapshot& snapshot);

 private:
  struct Entry {
    int32_t num_embeds = 0;
    std::vector<RequestId> owners;
    std::list<std::string>::iterator unused;  // its place in unused_, while it has no owner
  };
  void forget(std::unordered_map<std::string, Entry>::iterator entry);

  std::unordered_map<std::string, Entry> entries_;
  std::list<std::string> unused_;  // the longest unused first
  int32_t num_free_;
  int32_t num_unused_ = 0;  // embeddings of unused_
  std::vector<std::string> freed_;
};

}  // namespace quire
