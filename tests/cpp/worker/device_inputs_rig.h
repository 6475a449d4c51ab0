// What kernels read of a step, made on a device, beside what the host makes of the same batch.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "device/fake_kernels.h"
#include "worker/step_inputs.h"
#include "worker/tokens_of.h"

namespace quire {

struct DeviceInputsShape {
  const char* name;
  int32_t max_num_seqs, max_num_batched_tokens, max_model_len;
  std::vector<int32_t> block_sizes;
  double penalized;  // share of the requests
  bool hurried;
  bool has_lora_row_slots = false;
};

// Both sides of each bound on what a step sends at once.
inline auto device_inputs_shapes() {
  using Shape = DeviceInputsShape;
  return testing::Values(Shape{"one_group", 6, 40, 50, {4}, 0.2, false},
                         Shape{"groups", 6, 40, 50, {4, 16, 3}, 0.2, false, true},
                         Shape{"groups_hurried", 6, 40, 50, {4, 16, 3}, 0.2, true},
                         // A row of each table at once is more writes than a step stages.
                         Shape{"most_groups", 5, 64, 70, {1, 2, 3, 4, 5, 6, 7}, 0.5, false, true},
                         // All tokens of some rows are more values than a step stages.
                         Shape{"long", 9, 300, 4000, {8, 32}, 0.8, false},
                         Shape{"long_hurried", 9, 300, 4000, {8, 32, 1}, 0.8, true},
                         // More than one kernel is to bring: it is copied.
                         Shape{"copied", 3, 60000, 40000, {64}, 0.5, true, true});
}
inline std::string name_of_shape(const testing::TestParamInfo<DeviceInputsShape>& info) {
  return info.param.name;
}

template <typename T>
std::vector<T> values_of(const TensorView& view) {
  return {view.as<T>(), view.as<T>() + view.numel()};
}

// A request as the scheduler sees it, and as two workers do: one that knows every token at once, and one
// whose batch only counts those that the device sampled.
struct Sequence {
  std::vector<int32_t> tokens;
  int32_t num_computed = 0;
  BlockIdsByGroup blocks;
  bool was_in_batch = false;
  CachedRequestState host, device;
};

class DeviceInputsTest : public testing::TestWithParam<DeviceInputsShape> {
 protected:
  DeviceInputsTest() {
    if (shape_.hurried) device_.hurries.emplace(5);
    stream_ = make_stream(runtime_);
    launch_.stream = stream_.get();
    const size_t staged = device_inputs_staging_bytes(config_);
    ring_memory_.resize(StagingRing::device_bytes(staged, kNumSteps));
    ring_ = std::make_unique<StagingRing>(runtime_, ring_memory_.data(), staged, kNumSteps);
    config_.attention_plan_bytes = kPlanBytes;
    // The arena is as large as measuring says, and nothing in it is zero before it is written.
    const auto counter = make_measuring_arena();
    const DeviceInputsMemory measured(config_, *counter);
    arena_ = make_device_arena(runtime_, counter->used());
    inputs_ = make_device_inputs(config_, fake::kBatchOps, DeviceInputsMemory(config_, *arena_), *ring_);
    EXPECT_EQ(arena_->remaining(), 0U);
    num_tokens_address_ = inputs_->model_input().num_tokens.data;
    for (int32_t i = 0; i < shape_.max_num_seqs + 3; ++i) renew(sequences_.emplace_back());
  }
  ~DeviceInputsTest() override { synchronize(); }

  static constexpr int32_t kNumSteps = 3, kNumDrafts = 2, kMaxLoraSegments = 5;
  static constexpr size_t kPlanBytes = 100;

  void synchronize() { check_device(runtime_, runtime_.synchronize(), "synchronize"); }
  int32_t uniform(int32_t low, int32_t high) { return std::uniform_int_distribution(low, high)(random_); }
  bool chance(double p) { return std::bernoulli_distribution(p)(random_); }

