// What adapters add to a linear.
#include <array>
#include <functional>

#include "lora_fixture.h"

namespace quire {
namespace {

using Ranks = LoraRanks;
using Shape = LoraCase;
using Adapter = TestAdapter;

// A row in `num` has none.
std::vector<int32_t> spread(int64_t tokens, int32_t num) {
  std::vector<int32_t> adapter_of;
  for (int64_t t = 0; t < tokens; ++t)
    adapter_of.push_back(static_cast<int32_t>((t * 7 + 1) % (num + 1)) - 1);
  return adapter_of;
}

std::vector<Shape> shapes(bool is_cuda) {
  std::vector<Shape> all = {
      // One row, one adapter.
      {.tokens = 2, .n = 1, .k = 1, .modules = {{0, 1}}, .ranks = {{1}}},
      {.tokens = 2, .n = 64, .k = 96, .modules = {{0, 64}}, .ranks = {{8}}, .padding = 8},
      // Ranks, widths and depths that are a multiple of nothing; rows that lie scattered.
      {.tokens = 23, .n = 97, .k = 45, .modules = {{0, 97}}, .ranks = {{1}, {3}, {100}, {33}}, .padding = 3},
      // Modules of unequal widths, in no order, with outputs between them that none has. Ranks that differ,
      // some of
      // them 0; an adapter that has nothing here, and one that has nothing for any but the last.
      {.tokens = 40,
       .n = 160,
       .k = 70,
       .modules = {{3, 61}, {120, 33}, {70, 40}},
       .ranks = {{8, 3, 5}, {0, 16, 0}, {0, 0, 0}, {0, 0, 64}, {33, 1, 31}},
       .padding = 5},
      {.tokens = 5,
       .n = 256,
       .k = 256,
       .modules = {{0, 64}, {64, 64}, {128, 64}, {192, 64}},
       .ranks = {{16, 16, 16, 16}, {256, 0, 8, 1}}},
      // More rows than a tile and than a product have.
      {.tokens = 600, .n = 80, .k = 33, .modules = {{0, 16}, {16, 64}}, .ranks = {{4, 40}}, .padding = 1},
      // The same of dimensions that lie in vectors.
      {.tokens = 600,
       .n = 384,
       .k = 648,
       .modules = {{0, 256}, {256, 40}, {296, 88}},
       .ranks = {{16, 8, 40}, {80, 256, 1}},
       .padding = 8},
      {.tokens = 200,
       .n = 2304,
       .k = 4096,
       .modules = {{0, 2048}, {2048, 128}, {2176, 128}},
       .ranks = {{16, 16, 16}, {8, 0, 64}, {0, 0, 0}}},
      {.tokens = 1, .n = 2304, .k = 4104, .modules = {{0, 2048}, {2048, 256}}, .ranks = {{16, 24}}},
      {.tokens = 256, .n = 200, .k = 64, .modules = {{0, 200}}, .ranks = std::vector<Ranks>(70, Ranks{16})},
      // More rows than are computed at once: of one adapter, and of many.
      {.tokens = 4500, .n = 33, .k = 16, .modules = {{0, 33}}, .ranks = {{5}, {2}}},
      {.tokens = 300, .n = 40, .k = 24, .modules = {{8, 32}}, .ranks = std::vector<Ranks>(140, Ranks{6})},
  };
  if (is_cuda) {
    // More units of either product than a device has blocks and warps: rows alone, whose stretches of units
    // cross modules, and several of each adapter.
    all.push_back({.tokens = 65,
                   .n = 6144,
                   .k = 512,
                   .modules = {{0, 4096}, {4096, 1024}, {5120, 1024}},
                   .ranks = std::vector<Ranks>(64, Ranks{16, 24, 8})});
    all.push_back({.tokens = 256,
                   .n = 1024,
                   .k = 1056,
                   .modules = {{0, 704}, {704, 320}},
                   .ranks = std::vector<Ranks>(100, Ranks{16, 40})});
  }
  return all;
}

TEST_P(LoraTest, MatchesTheReference) {
  ThreadPool pool(2);
  for (const DType dtype : float_types()) {
    for (const Shape& shape : shapes(is_cuda())) {
      const std::vector<Adapter> adapters = make_adapters(shape, dtype);
      const Tensor x = std::move(Tensor(dtype, shape.tokens, shape.k, shape.padding).randomize(1));
      const auto num = static_cast<int32_t>(adapters.size());
      reserve(shape, dtype);
      for (const DType out_dtype : {DType::kFloat32, dtype}) {
        SCOPED_TRACE(testing::Message() << dtype_name(dtype) << " to " << dtype_name(out_dtype)
                                        << " T=" << shape.tokens << " N=" << shape.n << " K=" << shape.k);
        const Tensor out = std::move(Tensor(out_dtype, shape.tokens, shape.n, shape.padding).randomize(2));
        const std::vector<int32_t> adapter_of = spread(shape.tokens, num);
        const LoraOutputs expected = expected_lora(out, x, shape, adapters, adapter_of);
        add(out, x, shape, adapters, adapter_of, shape.tokens % 2 == 0 ? &pool : nullptr);
        const std::vector<double> values = out.values();
        for (size_t i = 0; i < values.size(); ++i) {
          ASSERT_LE(std::abs(values[i] - expected.value[i]), expected.bound[i])
              << values[i] << " for " << expected.value[i] << " in row " << i / static_cast<size_t>(shape.n)
              << ", output " << i % static_cast<size_t>(shape.n);
        }
        const auto size = static_cast<int64_t>(dtype_bytes(out_dtype));
        for (int64_t t = 0; t < shape.tokens; ++t) {
          for (int64_t i = 0; i < shape.padding * size; ++i)
            ASSERT_EQ(out.view().at(t)[shape.n * size + i], std::byte{0xFF}) << "beyond row " << t;
        }
      }
    }
  }
}

// Also where only they are finite, and in outputs that no module has.
TEST_P(LoraTest, RowsWithoutAnAdapterStayAsTheyAre) {
  const Shape shape = {.tokens = 50, .n = 64, .k = 40, .modules = {{0, 30}, {40, 20}}, .ranks = {{8, 2}}};
  for (const DType dtype : float_types()) {
    const std::vector<Adapter> adapters = make_adapters(shape, dtype);
    Tensor x = std::move(Tensor(dtype, shape.tokens, shape.k).randomize(1));
    const Tensor out = std::move(Tensor(dtype, shape.tokens, shape.n).randomize(2));
    const Tensor before = std::move(Tensor(dtype, shape.tokens, shape.n).randomize(2));
    std::vector<int32_t> adapter_of(static_cast<size_t>(shape.tokens), -1);
    for (const int64_t t : {3, 4, 47}) {
      adapter_of[static_cast<size_t>(t)] = 0;
      x.set(t, 5, std::numeric_limits<float>::quiet_NaN());
    }
    reserve(shape, dtype);
    add(out, x, shape, adapters, adapter_of, nullptr);
    for (int64_t t = 0; t < shape.tokens; ++t) {
      if (adapter_of[static_cast<size_t>(t)] < 0) {
        ASSERT_EQ(out.row_bytes(t), before.row_bytes(t)) << t;
        continue;
      }
      for (int64_t i = 0; i < shape.n; ++i) {
        const bool has_module = i < 30 || (i >= 40 && i < 60);
        ASSERT_EQ(std::isnan(out.get(t, i)), has_module) << t << " " << i;
        if (!has_module) {
          ASSERT_EQ(out.get(t, i), before.get(t, i)) << t << " " << i;
        }
      }
    }
  }
}

// h = (257, 1, 2^-9 + 2^-18) becomes (256, 1, 2^-9) in bf16; 256 + 1 + 2^-9 is nearer to 258 than to 256, and
// 1 + 2^-9, rounded by itself, would have been 1.
TEST_P(LoraTest, RoundsWhatAMakesAndThenTheSumOnce) {
  const Shape shape = {.tokens = 1, .n = 2, .k = 2, .modules = {{0, 1}, {1, 1}}, .ranks = {{1, 2}}};
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    std::vector<Tensor> a, b;
    for (const int64_t rank : {1, 2}) {
      a.emplace_back(dtype, rank, 2);
      b.emplace_back(dtype, 1, rank);
      for (int64_t r = 0; r < rank; ++r) b.back().set(0, r, 1);
    }
    const float tiny = std::ldexp(1.0F, -9), tinier = std::ldexp(1.0F, -18);
    const float rows[3][2] = {{256, 1}, {1, 0}, {tiny, tinier}};
    for (int64_t i = 0; i < 2; ++i) {
      a[0].set(0, i, rows[0][i]);
      for (int64_t r = 0; r < 2; ++r) a[1].set(r, i, rows[1 + r][i]);
    }
    Adapter adapter = make_adapter(shape.ranks[0], a, b, 2, dtype);
    std::vector<Adapter> adapters;
    adapters.push_back(std::move(adapter));
    Tensor x(dtype, 1, 2), out(DType::kFloat32, 1, 2), rounded(dtype, 1, 2);
    for (int64_t i = 0; i < 2; ++i) {
      x.set(0, i, 1);
      out.set(0, i, 256);
      rounded.set(0, i, 256);
    }
    reserve(shape, dtype);
    add(out, x, shape, adapters, {0}, nullptr);
    add(rounded, x, shape, adapters, {0}, nullptr);
    if (dtype == DType::kFloat32) {
      EXPECT_EQ(out.get(0, 0), 513.0F);
      EXPECT_EQ(out.get(0, 1), 257 + tiny);  // the tinier one is lost
    } else {
      EXPECT_EQ(out.get(0, 0), 512.0F);
      EXPECT_EQ(out.get(0, 1), 257 + tiny);
      EXPECT_EQ(rounded.get(0, 1), 258.0F);
    }
  }
}

// Alone and in company, of few rows or of more than are computed at once, with segments in any order, on one
// thread and on four.
TEST_P(LoraTest, ARowDependsOnItselfAlone) {
  if (is_cuda()) GTEST_SKIP() << "the quickest kernel for a shape is taken";
  ThreadPool pool(4);
  const Shape shape = {.tokens = 2500,
                       .n = 150,
                       .k = 72,
                       .modules = {{0, 70}, {80, 70}},
                       .ranks = {{8, 3}, {0, 40}, {100, 16}},
                       .padding = 2};
  for (const DType dtype : float_types()) {
    const std::vector<Adapter> adapters = make_adapters(shape, dtype);
    const Tensor x = std::move(Tensor(dtype, shape.tokens, shape.k, shape.padding).randomize(1));
    reserve(shape, dtype);
    const auto run = [&](const std::vector<int32_t>& adapter_of, ThreadPool* threads, bool backwards) {
      Tensor out = std::move(Tensor(dtype, shape.tokens, shape.n, shape.padding).randomize(2));
      add(out, x, shape, adapters, adapter_of, threads, backwards);
      return out;
    };
    // Most rows have the first adapter; those without any come between them.
    std::vector<int32_t> adapter_of = spread(shape.tokens, 3);
    for (size_t t = 300; t < adapter_of.size(); ++t) adapter_of[t] = t % 13 == 0 ? -1 : 0;
    const Tensor all = run(adapter_of, nullptr, false);
    const std::function<bool(int64_t)> kept[] = {
        [](int64_t) { return true; },
        [](int64_t t) { return t == 1; },
        [](int64_t t) { return t == 2; },
        [](int64_t t) { return t == 5 || t == 2499; },
        [](int64_t t) { return t < 41; },
        [](int64_t t) { return t % 11 == 0; },
        [](int64_t t) { return t >= 100 && t < 900; },
    };
    for (size_t i = 0; i < std::size(kept); ++i) {
      std::vector<int32_t> some = adapter_of;
      for (size_t t = 0; t < some.size(); ++t) {
        if (!kept[i](static_cast<int64_t>(t))) some[t] = -1;
      }
      for (const bool backwards : {false, true}) {
        const Tensor out = run(some, backwards ? nullptr : &pool, backwards);
        for (int64_t t = 0; t < shape.tokens; ++t) {
          if (!kept[i](t)) continue;
          ASSERT_EQ(out.row_bytes(t), all.row_bytes(t)) << "row " << t << " of " << i;
        }
      }
    }
  }
}

TEST_P(LoraTest, ABatchWithoutAdaptersDoesNothing) {
  const Shape shape = {.tokens = 3, .n = 8, .k = 8, .modules = {{0, 8}}, .ranks = {{0}}};
  std::vector<Adapter> adapters = make_adapters(shape, DType::kFloat32);
  const Tensor x = std::move(Tensor(DType::kFloat32, 3, 8).randomize(1));
  const Tensor out = std::move(Tensor(DType::kFloat32, 3, 8).randomize(2));
  const std::vector<double> before = out.values();
  reserve(shape, DType::kFloat32);
  add(out, x, shape, adapters, {0, 0, 0}, nullptr);  // one that has nothing for this linear
  EXPECT_EQ(out.values(), before);
  LaunchContext ctx = context();
  ctx.workspace = nullptr;
  const Array<int32_t> none = {0, 0};
  const Array<LoraSegment> unused = {{}};
  kernels().add_lora(ctx, {.out = out,
                           .x = x,
                           .modules = shape.modules.data(),
                           .num_modules = 1,
                           .max_total_rank = 8,
                           .max_segments = 1,
                           .batch = {.segments = unused.data(), .num_segments = none.data()}});
  wait_for_device();
  EXPECT_EQ(out.values(), before);
}

// One after the other. What stays in between is rounded alike, but of one row, which is rounded once; of some
// tens of rows what `a` makes is summed in another order.
TEST_P(LoraTest, WithItsLinearAndActivation) {
  if (!is_cuda()) GTEST_SKIP() << "one after the other";
  ASSERT_NE(kernels().linear_add_lora, nullptr);
  const LoraCase shapes[] = {
      {.tokens = 50, .n = 128, .k = 64, .modules = {{0, 64}, {64, 64}}, .ranks = {{16, 8}, {0, 40}, {0, 0}}},
      {.tokens = 1, .n = 1024, .k = 256, .modules = {{0, 1024}}, .ranks = {{16}}},
      {.tokens = 1, .n = 3072, .k = 1024, .modules = {{0, 1536}, {1536, 1536}}, .ranks = {{8, 40}}},
      {.tokens = 1, .n = 256, .k = 640, .modules = {{160, 96}, {0, 128}}, .ranks = {{0, 250}}},
      {.tokens = 1, .n = 256, .k = 640, .modules = {{0, 256}}, .ranks = {{0}}},
      {.tokens = 9, .n = 512, .k = 4096, .modules = {{0, 256}, {256, 256}}, .ranks = {{16, 16}, {64, 0}}},
      // `a` is multiplied beside the linear: of rows alone and of several, of few adapters and of as many
      // as there are rows, of more ranks than are multiplied at once, of which some modules have none.
      {.tokens = 64,
       .n = 6144,
       .k = 2048,
       .modules = {{0, 4096}, {4096, 1024}, {5120, 1024}},
       .ranks = {{16, 16, 16}}},
      {.tokens = 64,
       .n = 2048,
       .k = 2592,
       .modules = {{0, 1024}, {1024, 1024}},
       .ranks = std::vector<Ranks>(64, Ranks{16, 16})},
      {.tokens = 63,
       .n = 1536,
       .k = 1056,
       .modules = {{512, 1024}, {0, 256}, {256, 256}},
       .ranks = {{8, 0, 40}, {0, 0, 0}, {256, 24, 16}, {0, 16, 0}, {24, 8, 104}},
       .padding = 8},
      {.tokens = 33, .n = 192, .k = 32, .modules = {{0, 96}, {96, 96}}, .ranks = {{8, 16}, {40, 0}}},
      {.tokens = 20, .n = 36864, .k = 96, .modules = {{0, 36864}}, .ranks = {{16}, {8}, {24}}},
      {.tokens = 17,
       .n = 69632,
       .k = 64,
       .modules = {{0, 34816}, {34816, 34816}},
       .ranks = {{16, 8}, {0, 8}}},
      {.tokens = 400,
       .n = 192,
       .k = 72,
       .modules = {{0, 96}, {96, 96}},
       .ranks = {{8, 16}, {80, 1}},
       .padding = 8},
      {.tokens = 300, .n = 64, .k = 40, .modules = {{0, 64}}, .ranks = {{24}, {3}}},
      // Not in whole units, and not in vectors.
      {.tokens = 20, .n = 48, .k = 40, .modules = {{0, 24}, {24, 24}}, .ranks = {{8, 8}}},
      {.tokens = 300, .n = 64, .k = 40, .modules = {{32, 32}, {0, 32}}, .ranks = {{8, 8}}},
      {.tokens = 20, .n = 64, .k = 33, .modules = {{0, 32}, {32, 32}}, .ranks = {{8, 8}}, .padding = 3},
  };
  for (const DType dtype : float_types()) {
    for (const LoraCase& shape : shapes) {
      SCOPED_TRACE(testing::Message()
                   << dtype_name(dtype) << " T=" << shape.tokens << " N=" << shape.n << " K=" << shape.k);
      const std::vector<TestAdapter> adapters = make_adapters(shape, dtype);
      const Tensor x = std::move(Tensor(dtype, shape.tokens, shape.k, shape.padding).randomize(1));
      const Tensor matrix = std::move(Tensor(dtype, shape.n, shape.k).randomize(3, 0.1F));
      const LinearWeight weight = {.data = matrix.view().data, .n = shape.n, .k = shape.k, .dtype = dtype};
      Array<float> bias;
      for (int64_t i = 0; i < shape.n; ++i) bias.push_back(0.25F * static_cast<float>(i % 7));
      const std::vector<int32_t> adapter_of =
          shape.tokens == 1 ? std::vector<int32_t>{0}
                            : spread(shape.tokens, static_cast<int32_t>(adapters.size()));
      const auto make = [&](int64_t columns) {
        return std::move(Tensor(dtype, shape.tokens, columns, shape.padding).randomize(2));
      };
      const Tensor out = make(shape.n), expected = make(shape.n), alone = make(shape.n),
                   scratch = make(shape.n);
      const Tensor gated = make(shape.n / 2), expected_gated = make(shape.n / 2);
      reserve(shape, dtype);
      kernels().linear(context(), alone, x, weight, bias.data());
      kernels().linear(context(), expected, x, weight, bias.data());
      add(expected, x, shape, adapters, adapter_of, nullptr);
      kernels().activate_and_mul(context(), expected_gated, expected, Activation::kSilu);
      add(out, x, shape, adapters, adapter_of, nullptr, false,
          [&](const LoraArgs& args) { kernels().linear_add_lora(context(), weight, bias.data(), args); });
      add(scratch, x, shape, adapters, adapter_of, nullptr, false, [&](const LoraArgs& args) {
        kernels().linear_add_lora_activate_and_mul(context(), gated, weight, bias.data(), args,
                                                   Activation::kSilu);
      });
      wait_for_device();
      const bool is_same = shape.tokens > 64 || dtype == DType::kFloat32;
      const double rounding = dtype == DType::kFloat32 ? 0.0 : std::ldexp(1.0, -7);
      const int64_t half = shape.n / 2;
      for (int64_t t = 0; t < shape.tokens; ++t) {
        SCOPED_TRACE(testing::Message() << "row " << t);
        if (is_same && shape.tokens > 1) {
          ASSERT_EQ(out.row_bytes(t), expected.row_bytes(t));
          ASSERT_EQ(gated.row_bytes(t), expected_gated.row_bytes(t));
          continue;
        }
        if (adapter_of[static_cast<size_t>(t)] < 0) {
          ASSERT_EQ(out.row_bytes(t), alone.row_bytes(t));
        }
        const auto size = [&](int64_t i) {
          return 1.0 + std::abs(double{alone.get(t, i)}) + std::abs(double{expected.get(t, i)});
        };
        for (int64_t i = 0; i < shape.n; ++i)
          ASSERT_NEAR(out.get(t, i), expected.get(t, i), rounding * size(i)) << i;
        for (int64_t i = 0; i < half; ++i)
          ASSERT_NEAR(gated.get(t, i), expected_gated.get(t, i), 2 * rounding * size(i) * size(half + i))
              << i;
      }
    }
  }
}

QUIRE_FOR_EVERY_TABLE(LoraTest);

}  // namespace
}  // namespace quire
