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
    if (size_ == slots_.size()) grow();
    return slots_[index(size_++)];
  }
  // The oldest; the queue is not empty.
  T& front() { return slots_[first_]; }
  // The i-th oldest.
  T& operator[](size_t i) { return slots_[index(i)]; }
  const T& operator[](size_t i) const { return slots_[index(i)]; }
  // The oldest leaves; its slot, and what its buffers have grown to, wait for a push.
  void pop() {
    first_ = index(1);
    --size_;
  }

 private:
  size_t index(size_t i) const { return (first_ + i) % slots_.size(); }
  void grow() {
    std::rotate(slots_.begin(), slots_.begin() + static_cast<std::ptrdiff_t>(first_), slots_.end());
    first_ = 0;
    slots_.resize(slots_.size() * 2 + 2);
  }

  std::vector<T> slots_;
  size_t first_ = 0;
  size_t size_ = 0;
};

}  // namespace quire