  void renew(Sequence& sequence) {
    sequence = {};
    sequence.tokens.resize(static_cast<size_t>(uniform(1, shape_.max_model_len)));
    for (int32_t& token : sequence.tokens) token = uniform(1, 1 << 20);
    // A cached prefix is not computed here, and its tokens are only for penalties.
    const auto length = static_cast<int32_t>(sequence.tokens.size());
    if (chance(0.5)) sequence.num_computed = uniform(0, length - 1);
    for (CachedRequestState* state : {&sequence.host, &sequence.device}) {
      state->request_id = ++last_id_;
      state->block_ids.resize(shape_.block_sizes.size());
    }
    if (chance(shape_.penalized)) {
      SamplingParams& params = sequence.device.sampling_params.edit();
      (last_id_ % 3 == 0   ? params.presence_penalty
       : last_id_ % 3 == 1 ? params.frequency_penalty
                           : params.repetition_penalty) = 1.5F;
      sequence.device.sampling = RowSampling(params, 0);
    }
    sequence.blocks.resize(shape_.block_sizes.size());
  }
  void leave(Sequence& sequence, bool keeps) {
    if (sequence.host.row < 0) return;
    host_batch_.remove(sequence.host);
    if (keeps) inputs_->bring_tokens(launch_, device_batch_, sequence.device);
    device_batch_.remove(sequence.device);
    // Whoever may come back has learned what was sampled.
    if (keeps) {
      EXPECT_EQ(tokens_of(sequence.device), sequence.tokens);
    }
  }
  // `count` more tokens are computed, with blocks for them.
  void schedule(Sequence& sequence, int32_t count) {
    const bool resumed = sequence.was_in_batch && chance(0.1);
    if (resumed) sequence.num_computed = uniform(0, sequence.num_computed);
    for (size_t group = 0; group < shape_.block_sizes.size(); ++group) {
      auto& blocks = sequence.blocks[group];
      if (resumed) blocks.clear();
      const int32_t size = shape_.block_sizes[group];
      const auto needed = static_cast<size_t>((sequence.num_computed + count + size - 1) / size);
      const size_t held = blocks.size();
      while (blocks.size() < needed) blocks.push_back(uniform(1, 1 << 16));
      const auto fresh = std::span(blocks).subspan(held);
      for (auto [state, batch] :
           {std::pair{&sequence.host, &host_batch_}, {&sequence.device, &device_batch_}}) {
        if (state->row < 0) {
          state->block_ids[group] = blocks;
        } else if (resumed) {
          batch->block_table(group).set(state->state_index, blocks);
        } else {
          batch->block_table(group).append(state->state_index, fresh);
        }
      }
    }
    sequence.host.num_computed_tokens = sequence.device.num_computed_tokens = sequence.num_computed;
    if (sequence.host.row >= 0) {
      if (resumed) sequence.device.num_sent = 0;
      return;
    }
    if (!sequence.was_in_batch) {
      for (CachedRequestState* state : {&sequence.host, &sequence.device}) {
        state->prompt_token_ids = sequence.tokens;
        state->output_token_ids.clear();
      }
    }
    sequence.was_in_batch = true;
    host_batch_.add(sequence.host);
    device_batch_.add(sequence.device);
  }

