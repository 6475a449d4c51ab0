// The smallest of many numbers, each of which changes often.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace quire {

// A tournament: set() costs log2(n) comparisons. Of equal values the one with the lowest index wins.
class MinTree {
 public:
  explicit MinTree(size_t num_values) {
    while (num_leaves_ < num_values) num_leaves_ *= 2;
    values_.assign(num_leaves_, std::numeric_limits<int64_t>::max());
    winners_.resize(2 * num_leaves_);
    for (size_t i = 0; i < num_leaves_; ++i) winners_[num_leaves_ + i] = static_cast<uint32_t>(i);
    for (size_t node = num_leaves_ - 1; node > 0; --node) play(node);
  }

  void set(size_t index, int64_t value) {
    values_[index] = value;
    for (size_t node = (num_leaves_ + index) / 2; node > 0; node /= 2) play(node);
  }
  int64_t operator[](size_t index) const { return values_[index]; }
  size_t min_index() const { return winners_[1]; }
  int64_t min() const { return values_[min_index()]; }

 private:
  void play(size_t node) {
    const uint32_t left = winners_[2 * node];
    const uint32_t right = winners_[2 * node + 1];
    winners_[node] = values_[right] < values_[left] ? right : left;
  }

  size_t num_leaves_ = 1;
  std::vector<int64_t> values_;
  // The least of each node's leaves; node 1 is the root, the leaves are the second half.
  std::vector<uint32_t> winners_;
};

}  // namespace quire
