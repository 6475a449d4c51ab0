// The CPU's kernels as a device runs them: launching one only queues it on the fake runtime's stream, with a
// copy of its arguments, and what lies behind the pointers is read when it runs.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <tuple>
#include <type_traits>

#include "device/fake_device_runtime.h"
#include "quire/kernels/backend_registry.h"
#include "quire/kernels/ops.h"

namespace quire {

namespace fake {

inline const KernelTable& cpu() { return *find_kernel_table("cpu"); }

template <auto kOp>
struct Queued;
template <typename... Args, void (*KernelTable::*kOp)(const LaunchContext&, Args...)>
struct Queued<kOp> {
  static void launch(const LaunchContext& ctx, Args... args) {
    LaunchContext host = ctx;
    host.stream = nullptr;
    FakeDeviceRuntime::enqueue(ctx.stream, [host, copies = std::tuple<std::decay_t<Args>...>(args...)] {
      std::apply([&](const auto&... values) { (cpu().*kOp)(host, values...); }, copies);
    });
  }
};

// For as many rows as some steps have, and others do not.
inline bool linear_add(const LaunchContext& ctx, TensorView sum, TensorView scratch, TensorView x,
                       const LinearWeight& weight, const float* bias) {
  if (x.shape[0] < 3) return false;
  Queued<&KernelTable::linear>::launch(ctx, scratch, x, weight, bias);
  Queued<&KernelTable::add>::launch(ctx, sum, scratch);
  return true;
}

// Samples like a device that leaves out what it was told it may.
inline void sample_now(const LaunchContext& host, const SamplingArgs& args) {
  const auto rows = static_cast<size_t>(args.logits.shape[0]);
  const std::vector<float> zeros(rows), ones(rows, 1.0F);
  const std::vector<int32_t> all(rows);
  SamplingArgs needed = args;
  for (size_t row = 0; row < rows; ++row) EXPECT_EQ(args.row_counters[row], 0U);
  if (args.all_greedy) needed.temperature = zeros.data();
  if (!args.any_filter) {
    needed.top_k = all.data();
    needed.top_p = ones.data();
    needed.min_p = zeros.data();
  }
  cpu().sample(host, needed);
}
// Of a part of the vocabulary `best` only says which that was, and what logits it had.
inline uint64_t digest_of(const SamplingArgs& args, int64_t row) {
  uint64_t digest = static_cast<uint64_t>(args.first_token_id);
  const auto* logits = args.logits.rows(row, 1).as<float>();
  for (int64_t i = 0; i < args.logits.shape[1]; ++i)
    digest = (digest ^ std::bit_cast<uint32_t>(logits[i])) * 0x100000001B3U;
  return digest;
}
inline void sample(const LaunchContext& ctx, const SamplingArgs& args) {
  LaunchContext host = ctx;
  host.stream = nullptr;
  FakeDeviceRuntime::enqueue(ctx, [host, args] {
    if (args.best == nullptr) return sample_now(host, args);
    EXPECT_FALSE(args.any_filter && !args.all_greedy);
    for (int64_t row = 0; row < args.logits.shape[0]; ++row) args.best[row] = digest_of(args, row);
  });
}

// ---- BatchOps, by their contract ---------------------------------------------------------------------

inline void write_rows(const RowWriteArgs& args) {
  int32_t num_values = 0;
  for (int32_t i = 0; i < args.num_writes; ++i) {
    const RowWrite& write = args.writes[i];
    EXPECT_EQ(write.first, num_values);
    num_values += write.count;
    int32_t* row = args.tables[write.table] + write.row * args.strides[write.table];
    std::copy_n(args.values + write.first, write.count, row + write.begin);
  }
  EXPECT_EQ(args.num_values, num_values);
}

inline void prepare_row(const PrepareInputsArgs& args, int32_t row) {
  const int32_t begin = args.query_start_loc[row], count = args.query_start_loc[row + 1] - begin;
  args.seq_lens[row] = args.num_computed[row] + count;
  const int32_t state_index = args.padded_state_indices[row] = args.state_indices[row];
  for (int32_t i = 0; i < count; ++i) {
    const int32_t position = args.num_computed[row] + i;
    args.input_ids[begin + i] = args.tokens[state_index * args.tokens_stride + position];
    args.positions[begin + i] = position;
    for (int32_t g = 0; g < args.num_groups; ++g) {
      const GroupInputs& group = args.groups[g];
      const int64_t block =
          group.block_table[state_index * group.block_table_stride + position / group.block_size];
      group.slot_mapping[begin + i] = block * group.block_size + position % group.block_size;
    }
  }
}

inline void prepare_inputs(const LaunchContext& ctx, const PrepareInputsArgs& args) {
  FakeDeviceRuntime::enqueue(ctx, [args] {
    EXPECT_EQ(args.bytes.count % 16, 0U);
    if (args.bytes.count > 0) std::memcpy(args.bytes.to, args.bytes.from, args.bytes.count);
    write_rows(args.row_writes);
    for (int32_t row = 0; row < args.num_rows; ++row) {
      args.padded_query_start_loc[row] = args.query_start_loc[row];
      prepare_row(args, row);
    }
    for (int32_t row = args.num_rows; row <= args.padded_rows; ++row) {
      args.padded_query_start_loc[row] = args.num_tokens;
      if (row < args.padded_rows) args.seq_lens[row] = args.padded_state_indices[row] = 0;
    }
    for (const GroupInputs& group : args.groups) {
      if (group.common_prefix_len_out != nullptr) *group.common_prefix_len_out = group.common_prefix_len;
    }
    if (args.unpadded_tokens != nullptr) *args.unpadded_tokens = args.num_tokens;
    for (int32_t i = args.num_tokens; i < args.padded_tokens; ++i) {
      args.input_ids[i] = args.positions[i] = 0;
      for (int32_t g = 0; g < args.num_groups; ++g) args.groups[g].slot_mapping[i] = -1;
    }
  });
}

inline constexpr BatchOps kBatchOps = {prepare_inputs};

}  // namespace fake

// Weights are the CPU's, packed when they are loaded; everything of a step is queued.
inline KernelTable fake_kernel_table() {
  using T = KernelTable;
  KernelTable table = fake::cpu();
  table.embedding = fake::Queued<&T::embedding>::launch;
  table.rms_norm = fake::Queued<&T::rms_norm>::launch;
  table.fused_add_rms_norm = fake::Queued<&T::fused_add_rms_norm>::launch;
  table.rotary_embedding = fake::Queued<&T::rotary_embedding>::launch;
  table.activate_and_mul = fake::Queued<&T::activate_and_mul>::launch;
  table.gather_rows = fake::Queued<&T::gather_rows>::launch;
  table.linear = fake::Queued<&T::linear>::launch;
  table.linear_add = fake::linear_add;
  table.add_lora = fake::Queued<&T::add_lora>::launch;
  table.write_kv_cache = fake::Queued<&T::write_kv_cache>::launch;
  table.paged_attention = fake::Queued<&T::paged_attention>::launch;
  table.apply_logit_bias = fake::Queued<&T::apply_logit_bias>::launch;
  table.apply_bitmask = fake::Queued<&T::apply_bitmask>::launch;
  table.apply_bad_words = fake::Queued<&T::apply_bad_words>::launch;
  table.apply_penalties = fake::Queued<&T::apply_penalties>::launch;
  table.sample = fake::sample;
  table.top_logprobs = fake::Queued<&T::top_logprobs>::launch;
  table.log_softmax = fake::Queued<&T::log_softmax>::launch;
  // Not used by a device's step: whoever calls them computes too early.
  table.layer_norm = nullptr;
  table.activate = nullptr;
  table.soft_cap = nullptr;
  table.scale = nullptr;
  table.add = nullptr;
  table.batch = &fake::kBatchOps;
  table.decodes_first = true;
  return table;
}

}  // namespace quire
