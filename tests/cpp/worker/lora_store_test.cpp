#include "worker/lora_store.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "weights/convert.h"
#include "worker/lora_rig.h"

namespace quire {
namespace {

class LoraStoreTest : public testing::Test {
 protected:
  // What an adapter adds to a target's outputs for one row of inputs.
  std::vector<double> added(LoraRig& rig, const LoraWeights& weights, int32_t target,
                            const std::vector<float>& x) const {
    const LoraTarget& what = rig.targets.all()[static_cast<size_t>(target)];
    constexpr size_t kGuardBytes = 4096;
    Buffer inputs(x.size() * dtype_bytes(rig.dtype)), workspace(rig.workspace_bytes + kGuardBytes);
    std::memset(workspace.data(), 0xFF, workspace.size());
    convert(inputs.data(), rig.dtype, x.data(), DType::kFloat32, static_cast<int64_t>(x.size()));
    std::vector<float> out(static_cast<size_t>(what.n), 100.0F);
    rig.launch.workspace = workspace.data();
    rig.launch.workspace_bytes = rig.workspace_bytes;
    std::vector<LoraSlot> slots;
    for (size_t t = 0; t < rig.targets.all().size(); ++t) slots.push_back(weights.at(t));
    const int32_t row = 0, num_segments[] = {1, 1};
    const LoraSegment segment = {0, 0, 1};
    LoraStep step;
    step.targets = &rig.targets;
    step.slots = slots.data();
    step.batch = {&row, &segment, num_segments};
    ActivationArena arena(0);
    const auto communicator = make_single_communicator();
    const ForwardContext ctx{rig.ops, rig.launch, *communicator, arena, {}, {}, {}, {}};
    ctx.ops.add_lora(ctx.launch, step.args_of(target, {out.data(), DType::kFloat32, 1, what.n},
                                              {inputs.data(), rig.dtype, 1, static_cast<int64_t>(x.size())}));
    const std::byte* guard = workspace.data() + rig.workspace_bytes;
    EXPECT_TRUE(std::all_of(guard, guard + kGuardBytes, [](std::byte b) { return b == std::byte{0xFF}; }))
        << "beyond the workspace";
    std::vector<double> sums;
    for (float value : out) sums.push_back(value - 100.0);
    return sums;
  }
  // Two times b (a x), of these rows of the module, with the inputs from `k_begin` on.
  static std::vector<double> product(const LoraValues& module, int64_t row_begin, int64_t num_rows,
                                     const std::vector<float>& x, int64_t k_begin = 0) {
    std::vector<double> out;
    for (int64_t row = row_begin; row < row_begin + num_rows; ++row) {
      double sum = 0;
      for (int64_t r = 0; r < module.rank; ++r) {
        double h = 0;
        for (size_t i = 0; i < x.size(); ++i)
          h += double{module.a[static_cast<size_t>(r * module.inputs + k_begin) + i]} * double{x[i]};
        sum += double{module.b[static_cast<size_t>(row * module.rank + r)]} * h;
      }
      out.push_back(2 * sum);
    }
    return out;
  }
  static std::vector<double> joined(std::vector<double> a, const std::vector<double>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  }
  static void expect_near(const std::vector<double>& found, const std::vector<double>& expected,
                          double tolerance = 1e-4) {
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], tolerance) << i;
  }
};

constexpr const char* kQ = "model.layers.0.self_attn.q_proj";
constexpr const char* kK = "model.layers.0.self_attn.k_proj";
constexpr const char* kV = "model.layers.0.self_attn.v_proj";

