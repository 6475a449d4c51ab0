// What adapters add to a linear, by the ops of a table and by the reference.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "kernel_test.h"

namespace quire {

using LoraRanks = std::array<int32_t, kMaxLoraModules>;

// The inputs of a linear, what it computed of them, and adapters.
struct LoraCase {
  int64_t tokens = 0, n = 0, k = 0;
  std::vector<LoraModule> modules;
  std::vector<LoraRanks> ranks;  // of each adapter
  int64_t padding = 0;           // of rows, in elements
};

struct TestAdapter {
  std::vector<double> a, b[kMaxLoraModules];
  std::vector<Memory> memory;
  LoraSlot slot;
};

class LoraTest : public KernelTest {
 protected:
  void SetUp() override {
    KernelTest::SetUp();
    ASSERT_NE(GetParam()->add_lora, nullptr);
  }
  // The matrix as products of the table read it.
  const void* pack(const Tensor& rows, std::vector<Memory>& memory) {
    const DType dtype = rows.view().dtype;
    const int64_t n = rows.view().shape[0], k = rows.view().shape[1];
    memory.emplace_back(kernels().linear_weight_bytes(n, k, dtype), 0);
    std::byte* data = memory.back().data();
    if (kernels().linear_pack_rows != nullptr) {
      kernels().linear_pack_rows(context(), {.data = data, .n = n, .k = k, .dtype = dtype, .packed = true}, 0,
                                 rows);
    } else {
      rows.store_to(data, dtype);
    }
    return data;
  }
  // As slots have it.
  int32_t padded(int32_t rank) {
    const int32_t multiple = kernels().lora_rank_multiple;
    return (rank + multiple - 1) / multiple * multiple;
  }
  // Of the first ranks of each module; the others are zeros, or what `a` has of them.
  TestAdapter make_adapter(const LoraRanks& ranks, const std::vector<Tensor>& a, const std::vector<Tensor>& b,
                           int64_t k, DType dtype) {
    TestAdapter adapter;
    std::transform(ranks.begin(), ranks.end(), adapter.slot.ranks, [&](int32_t r) { return padded(r); });
    if (adapter.slot.total_rank() == 0) return adapter;
    Tensor all(dtype, adapter.slot.total_rank(), k);
    int64_t row = 0;
    for (size_t m = 0; m < a.size(); ++m) {
      for (int64_t r = 0; r < adapter.slot.ranks[m]; ++r, ++row)
        for (int64_t i = 0; i < k; ++i)
          all.set(row, i, r < ranks[m] ? static_cast<float>(a[m].get(r, i)) : 0.0F);
    }
    adapter.a = all.values();
    adapter.slot.a = pack(all, adapter.memory);
    for (size_t m = 0; m < b.size(); ++m) {
      if (ranks[m] == 0) continue;
      const int64_t n = b[m].view().shape[0];
      Tensor rows(dtype, n, adapter.slot.ranks[m]);
      for (int64_t o = 0; o < n; ++o)
        for (int64_t r = 0; r < adapter.slot.ranks[m]; ++r)
          rows.set(o, r, r < ranks[m] ? static_cast<float>(b[m].get(o, r)) : 0.0F);
      adapter.b[m] = rows.values();
      adapter.slot.b[m] = pack(rows, adapter.memory);
    }
    return adapter;
  }
  TestAdapter make_adapter(const LoraCase& shape, const LoraRanks& ranks, DType dtype, uint32_t seed) {
    std::vector<Tensor> a, b;
    for (size_t m = 0; m < shape.modules.size(); ++m) {
      const auto module_seed = seed + static_cast<uint32_t>(m);
      const int64_t rank = std::max(ranks[m], 1);
      a.push_back(std::move(Tensor(dtype, rank, shape.k).randomize(module_seed, 0.1F)));
      b.push_back(
          std::move(Tensor(dtype, shape.modules[m].num_outputs, rank).randomize(module_seed + 5, 0.3F)));
    }
    return make_adapter(ranks, a, b, shape.k, dtype);
  }
  std::vector<TestAdapter> make_adapters(const LoraCase& shape, DType dtype) {
    std::vector<TestAdapter> adapters;
    for (const LoraRanks& ranks : shape.ranks)
      adapters.push_back(
          make_adapter(shape, ranks, dtype, 100 + 10 * static_cast<uint32_t>(adapters.size())));
    return adapters;
  }
  int32_t max_total_rank(const LoraCase& shape) {
    int32_t most = 0;
    for (const LoraRanks& ranks : shape.ranks) {
      int32_t total = 0;
      for (const int32_t rank : ranks) total += padded(rank);
      most = std::max(most, total);
    }
    return most;
  }
  void reserve(const LoraCase& shape, DType dtype) {
    LoraShape bounds = {.max_tokens = shape.tokens,
                        .n = shape.n,
                        .k = shape.k,
                        .max_total_rank = max_total_rank(shape),
                        .max_loras = static_cast<int32_t>(shape.ranks.size()),
                        .dtype = dtype};
    set_guarded_workspace(kernels().lora_workspace_bytes(bounds));
  }
  // Of row t, adapter_of[t]; -1: none. Segments are in the order of adapters, or in the opposite one. `op`:
  // instead of add_lora, and lists all rows.
  void add(const Tensor& out, const Tensor& x, const LoraCase& shape,
           const std::vector<TestAdapter>& adapters, const std::vector<int32_t>& adapter_of, ThreadPool* pool,
           bool backwards = false, const std::function<void(const LoraArgs&)>& op = {}) {
    Array<LoraSlot> slots;
    for (const TestAdapter& adapter : adapters) slots.push_back(adapter.slot);
    Array<int32_t> rows, num_segments;
    Array<LoraSegment> segments;
    for (size_t i = 0; i < adapters.size(); ++i) {
      const auto adapter = static_cast<int32_t>(backwards ? adapters.size() - 1 - i : i);
      int32_t in_segment = kernels().lora_segment_rows;
      for (size_t t = 0; t < adapter_of.size(); ++t) {
        if (adapter_of[t] != adapter) continue;
        const auto place = static_cast<int32_t>(rows.size());
        if (in_segment == kernels().lora_segment_rows || segments.back().slot != adapter) {
          segments.push_back({adapter, place, place});
          in_segment = 0;
        }
        rows.push_back(static_cast<int32_t>(t));
        ++segments.back().end;
        ++in_segment;
      }
    }
    num_segments.push_back(static_cast<int32_t>(segments.size()));
    for (size_t t = 0; t < adapter_of.size() && op; ++t) {
      if (adapter_of[t] >= 0) continue;
      const auto place = static_cast<int32_t>(rows.size());
      if (segments.empty() || segments.back().slot >= 0 ||
          place - segments.back().begin == kernels().lora_segment_rows)
        segments.push_back({-1, place, place});
      rows.push_back(static_cast<int32_t>(t));
      ++segments.back().end;
    }
    num_segments.push_back(static_cast<int32_t>(segments.size()));
    for (int i = 0; i < 3; ++i) segments.push_back({1 << 20, 1 << 20, 1 << 21});  // are no part of it
    const LoraArgs args = {
        .out = out,
        .x = x,
        .slots = slots.data(),
        .modules = shape.modules.data(),
        .num_modules = static_cast<int32_t>(shape.modules.size()),
        .max_total_rank = max_total_rank(shape),
        .max_segments = static_cast<int32_t>(segments.size()),
        .batch = {.rows = rows.data(), .segments = segments.data(), .num_segments = num_segments.data()}};
    if (op) {
      op(args);
    } else {
      kernels().add_lora(context(pool), args);
    }
    wait_for_device();
    expect_whole_guard();
  }
};

// What out becomes, and how far from it rounding may lead.
struct LoraOutputs {
  std::vector<double> value, bound;
};

inline std::vector<double> magnitudes(std::vector<double> values) {
  for (double& value : values) value = std::abs(value);
  return values;
}

inline LoraOutputs expected_lora(const Tensor& out, const Tensor& x, const LoraCase& shape,
                                 const std::vector<TestAdapter>& adapters,
                                 const std::vector<int32_t>& adapter_of) {
  const double h_rounding = x.view().dtype == DType::kFloat32 ? 1e-6 : std::ldexp(1.0, -8);
  const double out_rounding = out.view().dtype == DType::kFloat32 ? 1e-6 : std::ldexp(1.0, -8);
  LoraOutputs expected{out.values(), {}};
  expected.bound.resize(expected.value.size());
  const std::vector<double> inputs = x.values();
  const auto k = static_cast<size_t>(shape.k), n = static_cast<size_t>(shape.n);
  for (size_t t = 0; t < adapter_of.size(); ++t) {
    if (adapter_of[t] < 0) continue;
    const TestAdapter& adapter = adapters[static_cast<size_t>(adapter_of[t])];
    if (adapter.a.empty()) continue;
    const auto begin = inputs.begin() + static_cast<int64_t>(t * k);
    const std::vector<double> row(begin, begin + static_cast<int64_t>(k));
    const std::vector<double> h = reference::linear(row, adapter.a, {}, k);
    const std::vector<double> terms = reference::linear(magnitudes(row), magnitudes(adapter.a), {}, k);
    size_t rank_before = 0;
    for (size_t m = 0; m < shape.modules.size(); ++m) {
      const auto rank = static_cast<size_t>(adapter.slot.ranks[m]);
      for (size_t o = 0; rank > 0 && o < static_cast<size_t>(shape.modules[m].num_outputs); ++o) {
        const size_t at = t * n + static_cast<size_t>(shape.modules[m].first_output) + o;
        double magnitude = 0, sums = 0;
        for (size_t r = 0; r < rank; ++r) {
          const double product = h[rank_before + r] * adapter.b[m][o * rank + r];
          expected.value[at] += product;
          magnitude += std::abs(product);
          sums += terms[rank_before + r] * std::abs(adapter.b[m][o * rank + r]);
        }
        expected.bound[at] =
            h_rounding * magnitude + 1e-6 * sums + out_rounding * std::abs(expected.value[at]);
      }
      rank_before += rank;
    }
  }
  return expected;
}

}  // namespace quire
