// Scratch for one forward pass: taken from the front, released all at once.
#pragma once

#include <cstdint>

#include "device/buffer.h"
#include "quire/kernels/tensor_view.h"
#include "util/check.h"

namespace quire {

// Sized before the first step and never grown: running out is a wrong plan, not a user's error.
// Not thread-safe; one per worker.
class ActivationArena {
 public:
  explicit ActivationArena(size_t bytes) : buffer_(bytes) {}

  // [d0, d1], dense, uninitialised, 64-byte aligned.
  TensorView take(DType dtype, int64_t d0, int64_t d1) {
    return {take_bytes(bytes(dtype, d0 * d1)), dtype, d0, d1};
  }
  TensorView take(DType dtype, int64_t d0) { return {take_bytes(bytes(dtype, d0)), dtype, d0}; }

  size_t mark() const { return used_; }
  // Gives back everything taken since `mark`.
  void release(size_t mark) { used_ = mark; }

  // What `take` uses up.
  static size_t bytes(DType dtype, int64_t numel) {
    return (static_cast<size_t>(numel) * dtype_bytes(dtype) + 63) / 64 * 64;
  }

 private:
  void* take_bytes(size_t bytes) {
    QUIRE_CHECK(used_ + bytes <= buffer_.size(), "activations need ", used_ + bytes, " bytes, planned ",
                buffer_.size());
    void* data = buffer_.data() + used_;
    used_ += bytes;
    return data;
  }

  Buffer buffer_;
  size_t used_ = 0;
};

}  // namespace quire
