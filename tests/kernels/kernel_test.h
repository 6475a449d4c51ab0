// Tensors that own their memory, and the tests' view of the kernel tables.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "device/thread_pool.h"
#include "float_formats.h"
#include "normal_numbers.h"
#include "quire/kernels/backend_registry.h"
#include "reference.h"
#include "test_memory.h"
#include "util/sanitizer_ranges.h"

namespace quire {

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
  QUIRE_RANGES_TOLD Tensor& randomize(uint32_t seed, float scale = 1.0F) {
    if (test_device().busy) wait_for_device();
    NormalNumbers normal(seed);
    const size_t bytes = dtype_bytes(view_.dtype);
    for (int64_t r = 0; r < view_.shape[0]; ++r) {
      std::byte* at = element(r, 0);
      sanitizer_writes(at, row_size());
      for (int64_t c = 0; c < view_.shape[1]; ++c, at += bytes)
        store_float(view_.dtype, at, scale * normal());
    }
    return *this;
  }
  void set(int64_t row, int64_t column, float x) {
    if (test_device().busy) wait_for_device();
    sanitizer_writes(element(row, column), dtype_bytes(view_.dtype));
    store_float(view_.dtype, element(row, column), x);
  }
  float get(int64_t row, int64_t column) const {
    if (test_device().busy) wait_for_device();
    sanitizer_reads(element(row, column), dtype_bytes(view_.dtype));
    return load_float(view_.dtype, element(row, column));
  }
  std::vector<double> values() const {
    wait_for_device();
    std::vector<double> all(static_cast<size_t>(view_.numel()));
    for (int64_t r = 0; r < view_.shape[0]; ++r) {
      sanitizer_reads(element(r, 0), row_size());
      load_row(r, all.data() + r * view_.shape[1]);
    }
    return all;
  }
  // All values, one row behind the other, as `dtype` holds them.
  QUIRE_RANGES_TOLD void store_to(std::byte* out, DType dtype) const {
    wait_for_device();
    const size_t bytes = dtype_bytes(view_.dtype), out_bytes = dtype_bytes(dtype);
    for (int64_t r = 0; r < view_.shape[0]; ++r) {
      const std::byte* at = element(r, 0);
      sanitizer_reads(at, row_size());
      sanitizer_writes(out, static_cast<size_t>(view_.shape[1]) * out_bytes);
      for (int64_t c = 0; c < view_.shape[1]; ++c, at += bytes, out += out_bytes)
        store_float(dtype, out, load_float(view_.dtype, at));
    }
  }
  // The bytes of a row, to compare bit for bit.
  std::string row_bytes(int64_t row) const {
    wait_for_device();
    return {reinterpret_cast<const char*>(view_.at(row)), row_size()};
  }
  const TensorView& view() const { return view_; }
  operator TensorView() const { return view_; }  // NOLINT: a tensor is passed where a view is asked for

 private:
  // In bytes, without its padding.
  size_t row_size() const { return static_cast<size_t>(view_.shape[1]) * dtype_bytes(view_.dtype); }
  QUIRE_RANGES_TOLD std::byte* element(int64_t row, int64_t column) const {
    return static_cast<std::byte*>(view_.data) +
           (row * view_.stride[0] + column) * static_cast<int64_t>(dtype_bytes(view_.dtype));
  }
  QUIRE_RANGES_TOLD void load_row(int64_t row, double* out) const {
    const size_t bytes = dtype_bytes(view_.dtype);
    const std::byte* at = element(row, 0);
    for (int64_t c = 0; c < view_.shape[1]; ++c, at += bytes)
      out[c] = static_cast<double>(load_float(view_.dtype, at));
  }
  TensorView view_;
  Memory memory_;
};

inline TensorView int_view(Array<int32_t>& values) {
  return {values.data(), DType::kInt32, static_cast<int64_t>(values.size())};
}
// What kernels wrote to an array.
template <typename T>
std::vector<T> read(const Array<T>& values) {
  wait_for_device();
  return {values.begin(), values.end()};
}

// The first value that is not within `absolute` + `relative` of its reference; as many as there are: none.
QUIRE_RANGES_TOLD inline size_t first_far(const double* actual, const double* expected, size_t n,
                                          double absolute, double relative) {
  size_t i = 0;  // NaN is far
  while (i < n && std::abs(actual[i] - expected[i]) <= absolute + relative * std::abs(expected[i])) ++i;
  return i;
}

