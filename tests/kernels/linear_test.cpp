#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <utility>
#include <vector>

#include "linear_fixture.h"

namespace quire {
namespace {

class LinearTest : public LinearFixture {
 protected:
  // Neither how many other rows there are nor what they hold changes a bit of a row; and an infinite weight
  // stays with its output.
  void expect_rows_to_depend_on_themselves(const std::vector<std::pair<int64_t, int64_t>>& weights,
                                           const std::vector<int64_t>& numbers_of_rows) {
    const int64_t most = numbers_of_rows.back();
    for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
      for (const auto& [n, k] : weights) {
        Tensor rows = std::move(Tensor(dtype, n, k).randomize(4, 0.1F));
        for (int64_t i = 0; i < k; ++i) rows.set(11, i, std::numeric_limits<float>::infinity());
        const Packed packed = pack(rows, dtype);
        const Tensor x = std::move(Tensor(dtype, most, k).randomize(3)), all(DType::kFloat32, most, n);
        reserve(most, n, k, dtype);
        run(context(), all, x, packed.weight);
        for (int64_t r = 0; r < most; ++r)
          for (int64_t i = 0; i < n; ++i)
            ASSERT_TRUE(i == 11 || std::isfinite(all.get(r, i))) << r << " " << i;
        for (const int64_t m : numbers_of_rows) {
          SCOPED_TRACE(testing::Message() << dtype_name(dtype) << " m=" << m << " n=" << n << " k=" << k);
          for (const int64_t kept : {int64_t{0}, m / 2, m - 1}) {
            Tensor others = std::move(Tensor(dtype, m, k).randomize(5));
            for (int64_t r = 0; r < m; ++r) {
              for (int64_t i = 0; i < k; ++i) {
                if (r == kept) {
                  others.set(r, i, x.get(r, i));
                } else if ((r + kept) % 2 == 0) {
                  others.set(r, i, std::numeric_limits<float>::quiet_NaN());
                }
              }
            }
            const Tensor out(DType::kFloat32, m, n);
            run(context(), out, others, packed.weight);
            ASSERT_EQ(out.row_bytes(kept), all.row_bytes(kept)) << "row " << kept;
          }
        }
      }
    }
  }
  // With weights [n, k], all these numbers of rows, which are parts of wider ones. What lies beside the
  // outputs, `gap` elements, stays.
  void expect_rows_match(const std::vector<std::pair<int64_t, int64_t>>& weights,
                         const std::vector<int64_t>& numbers_of_rows, int64_t gap) {
    const int64_t max_rows = *std::max_element(numbers_of_rows.begin(), numbers_of_rows.end());
    for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
      for (const auto& [n, k] : weights) {
        const Tensor x = std::move(Tensor(dtype, max_rows, k, 8).randomize(1));
        const Tensor rows = std::move(Tensor(dtype, n, k).randomize(2, 0.1F));
        const Packed packed = pack(rows, dtype);
        reserve(max_rows, n, k, dtype);
        Array<float> bias(static_cast<size_t>(n));
        for (size_t i = 0; i < bias.size(); ++i) bias[i] = static_cast<float>(i % 7) - 3;
        const auto expected =
            reference::linear(x.values(), rows.values(), {bias.begin(), bias.end()}, static_cast<size_t>(k));
        for (const int64_t m : numbers_of_rows) {
          for (const DType out_dtype : {DType::kFloat32, dtype}) {
            SCOPED_TRACE(testing::Message() << dtype_name(dtype) << " to " << dtype_name(out_dtype)
                                            << " m=" << m << " n=" << n << " k=" << k);
            const Tensor out(out_dtype, m, n, gap);
            run(context(), out, x.view().rows(0, m), packed.weight, bias.data());
            expect_close(out, {expected.begin(), expected.begin() + m * n}, 2e-6 * static_cast<double>(k),
                         relative_tolerance(out_dtype));
            const auto bytes = static_cast<int64_t>(dtype_bytes(out_dtype));
            for (int64_t r = 0; r < m; ++r) {
              const auto* end = out.view().at(r) + n * bytes;
              for (int64_t i = 0; i < gap * bytes; ++i)
                ASSERT_EQ(end[i], std::byte{0xFF}) << "beyond row " << r;
            }
          }
        }
      }
    }
  }
};