TEST_F(LoraStoreTest, StackedModulesHaveRanksOfTheirOwn) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    LoraRig rig(1, 8, dtype);
    const int32_t target = rig.add_target({{kQ, 6, 0, 6}, {kK, 3, 0, 3}, {kV, 3, 0, 3}}, /*total_k=*/5);
    const LoraValues q = random_lora(kQ, 5, 6, 3), k = random_lora(kK, 5, 3, 8, 7),
                     v = random_lora(kV, 5, 3, 1, 9);
    const std::vector<float> x = eighths(5, 42);
    const auto expected = joined(joined(product(q, 0, 6, x), product(k, 0, 3, x)), product(v, 0, 3, x));
    const LoraWeights weights = load(rig, {q, k, v});
    EXPECT_EQ(weights.at(0).total_rank(), 12);
    EXPECT_GE(weights.bytes(), (12 * 5 + 6 * 3 + 3 * 8 + 3) * dtype_bytes(dtype));
    expect_near(added(rig, weights, target, x), expected, dtype == DType::kFloat32 ? 1e-4 : 0.1);
  }
}

// As a device's kernels read them: rows one behind the other, ranks filled up with zeros.
TEST_F(LoraStoreTest, WhereNothingIsPackedRowsLieOneBehindTheOther) {
  KernelTable plain = *find_kernel_table("cpu");
  plain.linear_pack_rows = nullptr;
  plain.linear_weight_bytes = [](int64_t n, int64_t k, DType dtype) {
    return static_cast<size_t>(n * k) * dtype_bytes(dtype);
  };
  plain.lora_rank_multiple = 8;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    LoraRig rig(1, 8, dtype, true, plain);
    rig.add_target({{kQ, 6, 0, 6}, {kK, 3, 0, 3}}, /*total_k=*/5);
    const LoraValues q = random_lora(kQ, 5, 6, 8), k = random_lora(kK, 5, 3, 3, 7);
    const LoraWeights weights = load(rig, {q, k});
    const auto values = [&](const void* data, size_t count) {
      std::vector<float> out(count);
      convert(out.data(), DType::kFloat32, data, dtype, static_cast<int64_t>(count));
      return out;
    };
    std::vector<float> a = q.a, b_of_q, b_of_k(3 * 8);
    a.insert(a.end(), k.a.begin(), k.a.end());
    a.resize(16 * 5);
    for (const float value : q.b) b_of_q.push_back(2 * value);
    for (size_t i = 0; i < k.b.size(); ++i) b_of_k[i / 3 * 8 + i % 3] = 2 * k.b[i];
    EXPECT_EQ(weights.at(0).total_rank(), 16);
    EXPECT_EQ(values(weights.at(0).a, a.size()), a);
    EXPECT_EQ(values(weights.at(0).b[0], b_of_q.size()), b_of_q);
    EXPECT_EQ(values(weights.at(0).b[1], b_of_k.size()), b_of_k);
  }
}

TEST_F(LoraStoreTest, TheWorkspaceIsEnoughForTheHighestRanks) {
  LoraRig rig(1, /*max_rank=*/64);
  const int32_t target = rig.add_target({{kQ, 6, 0, 6}, {kK, 3, 0, 3}, {kV, 3, 0, 3}}, 5);
  const LoraValues q = random_lora(kQ, 5, 6, 64), k = random_lora(kK, 5, 3, 64),
                   v = random_lora(kV, 5, 3, 64);
  const std::vector<float> x = eighths(5, 42);
  expect_near(added(rig, load(rig, {q, k, v}), target, x),
              joined(joined(product(q, 0, 6, x), product(k, 0, 3, x)), product(v, 0, 3, x)));
}

TEST_F(LoraStoreTest, ModulesThatAnAdapterHasNotStayAsTheyAre) {
  LoraRig rig;
  const int32_t qkv = rig.add_target({{kQ, 4, 0, 4}, {kK, 2, 0, 2}, {kV, 2, 0, 2}}, 5);
  const int32_t other = rig.add_target({{"model.layers.0.mlp.down_proj", 4, 0, 4}}, 5);
  const LoraValues k = random_lora(kK, 5, 2, 2);
  const std::vector<float> x = eighths(5, 42);
  const LoraWeights weights = load(rig, {k});
  const std::vector<double> nothing(4), tail(2);
  expect_near(added(rig, weights, qkv, x), joined(joined(nothing, product(k, 0, 2, x)), tail));
  EXPECT_EQ(weights.at(static_cast<size_t>(other)).total_rank(), 0);
  EXPECT_EQ(weights.at(static_cast<size_t>(other)).a, nullptr);
  expect_near(added(rig, weights, other, x), nothing);
}

