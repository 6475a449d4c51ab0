// Products with many weights, each of rows of its own, done as one.
//
// They go through the kernels of linear layers, which give a row the same bits in any company.
#pragma once

#include <cstddef>
#include <cstdint>

#include "isa/kernels.h"
#include "quire/kernels/launch_context.h"
#include "quire/kernels/tensor_view.h"

namespace quire::cpu {

// Rows are staged so many at a time; those of each product begin with a block of their own.
inline constexpr int64_t kStagedBlock = 16;

// One after the other in the workspace.
class Workspace {
 public:
  // `data` null: only to see what is used.
  explicit Workspace(void* data) : data_(static_cast<std::byte*>(data)) {}
  template <typename T>
  T* take(int64_t count) {
    return reinterpret_cast<T*>(take_bytes(static_cast<size_t>(count) * sizeof(T)));
  }
  std::byte* take_bytes(size_t bytes) {
    std::byte* out = data_ + used_;
    used_ += (bytes + 63) / 64 * 64;
    return out;
  }
  size_t used() const { return used_; }

 private:
  std::byte* data_;
  size_t used_ = 0;
};

// out = x * weight^T of each of `products`, on all threads. None reads what another writes. Their inputs and
// weights are of `dtype`; `staged` is where each has its place, `staged_bytes` of its blocks of rows for
// each.
void multiply_each(const Isa& isa, const LaunchContext& ctx, DType dtype, LinearArgs* products, int64_t count,
                   std::byte* staged);

}  // namespace quire::cpu
