// What a step sends to a device, and that it waits for nothing.
#include "worker/device_inputs_rig.h"

namespace quire {
namespace {

class DeviceInputsSendsTest : public DeviceInputsTest {};

TEST_P(DeviceInputsSendsTest, TheLongestRowComesWithoutAWait) {
  Sequence& sequence = sequences_.front();
  sequence.tokens.assign(static_cast<size_t>(shape_.max_model_len), 7);
  sequence.num_computed = shape_.max_model_len - 1;
  SamplingParams& params = sequence.device.sampling_params.edit();
  params.presence_penalty = 1.5F;  // reads all tokens
  sequence.device.sampling = RowSampling(params, 0);
  schedule(sequence, 1);
  const std::vector<int32_t> counts = {1}, sampling_rows = {0};
  StepShape step;
  step.batch = &device_batch_;
  step.num_scheduled = counts;
  step.num_tokens = step.num_decode_rows = 1;
  step.sampling_rows = sampling_rows;
  ring_->begin_step();
  const int waits = device_.num_host_waits;
  inputs_->stage(launch_, step);
  inputs_->build(launch_, 1, 1);
  EXPECT_EQ(device_.num_host_waits, waits);
  synchronize();
  const int32_t* tokens = inputs_->token_ids(sequence.device);
  EXPECT_EQ(std::vector(tokens, tokens + shape_.max_model_len), sequence.tokens);
}

// Tokens and blocks of a row that changes its place lie where they lay: a step sends no byte more for it.
TEST_P(DeviceInputsSendsTest, ALongRowThatMovesSendsNothingAgain) {
  Sequence &longest = sequences_[0], &other = sequences_[1];
  longest.tokens.assign(static_cast<size_t>(shape_.max_model_len - 8), 7);
  longest.num_computed = shape_.max_model_len - 9;
  other.tokens.assign(3, 9);
  other.num_computed = 2;
  const std::vector<int32_t> counts = {1, 1}, sampling_rows = {0, 1};
  StepShape step;
  step.batch = &device_batch_;
  step.num_scheduled = counts;
  step.num_tokens = step.num_decode_rows = 2;
  step.sampling_rows = sampling_rows;
  std::vector<size_t> sent;
  for (const bool moves : {false, false, true, true}) {
    for (Sequence* sequence : {&longest, &other}) {
      if (!sent.empty()) {
        sequence->tokens.push_back(8);
        device_batch_.append_unknown_token(sequence->device);
        ++sequence->num_computed;
      }
      // Every block is there from the beginning.
      sequence->was_in_batch = false;
      if (sent.empty()) {
        schedule(*sequence, sequence == &longest ? 8 : 6);
      } else {
        sequence->device.num_computed_tokens = sequence->num_computed;
      }
    }
    if (moves) device_batch_.swap_rows(0, 1);
    ring_->begin_step();
    inputs_->stage(launch_, step);
    sent.push_back(ring_->num_unsent());
    inputs_->build(launch_, 2, 2);
    synchronize();
    for (const Sequence* sequence : {&longest, &other}) {
      const auto row = static_cast<size_t>(sequence->device.row);
      EXPECT_EQ(values_of<int32_t>(inputs_->model_input().positions)[row], sequence->num_computed);
      for (size_t group = 0; group < shape_.block_sizes.size(); ++group) {
        const AttentionMetadata& metadata = inputs_->attention_metadata()[group];
        const int32_t size = shape_.block_sizes[group];
        const BlockId block = sequence->blocks[group][static_cast<size_t>(sequence->num_computed / size)];
        EXPECT_EQ(values_of<int64_t>(metadata.slot_mapping)[row],
                  int64_t{block} * size + sequence->num_computed % size);
        EXPECT_EQ(values_of<int32_t>(metadata.state_indices)[row], sequence->device.state_index);
      }
    }
  }
  EXPECT_EQ(sent[2], sent[1]);
  EXPECT_EQ(sent[3], sent[1]);
  EXPECT_GT(sent[0], sent[1]);
}

INSTANTIATE_TEST_SUITE_P(Shapes, DeviceInputsSendsTest, device_inputs_shapes(), name_of_shape);

}  // namespace
}  // namespace quire