  // When the device gets there.
  template <typename T>
  void expect_later(std::vector<T> expected, const TensorView& view) {
    FakeDeviceRuntime::enqueue(stream_.get(), [this, expected = std::move(expected), view] {
      EXPECT_EQ(values_of<T>(view), expected);
      ++num_compared_;
    });
  }
  // Rows with adapters, as if there were no batch.
  struct Loras {
    std::vector<int32_t> rows, row_slots;
    std::vector<LoraSegment> segments;
  };
  Loras some_loras(int32_t num_tokens) {
    Loras loras;
    if (chance(0.3)) return loras;
    const int32_t num_rows = uniform(1, num_tokens);
    for (int32_t i = 0; i < num_rows; ++i) loras.rows.push_back(uniform(0, num_tokens - 1));
    for (int32_t i = uniform(1, kMaxLoraSegments); i > 0; --i)
      loras.segments.push_back({uniform(-1, 9), uniform(0, num_rows), uniform(0, num_rows)});
    for (int32_t i = 0; i < num_tokens && shape_.has_lora_row_slots; ++i)
      loras.row_slots.push_back(uniform(-1, 9));
    return loras;
  }
  // A runner finishes its steps in order, too.
  void begin_step() {
    if (ends_.size() == kNumSteps) {
      check_device(runtime_, runtime_.synchronize_event(ends_.front().get()), "synchronize");
      ends_.pop_front();
    }
    ring_->begin_step();
  }
  void end_step() {
    ends_.push_back(make_event(runtime_));
    check_device(runtime_, runtime_.record_event(ends_.back().get(), stream_.get()), "record");
  }
  // The device samples; the host's batch learns at once, the device's only that there is one more.
  void sample(Sequence& sequence) {
    const int32_t token = uniform(1, 1 << 20);
    const auto length = static_cast<int32_t>(sequence.tokens.size());
    if (length == shape_.max_model_len) return;
    int32_t* place = inputs_->token_ids(sequence.device) + length;
    FakeDeviceRuntime::enqueue(stream_.get(), [place, token] { *place = token; });
    sequence.tokens.push_back(token);
    host_batch_.append_token(sequence.host, token);
    device_batch_.append_unknown_token(sequence.device);
  }
  void expect_same_as_host(const StepShape& step, int32_t padded_rows, int32_t padded_tokens);
  void expect_loras(const LoraRows& loras);
  void run_step();

  DeviceInputsShape shape_ = GetParam();
  StepInputsConfig config_{shape_.max_num_seqs,
                           shape_.max_num_batched_tokens,
                           shape_.max_model_len,
                           shape_.block_sizes,
                           0,
                           kNumDrafts,
                           kMaxLoraSegments,
                           shape_.has_lora_row_slots};
  FakeDevice& device_ = FakeDeviceRuntime::reset();
  const DeviceRuntime& runtime_ = FakeDeviceRuntime::table();
  LaunchContext launch_;
  DeviceStream stream_;
  std::vector<std::byte> ring_memory_;
  std::unique_ptr<DeviceArena> arena_;
  std::unique_ptr<StagingRing> ring_;
  std::unique_ptr<StepInputs> inputs_;
  std::unique_ptr<StepInputs> host_inputs_ = make_host_inputs(config_);
  InputBatch host_batch_{shape_.max_num_seqs, shape_.max_model_len, shape_.block_sizes};
  InputBatch device_batch_{shape_.max_num_seqs, shape_.max_model_len, shape_.block_sizes};
  std::mt19937 random_{17};
  RequestId last_id_ = 0;
  std::deque<Sequence> sequences_;
  const void* num_tokens_address_ = nullptr;
  std::deque<DeviceEvent> ends_;  // of the steps in flight
  int num_compared_ = 0;
};

inline void DeviceInputsTest::expect_same_as_host(const StepShape& step, int32_t padded_rows,
                                                  int32_t padded_tokens) {
  const auto rows = static_cast<size_t>(host_batch_.size()), pad = static_cast<size_t>(padded_rows) - rows;
  const ModelInput host = host_inputs_->model_input(), input = inputs_->model_input();
  const auto padded = [&](auto values, auto padding, size_t size) {
    values.resize(size, padding);
    return values;
  };
  const auto num_padded = static_cast<size_t>(padded_tokens);
  expect_later(padded(values_of<int32_t>(host.input_ids), 0, num_padded), input.input_ids);
  expect_later(padded(values_of<int32_t>(host.positions), 0, num_padded), input.positions);
  EXPECT_EQ(values_of<int32_t>(host.num_tokens), std::vector{step.num_tokens});
  EXPECT_EQ(input.num_tokens.data, num_tokens_address_);
  expect_later(std::vector{step.num_tokens}, input.num_tokens);
  expect_later(values_of<int32_t>(host_inputs_->logits_index()), inputs_->logits_index());
  const auto host_groups = host_inputs_->attention_metadata(), groups = inputs_->attention_metadata();
  // A backend's plan fills its place, and no other.
  for (size_t group = 0; group < groups.size(); ++group) {
    void* plan = groups[group].plan;
    check_device(runtime_, runtime_.fill(plan, static_cast<int>(group), kPlanBytes, stream_.get()), "fill");
  }
  for (size_t group = 0; group < groups.size(); ++group) {
    expect_later(std::vector<uint8_t>(kPlanBytes, static_cast<uint8_t>(group)),
                 TensorView(groups[group].plan, DType::kUInt8, int64_t{kPlanBytes}));
  }
  ASSERT_EQ(groups.size(), shape_.block_sizes.size());
  for (size_t group = 0; group < groups.size(); ++group) {
    const AttentionMetadata &expected = host_groups[group], &actual = groups[group];
    expect_later(padded(values_of<int64_t>(expected.slot_mapping), -1, num_padded), actual.slot_mapping);
    expect_later(padded(values_of<int32_t>(expected.query_start_loc), step.num_tokens, rows + pad + 1),
                 actual.query_start_loc);
    expect_later(padded(values_of<int32_t>(expected.seq_lens), 0, rows + pad), actual.seq_lens);
    const auto states = device_batch_.state_indices();
    expect_later(padded(std::vector<int32_t>(states.begin(), states.end()), 0, rows + pad),
                 actual.state_indices);
    for (int32_t row = 0; row < host_batch_.size(); ++row) {
      const auto ids = host_batch_.block_table(group).ids(host_batch_.request(row).state_index);
      expect_later(std::vector<int32_t>(ids.begin(), ids.end()),
                   TensorView(actual.block_table.at(device_batch_.request(row).state_index), DType::kInt32,
                              static_cast<int64_t>(ids.size())));
    }
    const bool only_decodes = step.num_decode_rows == host_batch_.size();
    EXPECT_EQ(actual.num_decode_rows, only_decodes ? padded_rows : step.num_decode_rows);
    EXPECT_EQ(actual.max_query_len, expected.max_query_len);
    EXPECT_EQ(actual.max_seq_len, expected.max_seq_len);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(actual.plan) % DeviceArena::kAlignment, 0U);
  }
}

