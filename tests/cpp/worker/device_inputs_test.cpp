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
