// A first-in, first-out queue that allocates only to grow: its elements stay, and with them the memory they
// hold, to be used again.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace quire {

// T is movable and default-constructible. Not thread-safe. Growing moves the elements: references last until
// the next push.
template <class T>
class RingQueue {
 public:
  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }

  // The new last element, in whatever state it was popped: assign, swap or clear what matters.
  T& push() {
    if (size_ == ring_.size()) grow();
    return ring_[index(size_++)];
  }
  // The oldest; the queue is not empty.
  T& front() { return ring_[first_]; }
  // The youngest; the queue is not empty.
  T& back() { return ring_[index(size_ - 1)]; }
  // The i-th oldest.
  T& operator[](size_t i) { return ring_[index(i)]; }
  const T& operator[](size_t i) const { return ring_[index(i)]; }
  // The oldest leaves; its element, and what that has grown to, waits for a push.
  void pop() {
    first_ = index(1);
    --size_;
  }

 private:
  size_t index(size_t i) const { return (first_ + i) % ring_.size(); }
  void grow() {
    std::rotate(ring_.begin(), ring_.begin() + static_cast<std::ptrdiff_t>(first_), ring_.end());
    first_ = 0;
    ring_.resize(ring_.size() * 2 + 2);
  }

  std::vector<T> ring_;
  size_t first_ = 0;
  size_t size_ = 0;
};

}  // namespace quire
