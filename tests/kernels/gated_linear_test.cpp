#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "linear_fixture.h"
#include "quire/kernels/cuda_device.h"

namespace quire {
namespace {

class GatedLinearTest : public LinearFixture {
 protected:
  void SetUp() override {
    LinearFixture::SetUp();
    if (kernels().linear_activate_and_mul == nullptr) GTEST_SKIP() << "its ops are called one by one";
  }
  // The shapes below are such as fill an H100 or H200.
  bool has_such_a_kernel() const {
    CudaDeviceLimits limits;
    return std::string_view(GetParam()->variant) == "sm_90" && cuda_device_limits(0, &limits) &&
           limits.num_sms == 132;
  }
  static Array<float> bias_of(int64_t n) {
    Array<float> bias(static_cast<size_t>(n));
    for (size_t i = 0; i < bias.size(); ++i) bias[i] = static_cast<float>(i % 7) - 3;
    return bias;
  }
  // With weights [n, k], of all these numbers of rows, the last of which is the highest. Rows of x and of the
  // outputs are parts of wider ones; how many others there are changes nothing.
  void expect_products(const std::vector<std::pair<int64_t, int64_t>>& weights,
                       const std::vector<int64_t>& numbers_of_rows) {
    constexpr int64_t kGap = 8;
    const int64_t most = numbers_of_rows.back();
    for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
      for (const auto& [n, k] : weights) {
        const Tensor x = std::move(Tensor(dtype, most, k, 8).randomize(1));
        const Tensor rows = std::move(Tensor(dtype, n, k).randomize(2, 0.1F));
        const Packed packed = pack(rows, dtype);
        reserve(most, n, k, dtype);
        const Array<float> bias = bias_of(n);
        for (const float* added : {static_cast<const float*>(nullptr), bias.data()}) {
          Tensor y(dtype, most, n);
          const Tensor sums(DType::kFloat32, most, n), expected(dtype, most, n / 2), all(dtype, most, n / 2);
          run(context(), sums, x, packed.weight, added);
          for (int64_t r = 0; r < most; ++r)
            for (int64_t i = 0; i < n; ++i) y.set(r, i, sums.get(r, i));  // rounded once
          kernels().activate_and_mul(context(), expected, y, Activation::kSilu);
          kernels().linear_activate_and_mul(context(), all, y, x, packed.weight, added, Activation::kSilu);
          expect_close(all, expected.values(), 4 * relative_tolerance(dtype), 4 * relative_tolerance(dtype));
          for (const int64_t m : numbers_of_rows) {
            SCOPED_TRACE(testing::Message() << dtype_name(dtype) << " m=" << m << " n=" << n << " k=" << k);
            const Tensor out(dtype, m, n / 2, kGap), unused(dtype, m, n);
            kernels().linear_activate_and_mul(context(), out, unused, x.view().rows(0, m), packed.weight,
                                              added, Activation::kSilu);
            if (has_such_a_kernel()) {
              EXPECT_EQ(unused.row_bytes(m - 1), std::string(static_cast<size_t>(n) * 2, '\xFF'))
                  << "the product was written";
            }
            wait_for_device();
            for (int64_t r = 0; r < m; ++r) {
              ASSERT_EQ(out.row_bytes(r), all.row_bytes(r)) << "row " << r;
              const auto* end = out.view().at(r) + n / 2 * 2;
              for (int64_t i = 0; i < kGap * 2; ++i) ASSERT_EQ(end[i], std::byte{0xFF}) << "beyond row " << r;
            }
          }
        }
      }
    }
  }
};

// y is rounded alike, but for sums that another order brings to the other side.
TEST_P(GatedLinearTest, ActivatedAndMultipliedIsItsOps) {
  for (const DType dtype : float_types()) {
    for (const int64_t m : {1, 3, 10, 17, 40, 64}) {
      for (const auto& [n, k] : {std::pair<int64_t, int64_t>{2, 64},
                                 {26, 31},
                                 {134, 80},
                                 {2208, 2048},
                                 {12304, 520},
                                 {70016, 72},
                                 {6000, 264},
                                 {1006, 576},
                                 {2200, 2048},
                                 {2200, 4096},
                                 {600, 8192}}) {
        const Tensor x = std::move(Tensor(dtype, m, k).randomize(1));
        const Tensor rows = std::move(Tensor(dtype, n, k).randomize(2, 0.1F));
        const Packed packed = pack(rows, dtype);
        reserve(m, n, k, dtype);
        const Array<float> bias = bias_of(n);
        for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh}) {
          for (const bool has_bias : {false, true}) {
            const float* added = has_bias ? bias.data() : nullptr;
            SCOPED_TRACE(testing::Message() << dtype_name(dtype) << " m=" << m << " n=" << n << " k=" << k
                                            << (has_bias ? " with bias" : ""));
            const Tensor y(dtype, m, n), expected(dtype, m, n / 2), out(dtype, m, n / 2);
            run(context(), y, x, packed.weight, added);
            kernels().activate_and_mul(context(), expected, y, activation);
            kernels().linear_activate_and_mul(context(), out, y, x, packed.weight, added, activation);
            expect_close(out, expected.values(), 4 * relative_tolerance(dtype),
                         4 * relative_tolerance(dtype));
          }
        }
      }
    }
  }
}

// A Hopper device has a kernel for many rows, and for those of a tile or two: of 128 by 128 outputs, sixteen
// or one along the rows before the next ones along the outputs. Few rows have tiles of 112 or 96 outputs
// where these come out more even, as on 132 multiprocessors.
TEST_P(GatedLinearTest, ManyRowsAreActivatedAndMultiplied) {
  if (!is_cuda()) GTEST_SKIP() << "all numbers of rows have one kernel";
  expect_products({{2048, 8}, {2016, 1032}}, {8190, 8192});
  expect_products({{33600, 8}, {33600, 328}}, {65, 128, 225, 256});
  expect_products({{28656, 8}, {28656, 328}}, {65, 128, 225, 256});
  expect_products({{24560, 264}}, {225, 256});
}

// Each of them, with gates on both sides of what bounds it.
TEST_P(GatedLinearTest, ManyRowsHaveEachActivation) {
  if (!is_cuda()) GTEST_SKIP() << "all numbers of rows have one kernel";
  constexpr int64_t kM = 250, kN = 33600, kK = 24;
  const Tensor x = std::move(Tensor(DType::kBFloat16, kM, kK).randomize(1, 3.0F));
  const Tensor rows = std::move(Tensor(DType::kBFloat16, kN, kK).randomize(2, 0.2F));
  const Packed packed = pack(rows, DType::kBFloat16);
  reserve(kM, kN, kK, DType::kBFloat16);
  for (const Activation activation :
       {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh, Activation::kRelu,
        Activation::kReluSquared, Activation::kClampedSwiglu}) {
    SCOPED_TRACE(testing::Message() << static_cast<int>(activation));
    const Tensor y(DType::kBFloat16, kM, kN), expected(DType::kBFloat16, kM, kN / 2);
    const Tensor out(DType::kBFloat16, kM, kN / 2);
    run(context(), y, x, packed.weight);
    kernels().activate_and_mul(context(), expected, y, activation);
    kernels().linear_activate_and_mul(context(), out, y, x, packed.weight, nullptr, activation);
    expect_close(out, expected.values(), 4 * relative_tolerance(DType::kBFloat16),
                 4 * relative_tolerance(DType::kBFloat16));
  }
}

QUIRE_FOR_EVERY_TABLE(GatedLinearTest);

}  // namespace
}  // namespace quire
