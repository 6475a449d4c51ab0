// What each kind of layer must keep of a sequence, in blocks. One rule set for all kinds: a group reads the
// tokens of its window; full attention's window is everything, a state's is the last token.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "messages/kv_cache_spec.h"

namespace quire {

class GroupPolicy {
 public:
  explicit GroupPolicy(const KVCacheSpec& spec) : block_size_(spec.block_size), kind_(spec.kind) {
    if (kind_ == KVCacheKind::kSlidingWindow) window_ = spec.sliding_window;
    if (kind_ == KVCacheKind::kState) window_ = 2;  // the token to compute, and the state of the one before
  }

  int32_t block_size() const { return block_size_; }
  KVCacheKind kind() const { return kind_; }
  int32_t sliding_window() const { return kind_ == KVCacheKind::kSlidingWindow ? window_ : 0; }
  bool keeps_everything() const { return window_ == kEverything; }
  bool is_state() const { return kind_ == KVCacheKind::kState; }

  // The first block that is read when computing goes on at token `start`; those before it are not needed
  // again.
  int32_t first_needed_block(int32_t start) const {
    return keeps_everything() ? 0 : std::max(start - window_ + 1, 0) / block_size_;
  }
  // The first token from which on computing does not read `block`.
  int32_t first_start_behind(int32_t block) const {
    const int64_t token = int64_t{block + 1} * block_size_ + window_ - 1;
    return static_cast<int32_t>(std::min<int64_t>(token, kEverything));
  }
  // Blocks that must be cached right before a block boundary for a prefix to end there.
  int32_t num_blocks_for_hit() const {
    return keeps_everything() ? std::numeric_limits<int32_t>::max()
                              : std::max((window_ - 1 + block_size_ - 1) / block_size_, 1);
  }
  int32_t num_blocks(int32_t num_tokens) const { return (num_tokens + block_size_ - 1) / block_size_; }

  // The most blocks that one sequence of `num_tokens` holds at once when steps in flight compute at most
  // `max_tokens_in_flight` of it.
  int32_t max_blocks_held(int32_t num_tokens, int32_t max_tokens_in_flight) const {
    const int32_t all = num_blocks(num_tokens);
    if (keeps_everything()) return all;
    if (is_state()) return std::min(all, 2);  // the state a step reads, and the one it leaves
    // The tokens in flight and the window before them, which need not begin at a block's edge.
    const int64_t tokens = int64_t{window_} - 1 + max_tokens_in_flight;
    return static_cast<int32_t>(std::min<int64_t>(all, (tokens + block_size_ - 1) / block_size_ + 1));
  }

 private:
  static constexpr int32_t kEverything = std::numeric_limits<int32_t>::max();
  int32_t block_size_;
  KVCacheKind kind_;
  int32_t window_ = kEverything;
};

}  // namespace quire