TEST_P(LinearTest, MatchesTheReference) {
  const int64_t shapes[][3] = {{1, 1, 16},   {1, 33, 48},   {2, 32, 64},    {7, 97, 31},   {16, 64, 80},
                               {17, 65, 96}, {31, 128, 37}, {33, 160, 544}, {65, 31, 528}, {129, 130, 1040}};
  for (const DType dtype : float_types()) {
    for (const auto& [m, n, k] : shapes) {
      SCOPED_TRACE(testing::Message() << dtype_name(dtype) << " m=" << m << " n=" << n << " k=" << k);
      const Tensor x = std::move(Tensor(dtype, m, k, 3).randomize(1));
      const Tensor rows = std::move(Tensor(dtype, n, k, 5).randomize(2, 0.1F));
      const Packed packed = pack(rows, dtype);
      reserve(m, n, k, dtype);
      Array<float> bias(static_cast<size_t>(n));
      for (size_t i = 0; i < bias.size(); ++i) bias[i] = static_cast<float>(i % 7) - 3;
      const auto expected =
          reference::linear(x.values(), rows.values(), {bias.begin(), bias.end()}, static_cast<size_t>(k));
      for (const DType out_dtype : {DType::kFloat32, dtype}) {
        const Tensor out(out_dtype, m, n, 1);
        run(context(), out, x, packed.weight, bias.data());
        expect_close(out, expected, 2e-6 * static_cast<double>(k), relative_tolerance(out_dtype));
      }
    }
  }
}

// Shapes as models have them: vectors of 16 bytes fit, and a row takes several tiles.
TEST_P(LinearTest, MatchesTheReferenceForWholeVectors) {
  for (const DType dtype : float_types()) {
    for (const int64_t m : {1, 2, 3, 8, 9, 40}) {
      for (const auto& [n, k] : {std::pair<int64_t, int64_t>{192, 256}, {64, 1024}, {320, 128}}) {
        SCOPED_TRACE(testing::Message() << dtype_name(dtype) << " m=" << m << " n=" << n << " k=" << k);
        const Tensor x = std::move(Tensor(dtype, m, k, 64).randomize(1));  // part of wider rows
        const Tensor rows = std::move(Tensor(dtype, n, k).randomize(2, 0.1F));
        const Packed packed = pack(rows, dtype);
        reserve(m, n, k, dtype);
        const auto expected = reference::linear(x.values(), rows.values(), {}, static_cast<size_t>(k));
        for (const DType out_dtype : {DType::kFloat32, dtype}) {
          for (const int64_t padding : {0, 32}) {
            const Tensor out(out_dtype, m, n, padding);
            run(context(), out, x, packed.weight);
            expect_close(out, expected, 2e-6 * static_cast<double>(k), relative_tolerance(out_dtype));
            const size_t gap = static_cast<size_t>(padding) * dtype_bytes(out_dtype);
            for (int64_t r = 0; r < m; ++r) {
              const auto* end = out.view().at(r) + n * static_cast<int64_t>(dtype_bytes(out_dtype));
              for (size_t i = 0; i < gap; ++i) ASSERT_EQ(end[i], std::byte{0xFF}) << "beyond row " << r;
            }
          }
        }
      }
    }
  }
}

// A backend adds to a sum or leaves it as it is, and says which. The algorithm for a shape that was never
// seen is found by running several, of which the sum must know nothing.
TEST_P(LinearTest, AddsToASumOrLeavesItAlone) {
  ASSERT_EQ(kernels().linear_add != nullptr, is_cuda());
  if (!is_cuda()) return;
  int64_t next_k = 272;  // each shape for the first time
  for (const DType dtype : float_types()) {
    for (const int64_t m : {1, 3, 40, 65, 300, 700, 1500}) {
      const int64_t n = 328, k = next_k += 8;
      SCOPED_TRACE(testing::Message() << dtype_name(dtype) << " m=" << m << " k=" << k);
      const Tensor x = std::move(Tensor(dtype, m, k, 8).randomize(1));
      const Tensor rows = std::move(Tensor(dtype, n, k).randomize(2, 0.1F));
      const Packed packed = pack(rows, dtype);
      reserve(m, n, k, dtype);
      const Tensor sum = std::move(Tensor(dtype, m, n, 8).randomize(3)), scratch(dtype, m, n, 8);
      const std::vector<double> before = sum.values();
      const std::vector<double> product =
          reference::linear(x.values(), rows.values(), {}, static_cast<size_t>(k));
      const Array<float> bias(static_cast<size_t>(n));
      EXPECT_FALSE(kernels().linear_add(context(), sum, scratch, x, packed.weight, bias.data()));
      EXPECT_EQ(sum.values(), before);
      const bool has_added = kernels().linear_add(context(), sum, scratch, x, packed.weight, nullptr);
      const std::vector<double> after = sum.values();
      if (!has_added) {
        EXPECT_EQ(after, before);
        EXPECT_LE(m, 64);
        continue;
      }
      EXPECT_TRUE(m > 1 || dtype == DType::kFloat32);
      for (size_t i = 0; i < after.size(); ++i) {
        const double expected = before[i] + product[i];
        const double rounded = relative_tolerance(dtype) * (std::abs(product[i]) + std::abs(expected));
        ASSERT_NEAR(after[i], expected, 2e-6 * static_cast<double>(k) + rounded) << "element " << i;
      }
    }
  }
}