// As some fuse q, k and v: those of head 0, then of head 1. The model has the queries first.
TEST_F(LoraStoreTest, RowsOfAFusedTensorComeInTheModelsOrder) {
  LoraRig rig;
  const std::string name = "h.0.self_attention.query_key_value";
  const auto rows = [&](int64_t begin) { return LinearPart{name, 12, begin, 2}; };
  const int32_t target = rig.add_target({rows(0), rows(6), rows(2), rows(8), rows(4), rows(10)}, 5);
  EXPECT_EQ(rig.targets.all()[0].modules.size(), 1U);
  const LoraValues qkv = random_lora(name, 5, 12, 3);
  const std::vector<float> x = eighths(5, 42);
  std::vector<double> expected;
  for (const int64_t begin : {0, 6, 2, 8, 4, 10}) expected = joined(expected, product(qkv, begin, 2, x));
  expect_near(added(rig, load(rig, {qkv}), target, x), expected);
}

TEST_F(LoraStoreTest, ARankHasItsRowsAndAllOfA) {
  LoraRig rig;
  const int32_t target = rig.add_target({{kQ, 8, 4, 4}, {kK, 4, 2, 2}}, 5);
  const LoraValues q = random_lora(kQ, 5, 8, 2), k = random_lora(kK, 5, 4, 3, 5);
  const std::vector<float> x = eighths(5, 42);
  expect_near(added(rig, load(rig, {q, k}), target, x), joined(product(q, 4, 4, x), product(k, 2, 2, x)));
}

TEST_F(LoraStoreTest, RanksThatShareTheInputsAddUp) {
  LoraRig rig;
  const std::string name = "model.layers.0.self_attn.o_proj";
  const int32_t first = rig.add_target({{name, 4, 0, 4}}, 6, 0, 3);
  const int32_t second = rig.add_target({{name, 4, 0, 4}}, 6, 3, 3);
  const LoraValues o = random_lora(name, 6, 4, 2);
  const std::vector<float> x = eighths(6, 42), left(x.begin(), x.begin() + 3), right(x.begin() + 3, x.end());
  const LoraWeights weights = load(rig, {o});
  std::vector<double> sum = added(rig, weights, first, left);
  expect_near(sum, product(o, 0, 4, left));
  const std::vector<double> rest = added(rig, weights, second, right);
  expect_near(rest, product(o, 0, 4, right, 3));
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += rest[i];
  expect_near(sum, product(o, 0, 4, x));
}

TEST_F(LoraStoreTest, ANameMayLackWhatStandsBeforeIt) {
  for (const std::string of_model :
       {"h.0.mlp.fc", "transformer.h.0.mlp.fc", "model.transformer.h.0.mlp.fc"}) {
    LoraRig rig;
    rig.add_target({{of_model, 4, 0, 4}}, 5);
    EXPECT_EQ(load(rig, {random_lora("transformer.h.0.mlp.fc", 5, 4, 2)}).at(0).total_rank(), 2) << of_model;
  }
  for (const std::string of_model :
       {"h.10.mlp.fc", "0.mlp", "xtransformer.h.0.mlp.fc", "former.h.0.mlp.fc"}) {
    LoraRig rig;
    rig.add_target({{of_model, 4, 0, 4}}, 5);
    EXPECT_EQ(refusal(rig, {random_lora("transformer.h.0.mlp.fc", 5, 4, 2)}),
              "D/adapter_model.safetensors: 'transformer.h.0.mlp.fc' is no linear of this model that "
              "adapters may change");
  }
}

