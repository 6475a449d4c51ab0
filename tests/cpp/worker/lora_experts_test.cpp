// Adapters of experts: which matrices lie where, and what does not fit a mixture.
#include <gtest/gtest.h>

#include <cmath>

#include "util/error_of.h"
#include "worker/lora_rig.h"
#include "worker/lora_slots.h"

namespace quire {
namespace {

constexpr int32_t kExperts = 3;
constexpr int64_t kHidden = 5, kInter = 8;
const std::string kMixture = "model.layers.0.mlp.experts";

class LoraExpertsTest : public testing::Test {
 protected:
  static int32_t add_mixture(LoraRig& rig, Shard mine = {0, kInter}, const ExpertNames& names = {}) {
    ExpertsShard shard;
    shard.name = "model.layers.0.mlp";
    shard.num_experts = kExperts;
    shard.hidden_size = kHidden;
    shard.intermediate_size = kInter;
    shard.mine = mine;
    shard.names = names;
    return rig.targets.add_experts(shard);
  }
  static LoraValues of_one(int32_t expert, const std::string& name, int64_t rank = 2, uint32_t seed = 1) {
    const bool is_down = name == "down_proj";
    return random_lora(str(kMixture, ".", expert, ".", name), is_down ? kInter : kHidden,
                       is_down ? kHidden : kInter, rank, seed);
  }
  static LoraValues gate_up_of_all(int64_t rank = 2, const char* wrapped = "") {
    return random_lora_of_all(kMixture + ".gate_up_proj", kMixture + wrapped, kExperts, kHidden, 2 * kInter,
                              rank);
  }
  static LoraValues down_of_all(int64_t rank = 3) {
    return random_lora_of_all(kMixture + ".down_proj", kMixture, kExperts, kInter, kHidden, rank, 7);
  }
  // What an adapter adds to the outputs of one product of an expert for one row, as to those of a linear.
  static std::vector<float> added(const LoraRig& rig, const LoraWeights& weights, int32_t target,
                                  int32_t expert, const std::vector<float>& x) {
    const LoraTarget& what = rig.targets.all()[static_cast<size_t>(target)];
    LoraSlot slot = weights.at(static_cast<size_t>(target));
    const auto move = [&](const void*& data) {
      if (data != nullptr) data = static_cast<const std::byte*>(data) + expert * slot.expert_stride_bytes;
    };
    move(slot.a);
    for (const void*& b : slot.b) move(b);
    const LoraShape shape = {1, what.n, what.k, slot.total_rank(), 1, rig.dtype};
    Buffer workspace(rig.ops.lora_workspace_bytes(shape));
    LaunchContext launch;
    launch.workspace = workspace.data();
    launch.workspace_bytes = workspace.size();
    std::vector<float> out(static_cast<size_t>(what.n)), inputs = x;
    const int32_t row = 0, num_segments[] = {1, 1};
    const LoraSegment segment = {0, 0, 1};
    LoraArgs args;
    args.out = {out.data(), DType::kFloat32, 1, what.n};
    args.x = {inputs.data(), DType::kFloat32, 1, what.k};
    args.slots = &slot;
    args.modules = what.outputs.data();
    args.num_modules = static_cast<int32_t>(what.outputs.size());
    args.max_total_rank = slot.total_rank();
    args.max_segments = 1;
    args.batch = {&row, &segment, num_segments};
    rig.ops.add_lora(launch, args);
    return out;
  }
  // Two times b (a x), of an output of the module. `expert`: of a parameter of all.
  static float product(const LoraValues& module, int64_t output, const std::vector<float>& x,
                       int64_t expert = 0, int64_t k_begin = 0) {
    const int64_t turns = std::max<int64_t>(1, module.num_experts);
    double sum = 0;
    for (int64_t r = 0; r < module.rank; ++r) {
      double h = 0;
      for (size_t i = 0; i < x.size(); ++i)
        h += double{module.a[static_cast<size_t>((expert * module.rank + r) * module.inputs + k_begin) + i]} *
             double{x[i]};
      sum += double{module.b[static_cast<size_t>((output * module.rank + r) * turns + expert)]} * h;
    }
    return static_cast<float>(2 * sum);
  }
  static void expect_near(const std::vector<float>& found, const std::vector<float>& expected) {
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-4F) << i;
  }
};

TEST_F(LoraExpertsTest, AParameterHasRanksByExpertAndExpertsByColumn) {
  for (const bool take_turns : {false, true}) {
    LoraRig rig;
    const int32_t target = add_mixture(rig, {0, kInter}, {.take_turns = take_turns});
    const LoraValues gate_up = gate_up_of_all(2, ".base_layer"), down = down_of_all();
    const LoraWeights weights = load(rig, {gate_up, down});
    const std::vector<float> x = eighths(kHidden, 42), inner = eighths(kInter, 43);
    for (int32_t expert = 0; expert < kExperts; ++expert) {
      std::vector<float> both, out;
      for (int64_t i = 0; i < 2 * kInter; ++i) {
        const int64_t row = take_turns ? i % kInter * 2 + i / kInter : i;
        both.push_back(product(gate_up, row, x, expert));
      }
      for (int64_t i = 0; i < kHidden; ++i) out.push_back(product(down, i, inner, expert));
      expect_near(added(rig, weights, target, expert, x), both);
      expect_near(added(rig, weights, target + 1, expert, inner), out);
    }
  }
}

TEST_F(LoraExpertsTest, ExpertsThatAnAdapterHasNotAndLowerRanksAreZeros) {
  LoraRig rig;
  const int32_t target = add_mixture(rig);
  const LoraValues gate0 = of_one(0, "gate_proj", 1), up0 = of_one(0, "up_proj", 5, 3),
                   gate2 = of_one(2, "gate_proj", 4, 9);
  const LoraWeights weights = load(rig, {gate0, up0, gate2});
  EXPECT_EQ(weights.at(static_cast<size_t>(target)).total_rank(), 4 + 5);
  EXPECT_EQ(weights.at(static_cast<size_t>(target) + 1).a, nullptr);
  const std::vector<float> x = eighths(kHidden, 42);
  for (int32_t expert = 0; expert < kExperts; ++expert) {
    std::vector<float> both(2 * kInter);
    for (size_t i = 0; i < kInter; ++i) {
      const auto row = static_cast<int64_t>(i);
      if (expert != 1) both[i] = product(expert == 0 ? gate0 : gate2, row, x);
      if (expert == 0) both[kInter + i] = product(up0, row, x);
    }
    expect_near(added(rig, weights, target, expert, x), both);
  }
}

TEST_F(LoraExpertsTest, ARankHasRowsOfBothHalvesAndColumnsOfDown) {
  for (const bool take_turns : {false, true}) {
    LoraRig rig;
    const int32_t target = add_mixture(rig, {3, 2}, {.take_turns = take_turns});
    const LoraValues gate_up = gate_up_of_all(2, ".base_layer"), down = down_of_all();
    const LoraWeights weights = load(rig, {gate_up, down});
    const std::vector<float> x = eighths(kHidden, 42), inner = eighths(2, 43);
    std::vector<float> both, out;
    for (const int64_t half : {0, 1}) {
      for (const int64_t i : {3, 4})
        both.push_back(product(gate_up, take_turns ? 2 * i + half : half * kInter + i, x, 1));
    }
    for (int64_t i = 0; i < kHidden; ++i) out.push_back(product(down, i, inner, 1, /*k_begin=*/3));
    expect_near(added(rig, weights, target, 1, x), both);
    expect_near(added(rig, weights, target + 1, 1, inner), out);
  }
}

TEST_F(LoraExpertsTest, TheLargestAdapterFitsItsRoom) {
  constexpr int32_t kRank = 8;
  LoraRig rig(1, kRank);
  add_mixture(rig);
  std::vector<LoraValues> each;
  for (int32_t expert = 0; expert < kExperts; ++expert) {
    for (const char* name : {"gate_proj", "up_proj", "down_proj"})
      each.push_back(of_one(expert, name, expert == 1 ? kRank : 1));
  }
  const size_t room = rig.targets.max_adapter_bytes(rig.dtype);
  EXPECT_EQ(load(rig, each).bytes(), room);
  EXPECT_LE(load(rig, {gate_up_of_all(kRank, ".base_layer"), down_of_all(kRank)}).bytes(), room);
  LoraRig without(1, kRank, DType::kFloat32, /*have_experts=*/false);
  EXPECT_EQ(add_mixture(without), -1);
  EXPECT_EQ(without.targets.max_adapter_bytes(without.dtype), 0U);
  EXPECT_FALSE(without.targets.has_mixtures());
}

TEST_F(LoraExpertsTest, OtherNamesOfAModelAreKnown) {
  LoraRig rig;
  rig.targets.add_alias(".block_sparse_moe.", ".mlp.");
  const int32_t target = add_mixture(rig, {0, kInter}, {"w1", "w3", "w2"});
  for (const char* mixture : {"mlp", "block_sparse_moe"}) {
    const std::string name = str("model.layers.0.", mixture, ".experts.1.w3");
    const LoraWeights weights = load(rig, {random_lora(name, kHidden, kInter, 2)});
    EXPECT_EQ(weights.at(static_cast<size_t>(target)).ranks[1], 2) << name;
  }
}

TEST_F(LoraExpertsTest, WhatDoesNotFitTheMixtureIsRefused) {
  LoraRig rig(1, /*max_rank=*/4);
  add_mixture(rig);
  rig.add_target({{"model.layers.0.mlp.gate", kExperts, 0, kExperts}}, kHidden);
  const std::string file = "D/adapter_model.safetensors: '";
  const auto of_all = [](int64_t experts, int64_t inputs, int64_t outputs, int64_t rank = 2) {
    return random_lora_of_all(kMixture + ".down_proj", kMixture, experts, inputs, outputs, rank);
  };
  const std::string down = file + kMixture + ".down_proj' ", other = ": it was made for another";
  EXPECT_EQ(refusal(rig, {of_all(kExperts, kInter, kHidden)}), "");
  EXPECT_EQ(refusal(rig, {of_all(4, kInter, kHidden)}), down + "has 4 experts, in this model 3" + other);
  EXPECT_EQ(refusal(rig, {of_all(1, kInter, kHidden)}), down + "has 1 experts, in this model 3" + other);
  EXPECT_EQ(refusal(rig, {of_all(kExperts, kHidden, kInter)}),
            down + "goes from 5 inputs to 8 outputs, in this model from 8 to 5" + other);
  EXPECT_EQ(refusal(rig, {of_all(kExperts, kInter, kHidden, 5)}),
            down + "has rank 5, and max_lora_rank is 4: raise it");
  const auto one = [&](int32_t expert) { return file + str(kMixture, ".", expert, ".up_proj' "); };
  EXPECT_EQ(refusal(rig, {of_one(3, "up_proj")}),
            one(3) + "is of an expert that this model has not: it has 3, from 0 on");
  EXPECT_EQ(refusal(rig, {of_one(0, "up_proj", 5)}), one(0) + "has rank 5, and max_lora_rank is 4: raise it");
  EXPECT_EQ(refusal(rig, {random_lora(kMixture + ".0.up_proj", kHidden, 2 * kInter, 2)}),
            one(0) + "goes from 5 inputs to 16 outputs, in this model from 5 to 8" + other);
  for (const std::string name : {".0.gate_up_proj", ".-1.up_proj", ".1x.up_proj", ".99999999999.up_proj",
                                 ".up_proj", ".0.0.up_proj", ".w1", ".0"}) {
    EXPECT_EQ(refusal(rig, {random_lora(kMixture + name, kHidden, kInter, 2)}),
              file + kMixture + name + "' is no linear of this model that adapters may change");
  }
  EXPECT_EQ(refusal(rig, {random_lora(kMixture + ".down_proj", kInter, kHidden, 2)}),
            down + "is a parameter of all experts, and not among 'target_parameters'");
  LoraValues gate = of_all(kExperts, kHidden, kExperts);
  gate.name = "model.layers.0.mlp.gate.weight";
  gate.name_in_file = "model.layers.0.mlp.gate";
  EXPECT_EQ(refusal(rig, {gate}), file + "model.layers.0.mlp.gate' has 3 experts, in this model 1" + other);
  EXPECT_EQ(refusal(rig, {of_one(0, "gate_proj"), gate_up_of_all()}),
            file + kMixture + ".gate_up_proj' and '" + kMixture +
                ".0.gate_proj' are of the same experts: all of them, and one by itself");
  LoraValues again = of_one(0, "up_proj");
  again.name = again.name_in_file = "layers.0.mlp.experts.0.up_proj";
  EXPECT_EQ(refusal(rig, {of_one(0, "up_proj"), again}),
            one(0) + "is the same linear as '" + again.name + "'");
  LoraRig without(1, 4, DType::kFloat32, /*have_experts=*/false);
  EXPECT_EQ(refusal(without, {of_one(0, "up_proj")}),
            one(0) + "is of a mixture's experts, and enable_lora_experts is false");
}

// What stands for any expert is no name of one.
TEST_F(LoraExpertsTest, AnAsteriskIsNoExpert) {
  LoraRig rig;
  add_mixture(rig);
  const ModelDirectory directory;
  make_adapter(directory, {random_lora(kMixture + ".*.up_proj", kHidden, kInter, 1)}, /*has_patterns=*/false);
  const LoraAdapter adapter = LoraAdapter::open(directory.path());
  EXPECT_EQ(error_of([&] { LoraWeights(adapter, rig.targets, rig.ops, nullptr, rig.dtype); }),
            directory.path() + "/adapter_model.safetensors: '" + kMixture +
                ".*.up_proj' is no linear of this model that adapters may change");
}

TEST_F(LoraExpertsTest, ValuesThatAreNotFiniteAreRefused) {
  LoraRig rig;
  add_mixture(rig);
  LoraValues down = down_of_all();
  down.a[7] = NAN;
  EXPECT_NE(refusal(rig, {down}).find("experts.lora_A.weight' holds NaN or an infinite value, at place 7"),
            std::string::npos);
  LoraValues up = of_one(1, "up_proj");
  up.b[3] = INFINITY;
  EXPECT_NE(
      refusal(rig, {up}).find("experts.1.up_proj.lora_B.weight' holds NaN or an infinite value, at place 3"),
      std::string::npos);
}

TEST_F(LoraExpertsTest, BatchesSayOfEachRowWhichSlotItHasWhereExpertsChange) {
  LoraRig rig(/*max_loras=*/2);
  add_mixture(rig);
  rig.add_target({{"layers.0.q_proj", 4, 0, 4}}, kHidden);
  LoraStore store(rig.targets, rig.ops, nullptr, rig.dtype);
  for (const LoraId id : {1, 2}) {
    const ModelDirectory directory;
    store.load(id, make_adapter(directory, {down_of_all(id)}));
  }
  const ModelDirectory directory;
  store.load(3, make_adapter(directory, {random_lora("layers.0.q_proj", kHidden, 4, 2)}));
  LoraSlots slots(rig.targets, store, make_host_lora_memory(rig.targets), /*max_num_batched_tokens=*/16);
  slots.apply(std::vector<LoraLoad>{{2, 0}, {1, 1}});
  InputBatch batch(/*max_num_seqs=*/6, /*max_model_len=*/8, std::vector{16});
  std::vector<CachedRequestState> requests(4);
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].request_id = i + 1;
    requests[i].prompt_token_ids = {1};
    requests[i].block_ids = {{1}};
    requests[i].lora_id = std::vector<LoraId>{1, 0, 2, 1}[i];
    batch.add(requests[i]);
  }
  const auto row_slots = [&](const std::vector<int32_t>& num_scheduled) {
    const auto found = slots.prepare(batch, num_scheduled).row_slots;
    return std::vector<int32_t>(found.begin(), found.end());
  };
  EXPECT_EQ(row_slots({2, 3, 1, 1}), (std::vector<int32_t>{1, 1, -1, -1, -1, 0, 1}));
  EXPECT_EQ(row_slots({0, 1, 2, 0}), (std::vector<int32_t>{-1, 0, 0}));
  EXPECT_EQ(row_slots({0, 3, 0, 0}), std::vector<int32_t>{});
  EXPECT_EQ(lora_use_of(slots.prepare(batch, std::vector{0, 3, 0, 0})), LoraUse::kNone);
  EXPECT_EQ(lora_use_of(slots.prepare(batch, std::vector{1, 3, 1, 0})), LoraUse::kExperts);
  // One that changes linears alone comes instead of adapter 1: where no other has rows, experts are as they
  // are.
  slots.apply(std::vector<LoraLoad>{{3, 1}});
  for (CachedRequestState& request : requests)
    if (request.lora_id == 1) request.lora_id = 3;
  EXPECT_EQ(row_slots({1, 1, 1, 1}), (std::vector<int32_t>{1, -1, 0, 1}));
  EXPECT_EQ(lora_use_of(slots.prepare(batch, std::vector{1, 1, 0, 1})), LoraUse::kLinears);
  EXPECT_TRUE(slots.step({}, LoraUse::kExperts).changes_experts);
  EXPECT_FALSE(slots.step({}, LoraUse::kLinears).changes_experts);
}

}  // namespace
}  // namespace quire
