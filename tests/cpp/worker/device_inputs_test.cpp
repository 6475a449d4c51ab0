// What kernels read of a step, made on a device, against what the host makes of the same batch.
#include "worker/device_inputs_rig.h"

namespace quire {
namespace {

TEST_P(DeviceInputsTest, AreWhatTheHostMakesOfTheSameBatch) {
  for (int step = 0; step < 150 && !HasFailure(); ++step) {
    SCOPED_TRACE(step);
    run_step();
  }
  synchronize();
  EXPECT_GT(num_compared_, 1000);
}

// Each row one token further, on top of what the step before had staged.
TEST_P(DeviceInputsTest, ARepeatIsTheNextStep) {
  const int32_t num_rows = shape_.max_num_seqs - 1;
  for (int32_t row = 0; row < num_rows; ++row) {
    Sequence& sequence = sequences_[static_cast<size_t>(row)];
    sequence.tokens.resize(std::min<size_t>(sequence.tokens.size(), 5 + static_cast<size_t>(row)));
    sequence.num_computed = static_cast<int32_t>(sequence.tokens.size()) - 1;
  }
  const std::vector<int32_t> counts(static_cast<size_t>(num_rows), 1);
  std::vector<int32_t> sampling_rows(static_cast<size_t>(num_rows));
  std::iota(sampling_rows.begin(), sampling_rows.end(), 0);
  StepShape step;
  step.num_scheduled = counts;
  step.num_tokens = step.num_decode_rows = num_rows;
  step.sampling_rows = sampling_rows;
  for (int i = 0; i < 30 && !HasFailure(); ++i) {
    SCOPED_TRACE(i);
    std::vector<GrownState> grown;
    for (int32_t row = 0; row < num_rows; ++row) {
      Sequence& sequence = sequences_[static_cast<size_t>(row)];
      sequence.was_in_batch = false;  // so that it does not begin again
      const BlockIdsByGroup before = sequence.blocks;
      schedule(sequence, 1);
      ++sequence.num_computed;
      for (size_t group = 0; group < before.size(); ++group) {
        if (sequence.blocks[group].size() > before[group].size())
          grown.push_back({static_cast<int32_t>(group), sequence.device.state_index});
      }
    }
    step.batch = &host_batch_;
    host_inputs_->stage(launch_, step);
    host_inputs_->build(launch_, num_rows, num_rows);
    step.batch = &device_batch_;
    begin_step();
    if (i == 0) {
      inputs_->stage(launch_, step);
    } else {
      inputs_->stage_repeat(launch_, device_batch_, grown);
    }
    inputs_->build(launch_, num_rows + 1, num_rows + 2);
    expect_same_as_host(step, num_rows + 1, num_rows + 2);
    for (int32_t row = 0; row < num_rows; ++row) sample(sequences_[static_cast<size_t>(row)]);
    end_step();
  }
  synchronize();
  EXPECT_GT(num_compared_, 100);
}

TEST_P(DeviceInputsTest, RowsOfAGraphWithDraftsAreNoDecodes) {
  inputs_->build(launch_, 2, 6, /*uniform_query_len=*/3);
  synchronize();
  for (const AttentionMetadata& group : inputs_->attention_metadata()) {
    EXPECT_EQ(group.num_decode_rows, 0);
    EXPECT_EQ(group.max_query_len, 3);
    EXPECT_EQ(group.max_seq_len, shape_.max_model_len);
    EXPECT_EQ(values_of<int32_t>(group.seq_lens), std::vector<int32_t>(2));
  }
}

TEST_P(DeviceInputsTest, AStepOfPaddingBelongsToNobody) {
  run_step();
  synchronize();
  std::fill(ring_memory_.begin(), ring_memory_.end(), std::byte{0x77});  // what was staged is not read again
  inputs_->build(launch_, shape_.max_num_seqs, shape_.max_num_batched_tokens);
  synchronize();
  const auto rows = static_cast<size_t>(shape_.max_num_seqs),
             tokens = static_cast<size_t>(shape_.max_num_batched_tokens);
  EXPECT_EQ(values_of<int32_t>(inputs_->model_input().input_ids), std::vector<int32_t>(tokens));
  EXPECT_EQ(values_of<int32_t>(inputs_->model_input().positions), std::vector<int32_t>(tokens));
  EXPECT_EQ(values_of<int32_t>(inputs_->model_input().num_tokens), std::vector{0});
  for (const AttentionMetadata& group : inputs_->attention_metadata()) {
    EXPECT_EQ(values_of<int64_t>(group.slot_mapping), std::vector<int64_t>(tokens, -1));
    EXPECT_EQ(values_of<int32_t>(group.seq_lens), std::vector<int32_t>(rows));
    EXPECT_EQ(values_of<int32_t>(group.query_start_loc), std::vector<int32_t>(rows + 1));
    // A graph is captured with these, and replayed with rows of any length.
    EXPECT_EQ(group.num_decode_rows, shape_.max_num_seqs);
    EXPECT_EQ(group.max_query_len, 1);
    EXPECT_EQ(group.max_seq_len, shape_.max_model_len);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, DeviceInputsTest, device_inputs_shapes(), name_of_shape);

}  // namespace
}  // namespace quire