// A device has kernels for one row: with the weight in registers, or in slots of shared memory, of one to
// sixteen rows, which are filled once and more often.
TEST_P(LinearTest, ARowAloneMatchesTheReference) {
  for (const DType dtype : float_types()) {
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{1, 8},
                               {7, 2048},
                               {300, 2056},
                               {140, 4096},
                               {133, 8200},
                               {265, 16384},
                               {40, 16392},
                               {1500, 576},
                               {1500, 1024},
                               {40000, 512},
                               {5000, 2880},
                               {3700, 3840},
                               {800, 16384}}) {
      // A CPU multiplies one row as it does several.
      if (!is_cuda() && n * k > 700'000) continue;
      SCOPED_TRACE(testing::Message() << dtype_name(dtype) << " n=" << n << " k=" << k);
      const Tensor x = std::move(Tensor(dtype, 1, k).randomize(1));
      const Tensor rows = std::move(Tensor(dtype, n, k).randomize(2, 0.1F));
      const Packed packed = pack(rows, dtype);
      reserve(1, n, k, dtype);
      Array<float> bias(static_cast<size_t>(n));
      for (size_t i = 0; i < bias.size(); ++i) bias[i] = static_cast<float>(i % 7) - 3;
      const auto expected =
          reference::linear(x.values(), rows.values(), {bias.begin(), bias.end()}, static_cast<size_t>(k));
      for (const DType out_dtype : {DType::kFloat32, dtype}) {
        const Tensor out(out_dtype, 1, n);
        run(context(), out, x, packed.weight, bias.data());
        expect_close(out, expected, 2e-6 * static_cast<double>(k), relative_tolerance(out_dtype));
      }
    }
  }
}

// A device has a kernel for 2 to 16 rows: outputs are divided among blocks, which have up to 16, 32, 64 or
// 128 of them at once, and the depth among warps. Rows of x and of the output are parts of wider ones.
TEST_P(LinearTest, FewRowsMatchTheReference) {
  if (!is_cuda()) GTEST_SKIP() << "all numbers of rows have one kernel";
  expect_rows_match({{1, 8},
                     {7, 200},
                     {264, 520},
                     {5003, 72},
                     {9001, 136},
                     {17001, 64},
                     {128, 2048},
                     {70, 4104},
                     {2005, 1032},
                     {4003, 1032},
                     {6007, 1032},
                     {70001, 24}},
                    {2, 3, 7, 8, 9, 15, 16, 17}, /*gap=*/3);
}

// A Hopper device has a kernel for 9 to 64 rows, and for less of a large weight: clusters of one, two, four
// and eight blocks have one unit of up to 256 outputs, or some blocks several, and steps of 64 of the depth
// go through a ring once and more often.
TEST_P(LinearTest, SomeTensOfRowsMatchTheReference) {
  if (!is_cuda()) GTEST_SKIP() << "all numbers of rows have one kernel";
  expect_rows_match({{16, 8},
                     {48, 200},
                     {272, 72},
                     {1040, 4104},
                     {4096, 1032},
                     {6160, 520},
                     {16912, 200},
                     {33600, 136},
                     {70016, 72}},
                    {9, 16, 17, 32, 33, 63, 64}, /*gap=*/8);
  expect_rows_match({{3088, 4104}}, {2, 8}, /*gap=*/8);
}

TEST_P(LinearTest, OneOfFewRowsDependsOnItselfAlone) {
  if (!is_cuda()) GTEST_SKIP() << "all numbers of rows have one kernel";
  expect_rows_to_depend_on_themselves({{45, 72}, {300, 1032}, {2005, 1032}, {36001, 24}}, {2, 7, 8, 9, 16});
}

// Of those that a kernel has as many slots for.
TEST_P(LinearTest, OneOfSomeTensOfRowsDependsOnItselfAlone) {
  if (std::string_view(GetParam()->variant) != "sm_90") GTEST_SKIP() << "has no kernel for them";
  for (const std::vector<int64_t>& numbers_of_rows : {std::vector<int64_t>{9, 16}, {17, 32}, {33, 64}})
    expect_rows_to_depend_on_themselves({{48, 72}, {304, 1032}, {2016, 1032}, {36016, 24}}, numbers_of_rows);
  expect_rows_to_depend_on_themselves({{3088, 4104}}, {2, 7, 16});
}

