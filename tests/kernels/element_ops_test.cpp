#include "kernel_test.h"

namespace quire {
namespace {

class ElementOpsTest : public KernelTest {};

constexpr int64_t kWidths[] = {1, 15, 17, 64, 127, 2049};

TEST_P(ElementOpsTest, RmsNormMatchesTheReference) {
  for (const DType dtype : float_types()) {
    for (const int64_t n : kWidths) {
      for (const int64_t rows : {1, 5}) {
        const Tensor x = std::move(Tensor(dtype, rows, n, 3).randomize(1, 4.0F));
        const Tensor weight = std::move(Tensor(dtype, 1, n).randomize(2));
        const Tensor out(dtype, rows, n, 1);
        const TensorView weights(weight.view().data, dtype, n);
        kernels().rms_norm(context(), out, x, weights, 1e-5F, 0.0F);
        const auto expected = reference::rms_norm(x.values(), weight.values(), 1e-5);
        expect_close(out, expected, 1e-6, relative_tolerance(dtype));
        kernels().rms_norm(context(), x, x, weights, 1e-5F, 0.0F);  // in place
        expect_close(x, expected, 1e-6, relative_tolerance(dtype));
      }
    }
  }
}

TEST_P(ElementOpsTest, RmsNormOfHeads) {
  for (const DType dtype : float_types()) {
    for (const int head_size : {1, 16, 48, 64, 128, 256, 600}) {
      for (const int padding : {7, 16}) {  // the latter keeps vectors aligned
        const Tensor x = std::move(Tensor(dtype, 3, 5 * head_size, padding).randomize(1));
        const Tensor weight = std::move(Tensor(dtype, 1, head_size).randomize(2));
        const auto expected = reference::rms_norm(x.values(), weight.values(), 1e-6);
        const TensorView heads = x.view().heads(5, head_size);
        kernels().rms_norm(context(), heads, heads, TensorView(weight.view().data, dtype, head_size), 1e-6F,
                           0.0F);
        expect_close(x, expected, 1e-6, relative_tolerance(dtype));
      }
    }
  }
}

TEST_P(ElementOpsTest, RmsNormOfLongRows) {
  for (const DType dtype : float_types()) {
    for (const int64_t n : {4096, 8192, 8200, 16384, 20000, 20001}) {
      const Tensor x = std::move(Tensor(dtype, 2, n).randomize(1, 4.0F));
      const Tensor weight = std::move(Tensor(dtype, 1, n).randomize(2));
      const Tensor out(dtype, 2, n);
      kernels().rms_norm(context(), out, x, TensorView(weight.view().data, dtype, n), 1e-5F, 0.0F);
      expect_close(out, reference::rms_norm(x.values(), weight.values(), 1e-5), 1e-6,
                   relative_tolerance(dtype));
    }
  }
}

TEST_P(ElementOpsTest, AWeightMayBeStoredLessOne) {
  for (const DType dtype : float_types()) {
    for (const int64_t n : {19, 2048}) {
      const Tensor x = std::move(Tensor(dtype, 3, n).randomize(1));
      const Tensor residual = std::move(Tensor(dtype, 3, n).randomize(2));
      const Tensor weight = std::move(Tensor(dtype, 1, n).randomize(3, 0.2F));
      const TensorView weights(weight.view().data, dtype, n);
      const Tensor out(dtype, 3, n);
      kernels().rms_norm(context(), out, x, weights, 1e-5F, 1.0F);
      expect_close(out, reference::rms_norm(x.values(), weight.values(), 1e-5, 1), 1e-6,
                   relative_tolerance(dtype));
      kernels().fused_add_rms_norm(context(), out, residual, x, weights, 1e-5F, 1.0F);
      expect_close(out, reference::rms_norm(residual.values(), weight.values(), 1e-5, 1), 1e-6,
                   relative_tolerance(dtype));
    }
  }
}

TEST_P(ElementOpsTest, LayerNormMatchesTheReference) {
  ThreadPool pool(2);
  for (const DType dtype : float_types()) {
    for (const int64_t n : {int64_t{1}, int64_t{17}, int64_t{64}, int64_t{127}, int64_t{4096}}) {
      for (const int64_t padding : {0, 3}) {
        const Tensor noise = std::move(Tensor(dtype, 5, n).randomize(1));
        Tensor x(dtype, 5, n, padding);  // far from zero, as a sum of squares would not forgive
        for (int64_t r = 0; r < 5; ++r)
          for (int64_t i = 0; i < n; ++i) x.set(r, i, noise.get(r, i) + 30.0F);
        const Tensor weight = std::move(Tensor(dtype, 1, n).randomize(2));
        const Tensor bias = std::move(Tensor(dtype, 1, n).randomize(3));
        const TensorView weights(weight.view().data, dtype, n), biases(bias.view().data, dtype, n);
        const auto expected = reference::layer_norm(x.values(), weight.values(), bias.values(), 1e-5);
        const auto unbiased = reference::layer_norm(x.values(), weight.values(), {}, 1e-5);
        const Tensor out(dtype, 5, n, padding);
        kernels().layer_norm(context(&pool), out, x, weights, TensorView(nullptr, dtype, n), 1e-5F);
        expect_close(out, unbiased, 2e-5, relative_tolerance(dtype));
        kernels().layer_norm(context(&pool), x, x, weights, biases, 1e-5F);  // in place
        expect_close(x, expected, 2e-5, relative_tolerance(dtype));
      }
    }
  }
}

TEST_P(ElementOpsTest, FusedAddIsAddThenNormBitwise) {
  ThreadPool pool(2);
  for (const DType dtype : float_types()) {
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
      kernels().rms_norm(context(), expected, sum, weights, 1e-5F, 0.0F);
      kernels().fused_add_rms_norm(context(&pool), x, residual, x, weights, 1e-5F, 0.0F);
      for (int64_t r = 0; r < kRows; ++r) {
        ASSERT_EQ(residual.row_bytes(r), sum.row_bytes(r));
        ASSERT_EQ(x.row_bytes(r), expected.row_bytes(r));
      }
    }
  }
}

TEST_P(ElementOpsTest, FusedNormAddIsItsOpsBitwise) {
  if (kernels().fused_norm_add_rms_norm == nullptr) GTEST_SKIP() << "its ops are called one by one";
  constexpr int64_t kRows = 3;
  for (const DType dtype : float_types()) {
    for (const int64_t n : {1, 19, 3584, 8200, 20000}) {
      for (const int64_t padding : {0, 16, 3}) {  // with 3, vectors are not aligned
        SCOPED_TRACE(testing::Message() << dtype_name(dtype) << " " << n << " " << padding);
        const Tensor x = std::move(Tensor(dtype, kRows, n, padding).randomize(1, 4.0F));
        const Tensor residual = std::move(Tensor(dtype, kRows, n, 2 * padding).randomize(2));
        const Tensor out = std::move(Tensor(dtype, kRows, n, padding).randomize(1, 4.0F));
        const Tensor sum = std::move(Tensor(dtype, kRows, n, 2 * padding).randomize(2));
        const Tensor x_weight = std::move(Tensor(dtype, 1, n).randomize(3, 0.2F));
        const Tensor weight = std::move(Tensor(dtype, 1, n).randomize(4));
        const RmsNormParams x_norm = {TensorView(x_weight.view().data, dtype, n), 1e-5F, 1.0F};
        const RmsNormParams norm = {TensorView(weight.view().data, dtype, n), 1e-3F, 0.0F};
        const TensorView input = padding == 0 ? out.view() : x.view();  // in place, or x is read again below
        kernels().fused_norm_add_rms_norm(context(), out, residual, input, x_norm, norm);
        kernels().rms_norm(context(), x, x, x_norm.weight, x_norm.eps, x_norm.weight_offset);
        kernels().fused_add_rms_norm(context(), x, sum, x, norm.weight, norm.eps, norm.weight_offset);
        for (int64_t r = 0; r < kRows; ++r) {
          ASSERT_EQ(residual.row_bytes(r), sum.row_bytes(r));
          ASSERT_EQ(out.row_bytes(r), x.row_bytes(r));
        }
      }
    }
  }
}

TEST_P(ElementOpsTest, RotaryEmbeddingMatchesTheReference) {
  ThreadPool pool(2);
  constexpr int64_t kTokens = 40, kHeadSize = 64, kHeads = 3, kMaxPosition = 50;
  for (const DType dtype : float_types()) {
    for (const int rotary_dim : {16, 38, 64}) {
      Tensor cos_sin(DType::kFloat32, kMaxPosition, rotary_dim);
      for (int64_t p = 0; p < kMaxPosition; ++p) {
        for (int i = 0; i < rotary_dim / 2; ++i) {
          const float angle = static_cast<float>(p) / (1.0F + static_cast<float>(i));
          cos_sin.set(p, i, std::cos(angle));
          cos_sin.set(p, rotary_dim / 2 + i, std::sin(angle));
        }
      }
      Array<int32_t> positions;
      for (int32_t t = 0; t < kTokens; ++t) positions.push_back(t * 7 % kMaxPosition);
      for (const bool interleaved : {false, true}) {
        for (const int padding : {5, 64}) {  // the latter keeps vectors aligned
          const Tensor q = std::move(Tensor(dtype, kTokens, kHeads * kHeadSize, padding).randomize(1));
          const Tensor k = std::move(Tensor(dtype, kTokens, kHeadSize, padding).randomize(2));
          auto expected_q = q.values(), expected_k = k.values();
          for (size_t t = 0; t < kTokens; ++t) {
            const float* angles = reinterpret_cast<const float*>(cos_sin.view().at(positions[t]));
            const auto rotate = [&](double& head) {
              reference::rotate(&head, angles, static_cast<size_t>(rotary_dim), interleaved);
            };
            for (size_t h = 0; h < kHeads; ++h) rotate(expected_q[(t * kHeads + h) * kHeadSize]);
            rotate(expected_k[t * kHeadSize]);
          }
          kernels().rotary_embedding(context(&pool), q.view().heads(kHeads, kHeadSize),
                                     k.view().heads(1, kHeadSize), int_view(positions), cos_sin, interleaved);
          expect_close(q, expected_q, 1e-6, relative_tolerance(dtype));
          expect_close(k, expected_k, 1e-6, relative_tolerance(dtype));
        }
      }
    }
  }
}

TEST_P(ElementOpsTest, ActivationsMatchTheReference) {
  ThreadPool pool(2);
  const std::pair<Activation, double (*)(double)> activations[] = {
      {Activation::kSilu, reference::silu},
      {Activation::kGelu, reference::gelu},
      {Activation::kGeluTanh, reference::gelu_tanh},
      {Activation::kRelu, [](double x) { return std::max(x, 0.0); }},
      {Activation::kReluSquared, [](double x) { return std::max(x, 0.0) * std::max(x, 0.0); }}};
  for (const DType dtype : float_types()) {
    for (const int64_t n : {int64_t{1}, int64_t{17}, int64_t{5632}}) {
      for (const int64_t rows : {1, 9}) {
        for (const auto& [activation, function] : activations) {
          SCOPED_TRACE(testing::Message() << dtype_name(dtype) << " " << n << " " << int(activation));
          const bool steep = activation == Activation::kSilu;
          const Tensor x = std::move(Tensor(dtype, rows, 2 * n, 3).randomize(1, steep ? 10.0F : 3.0F));
          std::vector<double> expected, product;
          for (int64_t r = 0; r < rows; ++r) {
            for (int64_t i = 0; i < 2 * n; ++i)
              expected.push_back(function(static_cast<double>(x.get(r, i))));
            for (int64_t i = 0; i < n; ++i)
              product.push_back(expected[static_cast<size_t>(r * 2 * n + i)] *
                                static_cast<double>(x.get(r, n + i)));
          }
          const Tensor out(dtype, rows, n, 1);
          kernels().activate_and_mul(context(&pool), out, x, activation);
          expect_close(out, product, 2e-6, relative_tolerance(dtype));
          kernels().activate(context(&pool), x, x, activation);  // in place
          expect_close(x, expected, 2e-6, relative_tolerance(dtype));
        }
      }
    }
  }
}

// Which is none without a factor.
TEST_P(ElementOpsTest, TheClampedActivationMatchesTheReference) {
  for (const DType dtype : float_types()) {
    for (const int64_t n : {int64_t{17}, int64_t{2880}}) {
      const Tensor x = std::move(Tensor(dtype, 5, 2 * n, n % 2).randomize(1, 6.0F));
      std::vector<double> expected;
      for (int64_t r = 0; r < 5; ++r) {
        for (int64_t i = 0; i < n; ++i) {
          const double gate = std::min(static_cast<double>(x.get(r, i)), 7.0);
          const double up = std::clamp(static_cast<double>(x.get(r, n + i)), -7.0, 7.0);
          expected.push_back(gate / (1 + std::exp(-1.702 * gate)) * (up + 1));
        }
      }
      const Tensor out(dtype, 5, n, 1);
      kernels().activate_and_mul(context(), out, x, Activation::kClampedSwiglu);
      expect_close(out, expected, 1e-5, relative_tolerance(dtype));
    }
  }
}

TEST_P(ElementOpsTest, AddMatchesTheReference) {
  ThreadPool pool(2);
  for (const DType dtype : float_types()) {
    for (const int64_t n : {int64_t{1}, int64_t{17}, int64_t{4096}}) {
      for (const int64_t padding : {0, 3}) {
        const Tensor x = std::move(Tensor(dtype, 9, n, padding).randomize(1));
        const Tensor y = std::move(Tensor(dtype, 9, n, 2 * padding).randomize(2));
        std::vector<double> expected = x.values();
        const std::vector<double> addends = y.values();
        for (size_t i = 0; i < expected.size(); ++i) expected[i] += addends[i];
        kernels().add(context(&pool), x, y);
        expect_close(x, expected, 1e-6, relative_tolerance(dtype));
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
  kernels().activate_and_mul(context(), out, x, Activation::kSilu);
  expect_close(out, {0, 0, 88.5, 200}, 1e-6, 1e-6);
}

TEST_P(ElementOpsTest, SoftCapBendsTowardsItsBound) {
  for (const int64_t padding : {0, 1}) {
    const Tensor x = std::move(Tensor(DType::kFloat32, 3, 1003, padding).randomize(1, 50.0F));
    std::vector<double> expected = x.values();
    for (double& value : expected) value = 30 * std::tanh(value / 30);
    kernels().soft_cap(context(), x, 30.0F);
    expect_close(x, expected, 5e-6, 1e-6);
  }
}

TEST_P(ElementOpsTest, ScaleMultipliesAndRounds) {
  for (const DType dtype : float_types()) {
    for (const int64_t padding : {0, 3}) {
      const Tensor x = std::move(Tensor(dtype, 5, 1003, padding).randomize(1, 50.0F));
      std::vector<double> expected = x.values();
      for (double& value : expected) value *= 4.75;
      kernels().scale(context(), x, 4.75F);
      expect_close(x, expected, 0, relative_tolerance(dtype));
    }
  }
}

TEST_P(ElementOpsTest, RandomNumbersAreUniformAndTheSameEverywhere) {
  constexpr int64_t kRows = 3, kColumns = 33335;
  ThreadPool pool(2);
  for (const DType dtype : float_types()) {
    const Tensor out(dtype, kRows, kColumns), again(dtype, kRows, kColumns), other(dtype, kRows, kColumns);
    kernels().fill_random(context(&pool), out, 0.5F, 7);
    kernels().fill_random(context(), other, 0.5F, 8);
    sync();
    double sum = 0, squares = 0, highest = 0;
    int same = 0;
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t i = 0; i < kColumns; ++i) {
        const auto x = static_cast<double>(out.get(r, i));
        ASSERT_TRUE(x >= -0.5 && x < 0.5) << x;
        sum += x;
        squares += x * x;
        highest = std::max(highest, x);
        same += out.get(r, i) == other.get(r, i);
      }
    }
    constexpr double kCount = kRows * kColumns;
    EXPECT_NEAR(sum / kCount, 0, 5e-3);  // five standard deviations
    EXPECT_NEAR(squares / kCount, 1.0 / 12, 2e-3);
    EXPECT_GT(highest, 0.49);
    EXPECT_LT(same, 2000);
    if (dtype == DType::kFloat16) continue;  // not known to the CPU
    cpu_kernel_tables().back()->fill_random({}, again, 0.5F, 7);
    for (int64_t r = 0; r < kRows; ++r) ASSERT_EQ(again.row_bytes(r), out.row_bytes(r)) << dtype_name(dtype);
  }
}

TEST_P(ElementOpsTest, GatherRowsCopies) {
  for (const DType dtype : float_types()) {
    for (const int64_t n : {21, 24, 4096}) {
      for (const int64_t padding : {8, 5}) {
        const Tensor x = std::move(Tensor(dtype, 9, n, padding).randomize(1));
        Array<int32_t> index = {8, 0, 3, 3};
        const Tensor out(dtype, 4, n, padding);
        kernels().gather_rows(context(), out, x, int_view(index));
        for (int64_t r = 0; r < 4; ++r)
          EXPECT_EQ(out.row_bytes(r), x.row_bytes(index[static_cast<size_t>(r)]));
      }
    }
  }
}

TEST_P(ElementOpsTest, NoRowsIsNoWork) {
  const Tensor empty(DType::kFloat32, 0, 16);
  const Tensor weight = std::move(Tensor(DType::kFloat32, 1, 16).randomize(1));
  kernels().rms_norm(context(), empty, empty, TensorView(weight.view().data, DType::kFloat32, 16), 1e-5F,
                     0.0F);
  kernels().activate_and_mul(context(), empty, Tensor(DType::kFloat32, 0, 32), Activation::kSilu);
}

QUIRE_FOR_EVERY_TABLE(ElementOpsTest);

}  // namespace
}  // namespace quire
