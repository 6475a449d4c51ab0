#include "kernel_test.h"

namespace quire {
namespace {

class ElementOpsTest : public KernelTest {};

constexpr int64_t kWidths[] = {1, 15, 17, 64, 127, 2049};

TEST_P(ElementOpsTest, RmsNormMatchesTheReference) {
  for (const DType dtype : kFloatTypes) {
    for (const int64_t n : kWidths) {
      for (const int64_t rows : {1, 5}) {
        const Tensor x = std::move(Tensor(dtype, rows, n, 3).randomize(1, 4.0F));
        const Tensor weight = std::move(Tensor(dtype, 1, n).randomize(2));
        const Tensor out(dtype, rows, n, 1);
        const TensorView weights(weight.view().data, dtype, n);
        kernels().rms_norm(context(), out, x, weights, 1e-5F);
        const auto expected = reference::rms_norm(x.values(), weight.values(), 1e-5);
        expect_close(out, expected, 1e-6, relative_tolerance(dtype));
        kernels().rms_norm(context(), x, x, weights, 1e-5F);  // in place
        expect_close(x, expected, 1e-6, relative_tolerance(dtype));
      }
    }
  }
}

TEST_P(ElementOpsTest, RmsNormOfHeads) {
  for (const DType dtype : kFloatTypes) {
    const Tensor x = std::move(Tensor(dtype, 3, 5 * 48, 7).randomize(1));
    const Tensor weight = std::move(Tensor(dtype, 1, 48).randomize(2));
    const auto expected = reference::rms_norm(x.values(), weight.values(), 1e-6);
    const TensorView heads = x.view().heads(5, 48);
    kernels().rms_norm(context(), heads, heads, TensorView(weight.view().data, dtype, 48), 1e-6F);
    expect_close(x, expected, 1e-6, relative_tolerance(dtype));
  }
}

TEST_P(ElementOpsTest, FusedAddIsAddThenNormBitwise) {
  ThreadPool pool(2);
  for (const DType dtype : kFloatTypes) {
    for (const int64_t n : {int64_t{19}, int64_t{4096}}) {
      constexpr int64_t kRows = 33;
      const Tensor x = std::move(Tensor(dtype, kRows, n, 2).randomize(1));
      const Tensor residual = std::move(Tensor(dtype, kRows, n, 4).randomize(2));
      Tensor sum(dtype, kRows, n);
      for (int64_t r = 0; r < kRows; ++r)
        for (int64_t i = 0; i < n; ++i) sum.set(r, i, x.get(r, i) + residual.get(r, i));
      const Tensor weight = std::move(Tensor(dtype, 1, n).randomize(3));
      const TensorView weights(weight.view().data, dtype, n);
      const Tensor expected(dtype, kRows, n);
      kernels().rms_norm(context(), expected, sum, weights, 1e-5F);
      kernels().fused_add_rms_norm(context(&pool), x, residual, x, weights, 1e-5F);
      for (int64_t r = 0; r < kRows; ++r) {
        ASSERT_EQ(residual.row_bytes(r), sum.row_bytes(r));
        ASSERT_EQ(x.row_bytes(r), expected.row_bytes(r));
      }
    }
  }
}

TEST_P(ElementOpsTest, RotaryEmbeddingMatchesTheReference) {
  ThreadPool pool(2);
  for (const DType dtype : kFloatTypes) {
    for (const int rotary_dim : {16, 38, 64}) {
      constexpr int64_t kTokens = 40, kHeadSize = 64, kHeads = 3, kMaxPosition = 50;
      Tensor cos_sin(DType::kFloat32, kMaxPosition, rotary_dim);
      for (int64_t p = 0; p < kMaxPosition; ++p) {
        for (int i = 0; i < rotary_dim / 2; ++i) {
          const float angle = static_cast<float>(p) / (1.0F + static_cast<float>(i));
          cos_sin.set(p, i, std::cos(angle));
          cos_sin.set(p, rotary_dim / 2 + i, std::sin(angle));
        }
      }
      std::vector<int32_t> positions;
      for (int32_t t = 0; t < kTokens; ++t) positions.push_back(t * 7 % kMaxPosition);
      const Tensor q = std::move(Tensor(dtype, kTokens, kHeads * kHeadSize, 5).randomize(1));
      const Tensor k = std::move(Tensor(dtype, kTokens, kHeadSize, 9).randomize(2));
      auto expected_q = q.values(), expected_k = k.values();
      for (size_t t = 0; t < kTokens; ++t) {
        const float* angles = reinterpret_cast<const float*>(cos_sin.view().at(positions[t]));
        for (size_t h = 0; h < kHeads; ++h)
          reference::rotate(&expected_q[(t * kHeads + h) * kHeadSize], angles,
                            static_cast<size_t>(rotary_dim));
        reference::rotate(&expected_k[t * kHeadSize], angles, static_cast<size_t>(rotary_dim));
      }
      kernels().rotary_embedding(context(&pool), q.view().heads(kHeads, kHeadSize),
                                 k.view().heads(1, kHeadSize), int_view(positions), cos_sin);
      expect_close(q, expected_q, 1e-6, relative_tolerance(dtype));
      expect_close(k, expected_k, 1e-6, relative_tolerance(dtype));
    }
  }
}

TEST_P(ElementOpsTest, SiluAndMulMatchesTheReference) {
  ThreadPool pool(2);
  for (const DType dtype : kFloatTypes) {
    for (const int64_t n : {int64_t{1}, int64_t{17}, int64_t{5632}}) {
      for (const int64_t rows : {1, 9}) {
        const Tensor x = std::move(Tensor(dtype, rows, 2 * n, 3).randomize(1, 10.0F));
        std::vector<double> expected;
        for (int64_t r = 0; r < rows; ++r)
          for (int64_t i = 0; i < n; ++i)
            expected.push_back(reference::silu(static_cast<double>(x.get(r, i))) *
                               static_cast<double>(x.get(r, n + i)));
        const Tensor out(dtype, rows, n, 1);
        kernels().silu_and_mul(context(&pool), out, x);
        expect_close(out, expected, 1e-6, relative_tolerance(dtype));
      }
    }
  }
}

TEST_P(ElementOpsTest, SiluOfExtremesIsFinite) {
  Tensor x(DType::kFloat32, 1, 8);
  const float gates[] = {-200, -88.5F, 88.5F, 200};
  for (int i = 0; i < 4; ++i) {
    x.set(0, i, gates[i]);
    x.set(0, 4 + i, 1.0F);
  }
  const Tensor out(DType::kFloat32, 1, 4);
  kernels().silu_and_mul(context(), out, x);
  expect_close(out, {0, 0, 88.5, 200}, 1e-6, 1e-6);
}

TEST_P(ElementOpsTest, GatherRowsCopies) {
  for (const DType dtype : kFloatTypes) {
    const Tensor x = std::move(Tensor(dtype, 9, 21, 2).randomize(1));
    std::vector<int32_t> index = {8, 0, 3, 3};
    const Tensor out(dtype, 4, 21, 5);
    kernels().gather_rows(context(), out, x, int_view(index));
    for (int64_t r = 0; r < 4; ++r) EXPECT_EQ(out.row_bytes(r), x.row_bytes(index[static_cast<size_t>(r)]));
  }
}

TEST_P(ElementOpsTest, NoRowsIsNoWork) {
  const Tensor empty(DType::kFloat32, 0, 16);
  const Tensor weight = std::move(Tensor(DType::kFloat32, 1, 16).randomize(1));
  kernels().rms_norm(context(), empty, empty, TensorView(weight.view().data, DType::kFloat32, 16), 1e-5F);
  kernels().silu_and_mul(context(), empty, Tensor(DType::kFloat32, 0, 32));
}

QUIRE_FOR_EVERY_TABLE(ElementOpsTest);

}  // namespace
}  // namespace quire