// Every value within `absolute` + `relative` of its reference.
inline void expect_close(const Tensor& actual, const std::vector<double>& expected, double absolute,
                         double relative) {
  const std::vector<double> values = actual.values();
  ASSERT_EQ(values.size(), expected.size());
  const size_t i = first_far(values.data(), expected.data(), values.size(), absolute, relative);
  if (i < values.size()) FAIL() << "element " << i << ": " << values[i] << " for " << expected[i];
}

inline double relative_tolerance(DType dtype) {
  return dtype == DType::kFloat32 ? 2e-6 : dtype == DType::kFloat16 ? 1e-3 : 5e-3;
}

constexpr DType kFloatTypes[] = {DType::kFloat32, DType::kBFloat16};

// Tests that take one of this machine's tables.
class KernelTest : public testing::TestWithParam<const KernelTable*> {
 protected:
  void SetUp() override {
    if (!is_cuda()) return;
    TestDevice& device = test_device();
    device.runtime = cuda_runtime();
    ASSERT_NE(device.runtime, nullptr);
    ASSERT_EQ(device.runtime->create_stream(&device.stream), 0);
    if (GetParam()->create_state == nullptr) return;
    device.state = GetParam()->create_state(&device.error);
    ASSERT_NE(device.state, nullptr) << device.error.text;
  }
  void TearDown() override {
    if (!is_cuda()) return;
    TestDevice& device = test_device();
    wait_for_device();
    workspace_.reset();
    if (device.state != nullptr) GetParam()->destroy_state(device.state);
    if (device.stream != nullptr) device.runtime->destroy_stream(device.stream);
    device = {};
  }

  bool is_cuda() const { return std::string_view(GetParam()->backend) == "cuda"; }
  // Asked for each op that is called.
  const KernelTable& kernels() const {
    test_device().busy = test_device().runtime != nullptr;
    return *GetParam();
  }
  std::vector<DType> float_types() const {
    std::vector<DType> types(std::begin(kFloatTypes), std::end(kFloatTypes));
    if (is_cuda()) types.push_back(DType::kFloat16);
    return types;
  }
  LaunchContext context(ThreadPool* pool = nullptr) {
    TestDevice& device = test_device();
    device.busy = device.runtime != nullptr;
    return {.stream = device.stream,
            .state = device.state,
            .error = &device.error,
            .host = pool != nullptr && !is_cuda() ? pool->host_parallel() : nullptr,
            .workspace = workspace_ != nullptr ? workspace_->data() : nullptr,
            .workspace_bytes = workspace_ != nullptr ? workspace_->bytes() : 0};
  }
  void set_workspace(size_t bytes) {
    workspace_.reset();
    workspace_ = std::make_unique<ScratchMemory>(bytes);
  }
  // The same with bytes behind it that no op may write, which are looked at where the host can.
  void set_guarded_workspace(size_t bytes) {
    guard_ = bytes;
    set_workspace(bytes + kGuardBytes);
  }
  void expect_whole_guard() const {
    if (is_cuda()) return;
    const auto* guard = static_cast<const std::byte*>(workspace_->data()) + guard_;
    for (size_t i = 0; i < kGuardBytes; ++i) ASSERT_EQ(guard[i], std::byte{0xFF}) << "beyond the workspace";
  }
  static void sync() { wait_for_device(); }

 private:
  static constexpr size_t kGuardBytes = 4096;

  std::unique_ptr<ScratchMemory> workspace_;
  size_t guard_ = 0;  // where it begins
};

inline std::string table_name(const testing::TestParamInfo<const KernelTable*>& info) {
  return info.param->variant;
}

inline std::vector<const KernelTable*> cuda_kernel_tables() {
  const KernelTable* table = cuda_kernel_table(0);
  return table != nullptr ? std::vector{table} : std::vector<const KernelTable*>{};
}
// All CPU tables, and that of CUDA device 0 if there is one.
inline std::vector<const KernelTable*> kernel_tables() {
  std::vector<const KernelTable*> tables(cpu_kernel_tables().begin(), cpu_kernel_tables().end());
  for (const KernelTable* table : cuda_kernel_tables()) tables.push_back(table);
  return tables;
}

#define QUIRE_FOR_EVERY_TABLE(fixture) \
  INSTANTIATE_TEST_SUITE_P(Tables, fixture, testing::ValuesIn(kernel_tables()), table_name)

#define QUIRE_FOR_CUDA_TABLES(fixture)                    \
  GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(fixture); \
  INSTANTIATE_TEST_SUITE_P(Tables, fixture, testing::ValuesIn(cuda_kernel_tables()), table_name)

}  // namespace quire
