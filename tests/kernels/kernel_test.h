// Tensors that own their memory, and the tests' view of the kernel tables.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "device/thread_pool.h"
#include "quire/kernels/backend_registry.h"
#include "reference.h"

namespace quire {

inline float round_to(DType dtype, float x) {
  if (dtype == DType::kFloat32) return x;
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return std::bit_cast<float>((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000U);
}

// 64-byte aligned memory that begins as NaN in every float format, so that what a kernel forgets to write,
// or reads without being allowed to, shows.
class Memory {
 public:
  explicit Memory(size_t bytes, int fill = 0xFF)
      : data_(static_cast<std::byte*>(::operator new(bytes + 1, std::align_val_t{64}))), bytes_(bytes) {
    std::memset(data_.get(), fill, bytes);
  }
  std::byte* data() const { return data_.get(); }
  size_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(std::byte* p) const { ::operator delete(p, std::align_val_t{64}); }
  };
  std::unique_ptr<std::byte, Free> data_;
  size_t bytes_;
};

// A [rows, columns] matrix of floats whose rows lie `padding` elements further apart than need be.
class Tensor {
 public:
  Tensor(DType dtype, int64_t rows, int64_t columns, int64_t padding = 0)
      : view_(nullptr, dtype, rows, columns),
        memory_(static_cast<size_t>(rows * (columns + padding)) * dtype_bytes(dtype)) {
    view_.data = memory_.data();
    view_.stride[0] = columns + padding;
  }

  // Normal values, as the dtype holds them.
  Tensor& randomize(uint32_t seed, float scale = 1.0F) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0.0F, scale);
    for (int64_t r = 0; r < view_.shape[0]; ++r)
      for (int64_t c = 0; c < view_.shape[1]; ++c) set(r, c, normal(random));
    return *this;
  }
  void set(int64_t row, int64_t column, float x) {
    const float rounded = round_to(view_.dtype, x);
    if (view_.dtype == DType::kFloat32) {
      reinterpret_cast<float*>(view_.at(row))[column] = rounded;
    } else {
      reinterpret_cast<uint16_t*>(view_.at(row))[column] =
          static_cast<uint16_t>(std::bit_cast<uint32_t>(rounded) >> 16);
    }
  }
  float get(int64_t row, int64_t column) const {
    if (view_.dtype == DType::kFloat32) return reinterpret_cast<const float*>(view_.at(row))[column];
    const uint32_t bits = reinterpret_cast<const uint16_t*>(view_.at(row))[column];
    return std::bit_cast<float>(bits << 16);
  }
  std::vector<double> values() const {
    std::vector<double> all;
    for (int64_t r = 0; r < view_.shape[0]; ++r)
      for (int64_t c = 0; c < view_.shape[1]; ++c) all.push_back(static_cast<double>(get(r, c)));
    return all;
  }
  // The bytes of a row, to compare bit for bit.
  std::string row_bytes(int64_t row) const {
    return {reinterpret_cast<const char*>(view_.at(row)),
            static_cast<size_t>(view_.shape[1]) * dtype_bytes(view_.dtype)};
  }
  const TensorView& view() const { return view_; }
  operator TensorView() const { return view_; }  // NOLINT: a tensor is passed where a view is asked for

 private:
  TensorView view_;
  Memory memory_;
};

inline TensorView int_view(std::vector<int32_t>& values) {
  return {values.data(), DType::kInt32, static_cast<int64_t>(values.size())};
}

// Every value within `absolute` + `relative` of its reference.
inline void expect_close(const Tensor& actual, const std::vector<double>& expected, double absolute,
                         double relative) {
  const std::vector<double> values = actual.values();
  ASSERT_EQ(values.size(), expected.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const double bound = absolute + relative * std::abs(expected[i]);
    ASSERT_LE(std::abs(values[i] - expected[i]), bound)  // false for NaN
        << "element " << i << ": " << values[i] << " for " << expected[i];
  }
}

inline double relative_tolerance(DType dtype) { return dtype == DType::kFloat32 ? 2e-6 : 5e-3; }

// Tests that take one of this machine's tables.
class KernelTest : public testing::TestWithParam<const KernelTable*> {
 protected:
  const KernelTable& kernels() const { return *GetParam(); }
  LaunchContext context(ThreadPool* pool = nullptr) {
    return {.host = pool != nullptr ? pool->host_parallel() : nullptr,
            .workspace = workspace_ != nullptr ? workspace_->data() : nullptr,
            .workspace_bytes = workspace_ != nullptr ? workspace_->bytes() : 0};
  }
  void set_workspace(size_t bytes) { workspace_ = std::make_unique<Memory>(bytes); }

 private:
  std::unique_ptr<Memory> workspace_;
};

inline std::string table_name(const testing::TestParamInfo<const KernelTable*>& info) {
  return info.param->variant;
}

#define QUIRE_FOR_EVERY_TABLE(fixture)                                                                \
  INSTANTIATE_TEST_SUITE_P(Tables, fixture,                                                           \
                           testing::ValuesIn(cpu_kernel_tables().begin(), cpu_kernel_tables().end()), \
                           table_name)

constexpr DType kFloatTypes[] = {DType::kFloat32, DType::kBFloat16};

}  // namespace quire
