// Linears whose weights are int8 with a scale, and perhaps a zero point, for each output.
#include "kernel_test.h"

namespace quire {
namespace {

class QuantizedLinearTest : public KernelTest {
 protected:
  struct Quantized {
    Memory memory;
    Array<float> scales, zero_points;
    LinearWeight weight;
    std::vector<double> values;  // [n, k]: what it stands for
  };

  // Every byte occurs; those of other linears before it do not stay behind.
  Quantized quantize(int64_t n, int64_t k, DType dtype, bool with_zero_points) {
    Quantized out{Memory(kernels().linear_weight_bytes(n, k, DType::kInt8), 0),
                  Array<float>(static_cast<size_t>(n)),
                  Array<float>(static_cast<size_t>(n)),
                  {},
                  {}};
    std::vector<int8_t> rows(static_cast<size_t>(n * k));
    for (int64_t r = 0; r < n; ++r) {
      const auto i = static_cast<size_t>(r);
      out.scales[i] = 0.001F * static_cast<float>(1 + r % 5);
      out.zero_points[i] = with_zero_points ? static_cast<float>(r * 37 % 256 - 128) : 0.0F;
      for (int64_t c = 0; c < k; ++c) {
        const auto q = static_cast<int8_t>((r * 61 + c * 167 + (c >> 3) * 29) % 256 - 128);
        rows[static_cast<size_t>(r * k + c)] = q;
        out.values.push_back((double{static_cast<double>(q)} - static_cast<double>(out.zero_points[i])) *
                             static_cast<double>(out.scales[i]));
      }
    }
    const bool packs = kernels().linear_pack_rows != nullptr;
    out.weight = {.data = out.memory.data(),
                  .n = n,
                  .k = k,
                  .dtype = dtype,
                  .packed = packs,
                  .scales = out.scales.data(),
                  .zero_points = with_zero_points ? out.zero_points.data() : nullptr};
    if (packs) {
      // The lower half first: rows come in any order.
      const int64_t half = n / 3;
      const TensorView all(rows.data(), DType::kInt8, n, k);
      kernels().linear_pack_rows(context(), out.weight, half, all.rows(half, n - half));
      kernels().linear_pack_rows(context(), out.weight, 0, all.rows(0, half));
    } else {
      std::memcpy(out.memory.data(), rows.data(), rows.size());
    }
    return out;
  }

  // On a device many rows are multiplied with weights that were rounded to `dtype`: each has an error of its
  // own.
  double tolerance(DType dtype, int64_t k) {
    const double sum = 4e-6 * static_cast<double>(k);
    if (!is_cuda() || dtype == DType::kFloat32) return sum;
    return sum + 4 * std::sqrt(static_cast<double>(k)) * relative_tolerance(dtype);
  }
};

TEST_P(QuantizedLinearTest, MatchesTheReference) {
  // Widths that vectors of 16 bytes fit, and others; one row, a few, and more than are kept in registers.
  const int64_t shapes[][3] = {{1, 1, 16},   {1, 33, 48},   {2, 32, 64},    {3, 97, 31},    {9, 65, 80},
                               {16, 64, 96}, {17, 65, 144}, {33, 160, 544}, {65, 192, 512}, {129, 130, 1040}};
  for (const DType dtype : float_types()) {
    for (const auto& [m, n, k] : shapes) {
      for (const bool with_zero_points : {false, true}) {
        SCOPED_TRACE(testing::Message() << dtype_name(dtype) << " m=" << m << " n=" << n << " k=" << k
                                        << " zero points " << with_zero_points);
        const Tensor x = std::move(Tensor(dtype, m, k, 8).randomize(1));
        const Quantized quantized = quantize(n, k, dtype, with_zero_points);
        set_workspace(kernels().linear_workspace_bytes(m, quantized.weight));
        Array<float> bias(static_cast<size_t>(n));
        for (size_t i = 0; i < bias.size(); ++i) bias[i] = static_cast<float>(i % 7) - 3;
        const auto expected = reference::linear(x.values(), quantized.values, {bias.begin(), bias.end()},
                                                static_cast<size_t>(k));
        for (const DType out_dtype : {DType::kFloat32, dtype}) {
          const Tensor out(out_dtype, m, n, 1);
          kernels().linear(context(), out, x, quantized.weight, bias.data());
          expect_close(out, expected, tolerance(dtype, k), relative_tolerance(out_dtype));
        }
      }
    }
  }
}

TEST_P(QuantizedLinearTest, ARowAloneIsTheRowInABatchBitwise) {
  if (is_cuda()) GTEST_SKIP() << "the kernel is chosen by the number of rows";
  constexpr int64_t kRows = 40, kN = 131, kK = 1072;
  ThreadPool pool(3);
  for (const DType dtype : float_types()) {
    const Tensor x = std::move(Tensor(dtype, kRows, kK).randomize(3));
    const Quantized quantized = quantize(kN, kK, dtype, /*with_zero_points=*/true);
    set_workspace(kernels().linear_workspace_bytes(kRows, quantized.weight));
    const Tensor all(DType::kFloat32, kRows, kN);
    kernels().linear(context(&pool), all, x, quantized.weight, nullptr);
    for (const int64_t count : {1, 2, 5, 12, 13, 17}) {
      for (const int64_t begin : {int64_t{0}, int64_t{13}, kRows - count}) {
        const Tensor some(DType::kFloat32, count, kN);
        kernels().linear(context(), some, x.view().rows(begin, count), quantized.weight, nullptr);
        for (int64_t r = 0; r < count; ++r)
          ASSERT_EQ(some.row_bytes(r), all.row_bytes(begin + r))
              << dtype_name(dtype) << " " << count << " " << r;
      }
    }
  }
}

// Wide enough that threads share the panels, or blocks the rows.
TEST_P(QuantizedLinearTest, LargeProducts) {
  ThreadPool pool(2);
  const DType dtype = DType::kBFloat16;
  constexpr int64_t kN = 1056, kK = 2048;
  const Quantized quantized = quantize(kN, kK, dtype, /*with_zero_points=*/false);
  for (const int64_t m : {1, 8, 24, 64, 200}) {
    SCOPED_TRACE(m);
    const Tensor x = std::move(Tensor(dtype, m, kK).randomize(1));
    set_workspace(kernels().linear_workspace_bytes(m, quantized.weight));
    const auto expected = reference::linear(x.values(), quantized.values, {}, static_cast<size_t>(kK));
    const Tensor out(dtype, m, kN);
    kernels().linear(context(&pool), out, x, quantized.weight, nullptr);
    expect_close(out, expected, std::max(2e-3, tolerance(dtype, kK)), relative_tolerance(dtype));
  }
}

QUIRE_FOR_EVERY_TABLE(QuantizedLinearTest);

}  // namespace
}  // namespace quire
