// What adapters add to the experts of mixtures.
#include <array>

#include "experts_fixture.h"

namespace quire {
namespace {

using ModuleRanks = std::array<int32_t, kMaxLoraModules>;

struct MixtureShape {
  int64_t tokens, experts, hidden, intermediate;
  int32_t top_k;
  bool biases;
  Activation activation;
  int64_t padding = 0;  // of rows, in elements
  int repeats = 1;      // of the adapters
};

// Of each adapter, for the modules of either product: of the gate, of up, of both at once; of down, twice.
struct AdapterRanks {
  ModuleRanks gate_up, down;
};

// Both matrices of every expert, for one product.
struct ProductAdapter {
  std::vector<double> a, b[kMaxLoraModules];  // of all experts
  Memory memory{0};
  LoraSlot slot;
};

class ExpertLorasTest : public ExpertsTest {
 protected:
  int32_t padded(int32_t rank) {
    const int32_t multiple = kernels().lora_rank_multiple;
    return (rank + multiple - 1) / multiple * multiple;
  }
  // As products of the table read it; what is beyond the first rows and columns of `rows` is zeros.
  void pack(std::byte* to, const Tensor& rows) {
    const DType dtype = rows.view().dtype;
    const int64_t n = rows.view().shape[0], k = rows.view().shape[1];
    if (kernels().linear_pack_rows != nullptr) {
      kernels().linear_pack_rows(context(), {.data = to, .n = n, .k = k, .dtype = dtype, .packed = true}, 0,
                                 rows);
    } else {
      std::memcpy(to, rows.view().data, static_cast<size_t>(n * k) * dtype_bytes(dtype));
    }
  }
  // Every third expert has zeros.
  ProductAdapter make(const ModuleRanks& ranks, const std::vector<LoraModule>& modules, int64_t k,
                      int64_t experts, DType dtype, uint32_t seed) {
    ProductAdapter adapter;
    LoraSlot& slot = adapter.slot;
    std::transform(ranks.begin(), ranks.end(), slot.ranks, [&](int32_t rank) { return padded(rank); });
    if (slot.total_rank() == 0) return adapter;
    size_t used = 0;
    const auto take = [&](int64_t n, int64_t columns) {
      return std::exchange(used, used + (kernels().linear_weight_bytes(n, columns, dtype) + 63) / 64 * 64);
    };
    const size_t at_a = take(slot.total_rank(), k);
    size_t at_b[kMaxLoraModules] = {};
    for (size_t m = 0; m < modules.size(); ++m)
      at_b[m] = slot.ranks[m] > 0 ? take(modules[m].num_outputs, slot.ranks[m]) : 0;
    slot.expert_stride_bytes = static_cast<int64_t>(used);
    adapter.memory = Memory(static_cast<size_t>(slot.expert_stride_bytes * experts), 0);
    std::byte* data = adapter.memory.data();
    slot.a = data + at_a;
    for (int64_t e = 0; e < experts; ++e, data += slot.expert_stride_bytes, seed += 10) {
      const auto random = [&](int64_t rows, int64_t columns, uint32_t which, float scale) {
        Tensor tensor(dtype, rows, columns);
        tensor.randomize(seed + which, e % 3 == 2 ? 0.0F : scale);
        pack(data + (which == 0 ? at_a : at_b[which - 1]), tensor);
        return tensor.values();
      };
      const std::vector<double> a = random(slot.total_rank(), k, 0, 0.1F);
      adapter.a.insert(adapter.a.end(), a.begin(), a.end());
      for (size_t m = 0; m < modules.size(); ++m) {
        if (slot.ranks[m] == 0) continue;
        slot.b[m] = adapter.memory.data() + at_b[m];
        const std::vector<double> b =
            random(modules[m].num_outputs, slot.ranks[m], static_cast<uint32_t>(m) + 1, 0.2F);
        adapter.b[m].insert(adapter.b[m].end(), b.begin(), b.end());
      }
    }
    return adapter;
  }

