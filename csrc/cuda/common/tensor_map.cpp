#include "common/tensor_map.h"

#include <algorithm>

#include "common/driver.h"

namespace quire::cuda {

bool make_tensor_map(CUtensorMap& map, const void* data, bool is_bf16, int64_t columns, int64_t rows,
                     int64_t row_stride_bytes, int64_t count, int64_t matrix_stride_bytes, TensorBox box) {
  static const auto kEncode =
      reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(find_driver_function("cuTensorMapEncodeTiled"));
  if (kEncode == nullptr) return false;
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows),
                              static_cast<cuuint64_t>(count)};
  // One matrix has no distance to the next, but must be given some.
  const int64_t distance = std::max(matrix_stride_bytes, row_stride_bytes);
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(row_stride_bytes), static_cast<cuuint64_t>(distance)};
  const cuuint32_t sides[] = {static_cast<cuuint32_t>(box.columns), static_cast<cuuint32_t>(box.rows),
                              static_cast<cuuint32_t>(box.matrices)},
                   steps[] = {1, 1, 1};
  const CUtensorMapSwizzle swizzle = box.columns == 64   ? CU_TENSOR_MAP_SWIZZLE_128B
                                     : box.columns == 32 ? CU_TENSOR_MAP_SWIZZLE_64B
                                                         : CU_TENSOR_MAP_SWIZZLE_32B;
  return kEncode(&map, is_bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 3,
                 const_cast<void*>(data), sizes, strides, sides, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                 swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                 CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

}  // namespace quire::cuda
