// KV cache memory that knows when it is read wrongly. In place of keys and values, a slot holds a hash of
// every token up to its position; a state block holds a hash of every token the state has seen.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "messages/scheduler_output.h"

namespace quire {

// One request in one step: tokens [begin, end) are computed.
struct ShadowTokens {
  RequestId request_id = 0;
  const std::vector<BlockId>* blocks = nullptr;     // of the group
  const std::vector<uint64_t>* prefixes = nullptr;  // [n]: hash of the first n tokens
  int32_t begin = 0, end = 0;
};

// One group. A step reads states, then stores, then attends: what one request stores is there for another's
// attention in the same step, but a state is not.
class ShadowKVGroup {
 public:
  explicit ShadowKVGroup(const KVCacheGroup& group)
      : group_(group),
        slots_per_block_(is_state() ? 1 : group.spec.block_size),
        mapped_(static_cast<size_t>(group.num_blocks)),
        slots_(static_cast<size_t>(group.num_blocks) * static_cast<size_t>(slots_per_block_), kGarbage) {}

  // What was in the blocks is lost either way.
  void change_memory(const KVExtent& extent) {
    ASSERT_GE(extent.first_block, 0);
    ASSERT_LE(extent.first_block + extent.num_blocks, group_.num_blocks);
    for (BlockId id = extent.first_block; id < extent.first_block + extent.num_blocks; ++id) {
      EXPECT_NE(mapped_[static_cast<size_t>(id)], extent.map != 0) << "block " << id << " already is";
      mapped_[static_cast<size_t>(id)] = extent.map != 0;
      std::fill_n(slots_.begin() + id * slots_per_block_, slots_per_block_, kGarbage);
    }
  }
  void copy(BlockId from, BlockId to) {
    EXPECT_TRUE(mapped_.at(static_cast<size_t>(from)) && mapped_.at(static_cast<size_t>(to)))
        << "block " << from << " or " << to << " has no memory";
    std::copy_n(slots_.begin() + from * slots_per_block_, slots_per_block_,
                slots_.begin() + to * slots_per_block_);
  }
  // Block 0 is not counted.
  int64_t mapped_bytes() const {
    return std::count(mapped_.begin() + 1, mapped_.end(), true) * group_.block_bytes();
  }

  void read_state(const ShadowTokens& tokens) {
    if (is_state() && tokens.begin > 0) expect_prefix(tokens, tokens.begin - 1);
  }
  void store(const ShadowTokens& tokens) {
    for (int32_t p = is_state() ? tokens.end - 1 : tokens.begin; p < tokens.end; ++p) {
      slot(tokens, p) = (*tokens.prefixes)[static_cast<size_t>(p) + 1];
    }
  }
  void attend(const ShadowTokens& tokens) {
    if (is_state()) return;
    const int32_t window = group_.spec.sliding_window;
    const bool windowed = group_.spec.kind == KVCacheKind::kSlidingWindow;
    for (int32_t p = windowed ? std::max(0, tokens.begin - window + 1) : 0; p < tokens.end; ++p) {
      expect_prefix(tokens, p);
    }
  }

 private:
  static constexpr uint64_t kGarbage = 0xDEADDEADDEADDEAD;

  bool is_state() const { return group_.spec.kind == KVCacheKind::kState; }
  void expect_prefix(const ShadowTokens& tokens, int32_t position) {
    EXPECT_EQ(slot(tokens, position), (*tokens.prefixes)[static_cast<size_t>(position) + 1])
        << "request " << tokens.request_id << " position " << position << " of " << tokens.end << ", block "
        << tokens.blocks->at(static_cast<size_t>(position / group_.spec.block_size)) << " of layer "
        << group_.layers.at(0);
  }
  uint64_t& slot(const ShadowTokens& tokens, int32_t position) {
    const BlockId id = tokens.blocks->at(static_cast<size_t>(position / group_.spec.block_size));
    EXPECT_NE(id, kNullBlock) << "request " << tokens.request_id << " position " << position;
    EXPECT_TRUE(mapped_.at(static_cast<size_t>(id))) << "block " << id << " has no memory";
    return slots_.at(static_cast<size_t>(id * slots_per_block_ + position % slots_per_block_));
  }

  KVCacheGroup group_;
  int32_t slots_per_block_;
  std::vector<bool> mapped_;
  std::vector<uint64_t> slots_;
};

}  // namespace quire
