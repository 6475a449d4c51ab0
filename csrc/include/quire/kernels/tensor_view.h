// A borrowed, typed, strided view of memory: what every kernel takes and returns through.
#pragma once

#include <cstddef>
#include <cstdint>

namespace quire {

enum class DType : uint8_t { kFloat32, kFloat16, kBFloat16, kInt32, kInt64, kUInt8, kInt8 };

constexpr size_t dtype_bytes(DType dtype) {
  switch (dtype) {
    case DType::kInt64: return 8;
    case DType::kFloat32:
    case DType::kInt32: return 4;
    case DType::kFloat16:
    case DType::kBFloat16: return 2;
    case DType::kUInt8:
    case DType::kInt8: return 1;
  }
  return 0;
}

constexpr const char* dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kFloat32: return "float32";
    case DType::kFloat16: return "float16";
    case DType::kBFloat16: return "bfloat16";
    case DType::kInt32: return "int32";
    case DType::kInt64: return "int64";
    case DType::kUInt8: return "uint8";
    case DType::kInt8: return "int8";
  }
  return "?";
}

// Up to four dimensions; strides count elements. Does not own `data`, which may be null only when a
// dimension is zero. Views are values: copy them freely.
struct TensorView {
  static constexpr int kMaxRank = 4;

  void* data = nullptr;
  DType dtype = DType::kFloat32;
  int32_t rank = 0;
  int64_t shape[kMaxRank] = {1, 1, 1, 1};
  int64_t stride[kMaxRank] = {0, 0, 0, 0};

  TensorView() = default;
  // Dense, row-major.
  TensorView(void* data, DType dtype, int64_t d0) : TensorView(data, dtype, 1, d0, 1, 1, 1) {}
  TensorView(void* data, DType dtype, int64_t d0, int64_t d1) : TensorView(data, dtype, 2, d0, d1, 1, 1) {}
  TensorView(void* data, DType dtype, int64_t d0, int64_t d1, int64_t d2)
      : TensorView(data, dtype, 3, d0, d1, d2, 1) {}

  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
  int64_t numel() const { return shape[0] * shape[1] * shape[2] * shape[3]; }
  std::byte* at(int64_t i) const {
    return static_cast<std::byte*>(data) + i * stride[0] * static_cast<int64_t>(dtype_bytes(dtype));
  }

  // Rows [begin, begin + count) of the first dimension.
  TensorView rows(int64_t begin, int64_t count) const {
    TensorView view = *this;
    view.data = at(begin);
    view.shape[0] = count;
    return view;
  }
  // Columns [begin, begin + count) of the last dimension.
  TensorView columns(int64_t begin, int64_t count) const {
    TensorView view = *this;
    view.data =
        static_cast<std::byte*>(data) + begin * stride[rank - 1] * static_cast<int64_t>(dtype_bytes(dtype));
    view.shape[rank - 1] = count;
    return view;
  }
  // [T, heads * head_size] seen as [T, heads, head_size]; the columns must be contiguous.
  TensorView heads(int64_t num_heads, int64_t head_size) const {
    TensorView view = *this;
    view.rank = 3;
    view.shape[1] = num_heads;
    view.shape[2] = head_size;
    view.stride[1] = head_size;
    view.stride[2] = 1;
    return view;
  }

 private:
  TensorView(void* data, DType dtype, int32_t rank, int64_t d0, int64_t d1, int64_t d2, int64_t d3)
      : data(data), dtype(dtype), rank(rank), shape{d0, d1, d2, d3}, stride{d1 * d2 * d3, d2 * d3, d3, 1} {}
};

}  // namespace quire