TEST_F(LoraStoreTest, WhatDoesNotFitTheModelIsRefused) {
  LoraRig rig(1, /*max_rank=*/4);
  rig.add_target({{kQ, 6, 0, 3}, {kK, 3, 0, 1}}, 5, 1, 2);  // a rank's part of it
  EXPECT_EQ(refusal(rig, {random_lora(kQ, 5, 6, 4), random_lora(kK, 5, 3, 4)}), "");
  const std::string q = str("D/adapter_model.safetensors: '", kQ, "' ");
  EXPECT_EQ(refusal(rig, {random_lora(kQ, 2, 6, 2)}),
            q + "goes from 2 inputs to 6 outputs, in this model from 5 to 6: it was made for another");
  EXPECT_EQ(refusal(rig, {random_lora(kQ, 5, 3, 2)}),
            q + "goes from 5 inputs to 3 outputs, in this model from 5 to 6: it was made for another");
  EXPECT_EQ(refusal(rig, {random_lora(kQ, 5, 6, 5)}), q + "has rank 5, and max_lora_rank is 4: raise it");
  EXPECT_EQ(
      refusal(rig, {random_lora(kQ, 5, 6, 2), random_lora(kV, 5, 3, 2)}),
      str("D/adapter_model.safetensors: '", kV, "' is no linear of this model that adapters may change"));
  EXPECT_EQ(refusal(rig, {random_lora("layers.0.self_attn.q_proj", 5, 6, 2), random_lora(kQ, 5, 6, 2)}),
            q + "is the same linear as 'layers.0.self_attn.q_proj'");
}

TEST_F(LoraStoreTest, ValuesThatAreNotFiniteAreRefused) {
  LoraRig rig;
  rig.add_target({{kQ, 6, 0, 6}}, 5);
  for (const float bad : {NAN, std::numeric_limits<float>::infinity()}) {
    LoraValues q = random_lora(kQ, 5, 6, 2);
    q.b[7] = bad;
    EXPECT_EQ(refusal(rig, {q}),
              str("D/adapter_model.safetensors: tensor 'base_model.model.", kQ,
                  ".lora_B.weight' holds NaN or an infinite value, at place 7 of 12; the file is damaged, or "
                  "was written by a training run that had diverged"));
    q = random_lora(kQ, 5, 6, 2);
    q.a[3] = bad;
    EXPECT_NE(refusal(rig, {q}).find("lora_A.weight' holds NaN or an infinite value, at place 3 of 10"),
              std::string::npos);
  }
}

TEST_F(LoraStoreTest, ValuesBeyondTheModelsDtypeAreRefused) {
  LoraRig rig(1, 8, DType::kFloat16);
  rig.add_target({{kQ, 6, 0, 6}}, 5);
  LoraValues q = random_lora(kQ, 5, 6, 2);
  q.a[3] = 60000;
  EXPECT_EQ(refusal(rig, {q}), "");
  q.b[3] = 60000;
  EXPECT_EQ(refusal(rig, {q}), str("D/adapter_model.safetensors: '", kQ,
                                   "' times its scale 2 has values that float16 cannot hold"));
}

TEST_F(LoraStoreTest, WhoFoundAnAdapterKeepsItWhenItGoes) {
  LoraRig rig;
  rig.add_target({{kQ, 6, 0, 6}}, 5);
  LoraStore store(rig.targets, rig.ops, nullptr, rig.dtype);
  const ModelDirectory directory;
  EXPECT_THROW(store.find(3), InternalError);
  store.load(3, make_adapter(directory, {random_lora(kQ, 5, 6, 2)}));
  const auto found = store.find(3);
  store.unload(3);
  store.unload(3);
  EXPECT_THROW(store.find(3), InternalError);
  EXPECT_EQ(found->at(0).total_rank(), 2);
  // What is refused changes nothing.
  const ModelDirectory other;
  EXPECT_THROW(store.load(4, make_adapter(other, {random_lora(kV, 5, 6, 2)})), InvalidArgument);
  EXPECT_THROW(store.find(4), InternalError);
}

}  // namespace
}  // namespace quire