// Algorithms are measured there too, though nothing can be captured. With nothing kept from before.
TEST_P(LinearTest, TheDefaultStreamIsAsGoodAsAnother) {
  if (!is_cuda()) GTEST_SKIP() << "there are no streams";
  const auto directory = std::filesystem::path(testing::TempDir()) / "quire_no_linears";
  std::filesystem::remove_all(directory);
  const char* before = std::getenv("QUIRE_CACHE_DIR");
  const std::string kept = before != nullptr ? before : "";
  ::setenv("QUIRE_CACHE_DIR", directory.c_str(), 1);
  LaunchContext ctx = context();
  ctx.stream = nullptr;
  ctx.state = kernels().create_state(ctx.error);
  before != nullptr ? ::setenv("QUIRE_CACHE_DIR", kept.c_str(), 1) : ::unsetenv("QUIRE_CACHE_DIR");
  const Tensor x = std::move(Tensor(DType::kBFloat16, 20, 64).randomize(1));
  const Tensor rows = std::move(Tensor(DType::kBFloat16, 48, 64).randomize(2, 0.1F));
  const Packed packed = pack(rows, DType::kBFloat16);
  reserve(20, 48, 64, DType::kBFloat16);
  ctx.workspace = context().workspace;
  ctx.workspace_bytes = context().workspace_bytes;
  const Tensor out(DType::kFloat32, 20, 48);
  run(ctx, out, x, packed.weight);
  expect_close(out, reference::linear(x.values(), rows.values(), {}, 64), 1e-4, 1e-6);
  kernels().destroy_state(ctx.state);
}

TEST_P(LinearTest, BiasIsOptional) {
  const Tensor x = std::move(Tensor(DType::kFloat32, 3, 16).randomize(1));
  const Tensor rows = std::move(Tensor(DType::kFloat32, 5, 16).randomize(2));
  const Packed packed = pack(rows, DType::kFloat32);
  reserve(3, 5, 16, DType::kFloat32);
  const Tensor out(DType::kFloat32, 3, 5);
  run(context(), out, x, packed.weight);
  expect_close(out, reference::linear(x.values(), rows.values(), {}, 16), 1e-5, 1e-6);
}

// The contract that makes a whole model batch-invariant.
TEST_P(LinearTest, ARowAloneIsTheRowInABatchBitwise) {
  if (is_cuda()) GTEST_SKIP() << "the kernel is chosen by the number of rows";
  constexpr int64_t kRows = 70, kN = 131, kK = 1072;
  ThreadPool pool(3);
  for (const DType dtype : float_types()) {
    const Tensor x = std::move(Tensor(dtype, kRows, kK).randomize(3));
    const Packed packed = pack(std::move(Tensor(dtype, kN, kK).randomize(4)), dtype);
    reserve(kRows, kN, kK, dtype);
    const Tensor all(DType::kFloat32, kRows, kN);
    run(context(&pool), all, x, packed.weight);
    for (const int64_t count : {1, 2, 5, 16, 17, 32, 33}) {
      for (const int64_t begin : {int64_t{0}, int64_t{13}, kRows - count}) {
        const Tensor some(DType::kFloat32, count, kN);
        kernels().linear(context(), some, x.view().rows(begin, count), packed.weight, nullptr);
        for (int64_t r = 0; r < count; ++r)
          ASSERT_EQ(some.row_bytes(r), all.row_bytes(begin + r))
              << dtype_name(dtype) << " " << count << " " << r;
      }
    }
  }
}

TEST_P(LinearTest, RowsBeyondABlockOfRowsAreTheSameBitwise) {
  if (is_cuda()) GTEST_SKIP() << "the kernel is chosen by the number of rows";
  constexpr int64_t kRows = 530, kN = 40, kK = 64;
  const Tensor x = std::move(Tensor(DType::kBFloat16, kRows, kK).randomize(3));
  const Packed packed = pack(std::move(Tensor(DType::kBFloat16, kN, kK).randomize(4)), DType::kBFloat16);
  reserve(kRows, kN, kK, DType::kBFloat16);
  const Tensor all(DType::kBFloat16, kRows, kN);
  run(context(), all, x, packed.weight);
  for (int64_t r = 0; r < kRows; r += 23) {
    const Tensor one(DType::kBFloat16, 1, kN);
    kernels().linear(context(), one, x.view().rows(r, 1), packed.weight, nullptr);
    ASSERT_EQ(one.row_bytes(0), all.row_bytes(r)) << r;
  }
}