  // Adapters of a mixture, as args have them.
  struct Adapters {
    std::vector<LoraModule> gate_up_modules, down_modules;
    std::vector<ProductAdapter> gate_up, down;
    Array<LoraSlot> slots;  // of gate_up and down in turns
    ExpertLoraArgs args;
  };
  Adapters make_adapters(const MixtureShape& s, const std::vector<AdapterRanks>& ranks, DType dtype) {
    Adapters all;
    const int64_t inter = s.intermediate;
    all.gate_up_modules = {{0, inter}, {inter, inter}, {0, 2 * inter}};
    all.down_modules = {{0, s.hidden}, {0, s.hidden}};
    uint32_t seed = 1000;
    for (const AdapterRanks& each : ranks) {
      all.gate_up.push_back(make(each.gate_up, all.gate_up_modules, s.hidden, s.experts, dtype, seed));
      all.down.push_back(make(each.down, all.down_modules, inter, s.experts, dtype, seed + 500));
      seed += 1000;
      for (const ProductAdapter* product : {&all.gate_up.back(), &all.down.back()}) {
        all.slots.push_back(product->slot);
        int32_t& most = (product == &all.down.back() ? all.args.down : all.args.gate_up).max_total_rank;
        most = std::max(most, product->slot.total_rank());
      }
    }
    const auto set = [&](ExpertLoraArgs::Product& product, const std::vector<LoraModule>& modules,
                         size_t first) {
      product.slots = all.slots.data() + first;
      product.modules = modules.data();
      product.num_modules = static_cast<int32_t>(modules.size());
    };
    set(all.args.gate_up, all.gate_up_modules, 0);
    set(all.args.down, all.down_modules, 1);
    all.args.slot_stride = 2;
    all.args.max_loras = static_cast<int32_t>(ranks.size());
    return all;
  }
  void reserve(int64_t tokens, int32_t top_k, const Experts& experts, const ExpertLoraArgs& loras) {
    set_guarded_workspace(kernels().fused_experts_workspace_bytes(tokens, top_k, experts.view(), &loras));
  }
  void compute(const FusedExpertsArgs& args, ThreadPool* pool) {
    kernels().fused_experts(context(pool), args);
    wait_for_device();
    expect_whole_guard();
  }
};

// out += b (a x) of an expert's.
void add_product(const ProductAdapter& adapter, const std::vector<LoraModule>& modules, size_t expert,
                 const double* x, size_t k, std::vector<double>& out) {
  const auto total = static_cast<size_t>(adapter.slot.total_rank());
  if (total == 0) return;
  std::vector<double> h(total);
  for (size_t r = 0; r < total; ++r) h[r] = reference::dot(&adapter.a[(expert * total + r) * k], x, k);
  size_t rank_before = 0;
  for (size_t m = 0; m < modules.size(); ++m) {
    const auto rank = static_cast<size_t>(adapter.slot.ranks[m]);
    const auto outputs = static_cast<size_t>(modules[m].num_outputs);
    for (size_t o = 0; rank > 0 && o < outputs; ++o)
      out[static_cast<size_t>(modules[m].first_output) + o] +=
          reference::dot(&adapter.b[m][(expert * outputs + o) * rank], &h[rank_before], rank);
    rank_before += rank;
  }
}

class ExpertLorasReferenceTest : public ExpertLorasTest {
 protected:
  // With each of a device's kernels.
  void compare(const std::vector<MixtureShape>& shapes) {
    const std::vector<const char*> names =
        is_cuda() ? std::vector<const char*>{"", "plain", "few_rows", "wgmma"} : std::vector<const char*>{""};
    for (const DType dtype : float_types()) compare(shapes, dtype, names);
  }
  void compare(const std::vector<MixtureShape>& shapes, DType dtype, const std::vector<const char*>& names);
};

void ExpertLorasReferenceTest::compare(const std::vector<MixtureShape>& shapes, DType dtype,
                                       const std::vector<const char*>& names) {
  ThreadPool pool(2);
  const std::vector<AdapterRanks> kAdapters = {
      {{8, 3}, {5}},         // of single experts, gate and up by themselves
      {{0, 0, 16}, {0, 9}},  // of all experts
      {{}, {}},              // has nothing here
      {{}, {0, 1}},
      {{1}, {}},
      {{0, 0, 40}, {}},
  };
  for (const MixtureShape& s : shapes) {
    SCOPED_TRACE(testing::Message() << dtype_name(dtype) << " " << s.tokens << " of " << s.experts);
    const Experts experts(kernels(), context(), dtype, s.experts, s.hidden, s.intermediate, s.biases);
    std::vector<AdapterRanks> ranks;
    for (int i = 0; i < s.repeats; ++i) ranks.insert(ranks.end(), kAdapters.begin(), kAdapters.end());
    Adapters adapters = make_adapters(s, ranks, dtype);
    const Tensor x = std::move(Tensor(dtype, s.tokens, s.hidden, s.padding).randomize(5));
    const Tensor logits = std::move(Tensor(DType::kFloat32, s.tokens, s.experts).randomize(6));
    Routing routing = route(logits, {.top_k = s.top_k, .renormalize = true});
    if (s.tokens > 1) routing.ids[routing.ids.size() - 1] = -1;  // goes nowhere
    Array<int32_t> row_slots;
    for (int64_t t = 0; t < s.tokens; ++t)
      row_slots.push_back(static_cast<int32_t>((t * 5 + t / 7) % static_cast<int64_t>(ranks.size() + 1) -
                                               (s.tokens > 1 ? 1 : 0)));
    adapters.args.row_slots = row_slots.data();
    const std::vector<double> inputs = x.values();
    std::vector<double> expected(static_cast<size_t>(s.tokens * s.hidden));
    for (size_t i = 0; i < routing.ids.size(); ++i) {
      if (routing.ids[i] < 0) continue;
      const size_t t = i / static_cast<size_t>(s.top_k), expert = static_cast<size_t>(routing.ids[i]);
      const auto add_adapter = [&](bool is_gate_up, const double* row, std::vector<double>& out) {
        if (row_slots[t] < 0) return;
        const auto which = static_cast<size_t>(row_slots[t]);
        if (is_gate_up) {
          add_product(adapters.gate_up[which], adapters.gate_up_modules, expert, row,
                      static_cast<size_t>(s.hidden), out);
        } else {
          add_product(adapters.down[which], adapters.down_modules, expert, row,
                      static_cast<size_t>(s.intermediate), out);
        }
      };
      const auto row =
          experts.compute(expert, &inputs[t * static_cast<size_t>(s.hidden)], s.activation, add_adapter);
      for (size_t r = 0; r < row.size(); ++r)
        expected[t * row.size() + r] += static_cast<double>(routing.weights[i]) * row[r];
    }
    for (const char* name : names) {
      SCOPED_TRACE(name);
      setenv("QUIRE_EXPERTS_KERNEL", name, 1);
      reserve(s.tokens, s.top_k, experts, adapters.args);
      const Tensor out(dtype, s.tokens, s.hidden, s.padding), again(dtype, s.tokens, s.hidden, s.padding);
      for (const Tensor* to : {&out, &again}) {
        compute({.out = *to,
                 .x = x,
                 .expert_ids = routing.ids.data(),
                 .weights = routing.weights.data(),
                 .top_k = s.top_k,
                 .experts = experts.view(),
                 .activation = s.activation,
                 .loras = &adapters.args},
                &pool);
      }
      expect_near(out.values(), expected, dtype);
      for (int64_t t = 0; t < s.tokens; ++t) ASSERT_EQ(out.row_bytes(t), again.row_bytes(t)) << t;
    }
    unsetenv("QUIRE_EXPERTS_KERNEL");
  }
}

TEST_P(ExpertLorasReferenceTest, OfFewTokens) {
  compare({{1, 8, 64, 48, 2, false, Activation::kSilu},
           {1, 4, 33, 17, 4, true, Activation::kClampedSwiglu, 3},
           {7, 16, 96, 40, 3, false, Activation::kSilu, 3},
           {40, 4, 128, 64, 2, true, Activation::kSilu, 8},
           {60, 16, 136, 72, 3, true, Activation::kClampedSwiglu, 8}});
}

// Also under sanitizers, which take their time.
TEST_P(ExpertLorasReferenceTest, OfFewTokensWithTheQuickestKernel) {
  compare({{7, 16, 96, 40, 3, false, Activation::kSilu, 3}, {40, 4, 128, 64, 2, true, Activation::kSilu, 8}},
          DType::kBFloat16, {""});
}

TEST_P(ExpertLorasReferenceTest, OfManyTokens) {
  std::vector<MixtureShape> shapes = {{300, 6, 64, 96, 1, false, Activation::kSilu},
                                      {400, 3, 200, 64, 2, true, Activation::kGeluTanh, 8}};
  if (is_cuda()) {
    shapes.push_back({16, 64, 520, 264, 4, true, Activation::kSilu, 8});
    shapes.push_back({1100, 9, 264, 136, 4, false, Activation::kClampedSwiglu, 8});
    shapes.push_back({1100, 3, 128, 64, 2, false, Activation::kSilu, 0, 7});
  }
  compare(shapes);
}

// Alone, in company, and among so many that they are not computed at once; a row without an adapter as if
// there were none.
TEST_P(ExpertLorasTest, ARowDependsOnItselfAlone) {
  if (is_cuda()) GTEST_SKIP() << "the quickest kernel for a shape is taken";
  ThreadPool pool(2);
  const MixtureShape s = {4300, 5, 48, 32, 2, true, Activation::kSilu};
  for (const DType dtype : float_types()) {
    const Experts experts(kernels(), context(), dtype, s.experts, s.hidden, s.intermediate, s.biases);
    Adapters adapters = make_adapters(s, {{{3, 8}, {5}}, {{0, 0, 16}, {0, 9}}, {{}, {4}}}, dtype);
    const Tensor x = std::move(Tensor(dtype, s.tokens, s.hidden).randomize(5));
    const Tensor logits = std::move(Tensor(DType::kFloat32, s.tokens, s.experts).randomize(6));
    Routing routing = route(logits, {.top_k = s.top_k, .renormalize = true});
    Array<int32_t> row_slots;
    for (int64_t t = 0; t < s.tokens; ++t) row_slots.push_back(static_cast<int32_t>(t % 4 - 1));
    reserve(s.tokens, s.top_k, experts, adapters.args);
    const auto run = [&](const Tensor& out, int64_t first, int64_t count, ThreadPool* threads,
                         bool has_loras) {
      adapters.args.row_slots = row_slots.data() + first;
      compute({.out = out.view().rows(first, count),
               .x = x.view().rows(first, count),
               .expert_ids = routing.ids.data() + 2 * first,
               .weights = routing.weights.data() + 2 * first,
               .top_k = s.top_k,
               .experts = experts.view(),
               .activation = s.activation,
               .loras = has_loras ? &adapters.args : nullptr},
              threads);
    };
    const Tensor all(dtype, s.tokens, s.hidden), parts(dtype, s.tokens, s.hidden);
    run(all, 0, s.tokens, &pool, true);
    for (const auto& [first, count] :
         {std::pair<int64_t, int64_t>{0, 1}, {1, 7}, {8, 33}, {41, 500}, {4096, 1}, {s.tokens - 1, 1}}) {
      run(parts, first, count, first % 2 == 0 ? &pool : nullptr, true);
      for (int64_t t = first; t < first + count; ++t) ASSERT_EQ(parts.row_bytes(t), all.row_bytes(t)) << t;
    }
    run(parts, 0, s.tokens, &pool, false);
    for (int64_t t = 0; t < s.tokens; ++t)
      ASSERT_EQ(parts.row_bytes(t) == all.row_bytes(t), row_slots[static_cast<size_t>(t)] < 0) << t;
  }
}

QUIRE_FOR_EVERY_TABLE(ExpertLorasTest);
QUIRE_FOR_EVERY_TABLE(ExpertLorasReferenceTest);

}  // namespace
}  // namespace quire
