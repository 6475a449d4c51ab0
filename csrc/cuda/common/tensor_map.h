// Descriptions of matrices for Hopper's tensor copies.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace quire::cuda {

// What one copy brings, each at most 256. `columns` of 16-bit elements are the bytes of a swizzle: 64, 32
// or 16.
struct TensorBox {
  int rows, columns = 64, matrices = 1;
};

// `count` matrices [rows, columns] of 16-bit elements, whose boxes lie in shared memory as wgmma takes them,
// row behind row, swizzled; what is outside of a matrix reads as 0. Addresses and strides are multiples of 16
// bytes. Returns false where the driver refuses.
bool make_tensor_map(CUtensorMap& map, const void* data, bool is_bf16, int64_t columns, int64_t rows,
                     int64_t row_stride_bytes, int64_t count, int64_t matrix_stride_bytes, TensorBox box);

}  // namespace quire::cuda
