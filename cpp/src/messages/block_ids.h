// Lists of block ids, one per request and KV cache group, in one flat buffer: a message that is used again
// allocates nothing.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "messages/kv_cache_spec.h"

namespace quire {

using BlockIdsByGroup = std::vector<std::vector<BlockId>>;

class BlockIdLists {
 public:
  void clear(size_t num_groups) {
    num_groups_ = static_cast<uint32_t>(num_groups);
    ends_.clear();
    ids_.clear();
  }
  // Fills the next list: those of a row go group by group, row after row.
  void push(BlockId id) { ids_.push_back(id); }
  void push(std::span<const BlockId> ids) { ids_.insert(ids_.end(), ids.begin(), ids.end()); }
  void end_list() { ends_.push_back(static_cast<uint32_t>(ids_.size())); }
  void push_empty_rows(size_t count) {
    ends_.insert(ends_.end(), count * num_groups_, static_cast<uint32_t>(ids_.size()));
  }

  size_t num_groups() const { return num_groups_; }
  size_t num_rows() const { return num_groups_ == 0 ? 0 : ends_.size() / num_groups_; }
  std::span<const BlockId> at(size_t row, size_t group) const {
    const size_t list = row * num_groups_ + group;
    const size_t begin = list == 0 ? 0 : ends_[list - 1];
    return {ids_.data() + begin, ends_[list] - begin};
  }
  // Calls use(row, group, ids) for each list that is not empty.
  template <typename Use>
  void for_each(const Use& use) const {
    size_t begin = 0;
    for (size_t list = 0; list < ends_.size() && begin < ids_.size(); ++list) {
      if (ends_[list] == begin) continue;
      use(list / num_groups_, list % num_groups_, std::span(ids_).subspan(begin, ends_[list] - begin));
      begin = ends_[list];
    }
  }
  const std::vector<uint32_t>& raw_ends() const { return ends_; }
  const std::vector<BlockId>& raw_ids() const { return ids_; }
  // O(size): a row is taken back only when a request that is already scheduled gives way.
  void erase_row(size_t row) {
    const size_t first = row * num_groups_;
    const uint32_t begin = first == 0 ? 0 : ends_[first - 1];
    const uint32_t end = ends_[first + num_groups_ - 1];
    ids_.erase(ids_.begin() + begin, ids_.begin() + end);
    ends_.erase(ends_.begin() + static_cast<std::ptrdiff_t>(first),
                ends_.begin() + static_cast<std::ptrdiff_t>(first + num_groups_));
    for (size_t i = first; i < ends_.size(); ++i) ends_[i] -= end - begin;
  }

  template <class A>
  void fields(A& a) {
    a(num_groups_, ends_, ids_);
  }
  // False for lists that a sender cannot have built; checked after they were read from bytes.
  bool valid() const {
    if (num_groups_ == 0) return ends_.empty() && ids_.empty();
    uint32_t previous = 0;
    for (uint32_t end : ends_) {
      if (end < previous) return false;
      previous = end;
    }
    return ends_.size() % num_groups_ == 0 && previous == ids_.size();
  }

 private:
  uint32_t num_groups_ = 0;
  std::vector<uint32_t> ends_;  // of each list, in ids_
  std::vector<BlockId> ids_;
};

}  // namespace quire