// Of a step that has any.
inline void DeviceInputsTest::expect_loras(const LoraRows& loras) {
  const auto view = [](const void* data, size_t size) {
    return TensorView(const_cast<void*>(data), DType::kInt32, static_cast<int64_t>(size));
  };
  const LoraBatch batch = inputs_->lora_batch();
  EXPECT_EQ(batch.row_slots != nullptr, shape_.has_lora_row_slots);
  const auto expect = [&](const auto& values, const void* data) {
    const auto* first = reinterpret_cast<const int32_t*>(values.data());
    const std::vector<int32_t> ints(first, first + values.size() * sizeof(values[0]) / sizeof(int32_t));
    expect_later(ints, view(data, ints.size()));
  };
  expect(std::vector{loras.num_with_adapter, static_cast<int32_t>(loras.segments.size())},
         batch.num_segments);
  expect(loras.segments, batch.segments);
  expect(loras.rows, batch.rows);
  if (shape_.has_lora_row_slots) expect(loras.row_slots, batch.row_slots);
}

inline void DeviceInputsTest::run_step() {
  std::vector<Sequence*> chosen;
  for (Sequence& sequence : sequences_) chosen.push_back(&sequence);
  std::shuffle(chosen.begin(), chosen.end(), random_);
  // Most stay where they are.
  std::stable_partition(chosen.begin(), chosen.end(),
                        [&](Sequence* s) { return s->host.row >= 0 && !chance(0.1); });
  const int32_t num_rows = std::min(uniform(1, 2 * shape_.max_num_seqs), shape_.max_num_seqs);
  for (size_t i = static_cast<size_t>(num_rows); i < chosen.size(); ++i) leave(*chosen[i], /*keeps=*/true);
  chosen.resize(static_cast<size_t>(num_rows));
  host_batch_.condense();
  device_batch_.condense();

  int32_t budget = shape_.max_num_batched_tokens;
  for (size_t i = 0; i < chosen.size(); ++i) {
    const auto others = static_cast<int32_t>(chosen.size() - i) - 1;
    const int32_t left = static_cast<int32_t>(chosen[i]->tokens.size()) - chosen[i]->num_computed;
    const int32_t count = std::min(chance(0.8) ? left : uniform(1, left), budget - others);
    // Drafts behind the last token; none will be right.
    std::vector<int32_t> drafts;
    const auto room = std::min(shape_.max_model_len - 1 - static_cast<int32_t>(chosen[i]->tokens.size()),
                               budget - others - count);
    if (count == left && room > 0 && chance(0.3))
      drafts.resize(static_cast<size_t>(uniform(0, std::min(room, kNumDrafts))));
    for (int32_t& draft : drafts) draft = uniform(1, 1 << 20);
    const int32_t num_scheduled = count + static_cast<int32_t>(drafts.size());
    schedule(*chosen[i], num_scheduled);
    if (!drafts.empty()) {
      host_batch_.set_drafts(chosen[i]->host, drafts);
      device_batch_.set_drafts(chosen[i]->device, drafts);
    }
    budget -= num_scheduled;
    chosen[i]->num_computed += count;
  }
  for (int32_t swaps = chance(0.5) ? num_rows : 0; swaps > 0; --swaps) {
    const int32_t a = uniform(0, num_rows - 1), b = uniform(0, num_rows - 1);
    host_batch_.swap_rows(a, b);
    device_batch_.swap_rows(a, b);
  }

  std::vector<int32_t> counts(chosen.size()), sampling_rows;
  std::vector<Sequence*> by_row(chosen.size());
  for (Sequence* sequence : chosen) {
    const auto row = static_cast<size_t>(sequence->host.row);
    by_row[row] = sequence;
    counts[row] = sequence->num_computed - sequence->host.num_computed_tokens + sequence->host.num_drafts;
  }
  StepShape step;
  step.num_scheduled = counts;
  step.num_tokens = std::accumulate(counts.begin(), counts.end(), 0);
  step.num_decode_rows = static_cast<int32_t>(
      std::find_if(counts.begin(), counts.end(), [](int32_t n) { return n != 1; }) - counts.begin());
  for (size_t row = 0; row < by_row.size(); ++row) {
    if (by_row[row]->num_computed == static_cast<int32_t>(by_row[row]->tokens.size()))
      sampling_rows.push_back(static_cast<int32_t>(row));
  }
  step.sampling_rows = sampling_rows;
  const Loras loras = some_loras(step.num_tokens);
  const auto num_segments = static_cast<int32_t>(loras.segments.size());
  step.loras = {loras.rows, loras.segments, num_segments / 2, loras.row_slots};

  step.batch = &host_batch_;
  host_inputs_->stage(launch_, step);
  host_inputs_->build(launch_, num_rows, step.num_tokens);
  step.batch = &device_batch_;
  begin_step();
  inputs_->stage(launch_, step);
  const int32_t padded_rows = chance(0.5) ? num_rows : uniform(num_rows, shape_.max_num_seqs);
  const int32_t padded_tokens =
      chance(0.5) ? step.num_tokens : uniform(step.num_tokens, shape_.max_num_batched_tokens);
  inputs_->build(launch_, padded_rows, padded_tokens);
  expect_same_as_host(step, padded_rows, padded_tokens);
  if (num_segments > 0) expect_loras(step.loras);

  for (Sequence* sequence : by_row) {
    host_batch_.accept_drafts(sequence->host, 0);
    device_batch_.accept_drafts(sequence->device, 0);
  }
  for (const int32_t row : sampling_rows) sample(*by_row[static_cast<size_t>(row)]);
  end_step();
  // Penalties read everything.
  for (const Sequence* sequence : by_row) {
    const SamplingParams& params = *sequence->device.sampling_params;
    if (params == SamplingParams()) continue;
    const int32_t* tokens = inputs_->token_ids(sequence->device);
    expect_later(std::vector(sequence->tokens.begin(), sequence->tokens.begin() + sequence->num_computed),
                 TensorView(const_cast<int32_t*>(tokens), DType::kInt32, sequence->num_computed));
  }
  // A request with every token that it may have is over; others may end too.
  for (Sequence& sequence : sequences_) {
    const bool over = sequence.num_computed == static_cast<int32_t>(sequence.tokens.size());
    if (!over && !chance(0.02)) continue;
    leave(sequence, /*keeps=*/false);
    renew(sequence);
  }
  host_batch_.condense();
  device_batch_.condense();
}

}  // namespace quire
