// Scratch for one forward pass: taken from the front, released all at once.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "device/buffer.h"
#include "device/device_arena.h"
#include "quire/export.h"
#include "quire/kernels/tensor_view.h"
#include "util/check.h"

namespace quire QUIRE_MODEL_API {

// Sized before the first step and never grown: running out is a wrong measurement, not a user's error.
// Not thread-safe; one per worker.
class ActivationArena {
 public:
  // Memory of the backend, 64-byte aligned, that outlives this.
  ActivationArena(std::byte* data, size_t bytes) : data_(data), bytes_(bytes) {}
  // No memory: its tensors must not be touched. For `peak`.
  struct Measuring {};
  explicit ActivationArena(Measuring)
      : data_(reinterpret_cast<std::byte*>(DeviceArena::kAlignment)),
        bytes_(std::numeric_limits<size_t>::max() / 2) {}
  // Host memory of its own.
  explicit ActivationArena(size_t bytes) : buffer_(bytes), data_(buffer_.data()), bytes_(bytes) {}
  ActivationArena(const ActivationArena&) = delete;
  ActivationArena& operator=(const ActivationArena&) = delete;

  // [d0, d1], dense, uninitialised, aligned as the arena's start is, up to DeviceArena::kAlignment.
  TensorView take(DType dtype, int64_t d0, int64_t d1) {
    return {take_bytes(bytes(dtype, d0 * d1)), dtype, d0, d1};
  }
  TensorView take(DType dtype, int64_t d0) { return {take_bytes(bytes(dtype, d0)), dtype, d0}; }

  // Takes everything up to the end of a tensor in it that was not taken here: a graph knows its own places.
  void reserve(const TensorView& view) {
    const auto* end = view.as<std::byte>() + static_cast<size_t>(view.numel()) * dtype_bytes(view.dtype);
    QUIRE_CHECK(end >= data_ && end <= data_ + bytes_, "not in this arena");
    used_ = std::max(used_, DeviceArena::rounded(static_cast<size_t>(end - data_)));
  }
  size_t mark() const { return used_; }
  // Gives back everything taken since `mark`.
  void release(size_t mark) { used_ = mark; }
  // The most that was taken at any time.
  size_t peak() const { return peak_; }

  // What `take` uses up.
  static size_t bytes(DType dtype, int64_t numel) {
    return DeviceArena::rounded(static_cast<size_t>(numel) * dtype_bytes(dtype));
  }

 private:
  void* take_bytes(size_t bytes) {
    QUIRE_CHECK(used_ + bytes <= bytes_, "activations need ", used_ + bytes, " bytes, planned ", bytes_);
    void* data = data_ + used_;
    used_ += bytes;
    peak_ = std::max(peak_, used_);
    return data;
  }

  Buffer buffer_;
  std::byte* data_;
  size_t bytes_;
  size_t used_ = 0, peak_ = 0;
};

}  // namespace quire