TEST_P(LinearTest, OneBadRowLeavesTheOthersAlone) {
  const Packed packed = pack(std::move(Tensor(DType::kBFloat16, 64, 64).randomize(4)), DType::kBFloat16);
  Tensor x = std::move(Tensor(DType::kBFloat16, 4, 64).randomize(3));
  for (int i = 0; i < 64; ++i) x.set(1, i, std::numeric_limits<float>::infinity());
  reserve(4, 64, 64, DType::kBFloat16);
  const Tensor out(DType::kFloat32, 4, 64);
  run(context(), out, x, packed.weight);
  for (const int64_t row : {0, 2, 3})
    for (int64_t i = 0; i < 64; ++i) EXPECT_TRUE(std::isfinite(out.get(row, i)));
}

TEST_P(LinearTest, PacksRowsInAnyOrderFromAnyDtype) {
  if (kernels().linear_pack_rows == nullptr) GTEST_SKIP() << "weights are plain";
  constexpr int64_t kN = 75, kK = 50;
  ThreadPool pool(2);
  for (const DType dtype : float_types()) {
    const Tensor rows = std::move(Tensor(DType::kBFloat16, kN, kK, 6).randomize(5));
    const Packed whole = pack(rows, dtype);
    Packed parts{Memory(whole.memory.bytes(), 0), whole.weight};
    parts.weight.data = parts.memory.data();
    Tensor wide(DType::kFloat32, kN, kK);
    for (int64_t r = 0; r < kN; ++r)
      for (int64_t c = 0; c < kK; ++c) wide.set(r, c, rows.get(r, c));
    kernels().linear_pack_rows(context(&pool), parts.weight, 41, wide.view().rows(41, kN - 41));
    kernels().linear_pack_rows(context(&pool), parts.weight, 0, rows.view().rows(0, 41));
    EXPECT_EQ(std::memcmp(parts.memory.data(), whole.memory.data(), whole.memory.bytes()), 0);
  }
}

TEST_P(LinearTest, PacksHalfPrecision) {
  if (kernels().linear_pack_rows == nullptr) GTEST_SKIP() << "weights are plain";
  // 1, -2, 65504, the smallest subnormal, and 0.333251953125
  std::vector<uint16_t> halves = {0x3C00, 0xC000, 0x7BFF, 0x0001, 0x3555};
  halves.resize(16);
  const TensorView rows(halves.data(), DType::kFloat16, 1, 16);
  Memory memory(kernels().linear_weight_bytes(1, 16, DType::kFloat32), 0);
  const LinearWeight weight = {
      .data = memory.data(), .n = 1, .k = 16, .dtype = DType::kFloat32, .packed = true};
  kernels().linear_pack_rows(context(), weight, 0, rows);
  Array<int32_t> ids = {0};
  const Tensor out(DType::kFloat32, 1, 16);
  kernels().embedding(context(), out, int_view(ids), weight, 0);
  const float expected[] = {1, -2, 65504, 0x1p-24F, 0.333251953125F, 0};
  for (int i = 0; i < 6; ++i) EXPECT_EQ(out.get(0, i), expected[i]);
}

TEST_P(LinearTest, EmbeddingReadsPackedAndPlainTables) {
  constexpr int64_t kN = 67, kK = 34;
  for (const DType dtype : float_types()) {
    const Tensor rows = std::move(Tensor(dtype, kN, kK).randomize(6));
    const Packed packed = pack(rows, dtype);
    const LinearWeight plain = {.data = rows.view().data, .n = kN, .k = kK, .dtype = dtype, .packed = false};
    Array<int32_t> ids = {100, 166, 133, 99, 167, 131, -1};  // the table starts at 100
    for (const LinearWeight& table : {packed.weight, plain}) {
      if (table.packed && is_cuda()) continue;
      for (const DType out_dtype : float_types()) {
        const Tensor out(out_dtype, 7, kK, 2);
        kernels().embedding(context(), out, int_view(ids), table, 100);
        for (int64_t t = 0; t < 7; ++t) {
          const int64_t row = ids[static_cast<size_t>(t)] - 100;
          for (int64_t i = 0; i < kK; ++i)
            ASSERT_EQ(out.get(t, i), row < 0 || row >= kN ? 0.0F : round_to(out_dtype, rows.get(row, i)));
        }
      }
    }
  }
}

QUIRE_FOR_EVERY_TABLE(LinearTest);

}  // namespace
}  // namespace quire
