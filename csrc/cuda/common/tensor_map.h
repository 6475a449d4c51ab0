// Descriptions of matrices for Hopper's tensor copies.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace quire::cuda {

// `count` matrices [rows, columns] of 16-bit elements, whose boxes of `box_rows` rows by 64 columns lie in
// shared memory as wgmma takes them, with the 128-byte swizzle; what is outside of a matrix reads as 0.
// Addresses and strides are multiples of 16 bytes, box_rows is at most 256. Returns false where the driver
// refuses.
bool make_tensor_map(CUtensorMap& map, const void* data, bool is_bf16, int64_t columns, int64_t rows,
                     int64_t row_stride_bytes, int64_t count, int64_t matrix_stride_bytes, int box_rows);

}  // namespace quire::cuda
