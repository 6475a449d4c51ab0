#include "messages/archive.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "engine/field_samples.h"
#include "messages/model_runner_output.h"

namespace quire {
namespace {

EngineCoreRequest sample_request() {
  EngineCoreRequest request;
  request.request_id = 42;
  request.prompt_token_ids = {1, 2, 3};
  request.output_token_ids = {9};
  request.sampling_params.edit().temperature = 0.5F;
  request.sampling_params.edit().logit_bias = {{7, -1.5F}, {8, 2.0F}};
  request.sampling_params.edit().seed = 123;
  request.sampling_params.edit().stop = {"\n\n", "é"};
  request.sampling_params.edit().logprobs = 3;
  request.seed = 124;
  request.eos_token_ids = {0};
  request.num_prompt_logprobs = 2;
  request.bad_words_token_ids = std::vector<std::vector<int32_t>>{{5}, {6, 7}};
  request.priority = -2;
  request.cache_salt = "salt";
  request.lora_name = "lora";
  request.lora_id = 6;
  request.lora_fingerprint = "2f";
  return request;
}

template <typename Message>
std::vector<std::byte> bytes_of(const Message& message) {
  std::vector<std::byte> bytes;
  serialize(message, bytes);
  return bytes;
}

// Equal bytes mean equal fields: every field is written.
template <typename Message>
void expect_round_trip(const Message& message) {
  const auto bytes = bytes_of(message);
  EXPECT_EQ(bytes_of(deserialize<Message>(bytes)), bytes);
}

TEST(ArchiveTest, ARequestComesBackAsItWas) {
  const EngineCoreRequest sent = sample_request();
  const auto received = deserialize<EngineCoreRequest>(bytes_of(sent));
  EXPECT_EQ(received.request_id, 42U);
  EXPECT_EQ(*received.prompt_token_ids, *sent.prompt_token_ids);
  EXPECT_EQ(received.output_token_ids, sent.output_token_ids);
  EXPECT_EQ(*received.sampling_params, *sent.sampling_params);
  EXPECT_EQ(received.seed, 124U);
  EXPECT_EQ(*received.eos_token_ids, *sent.eos_token_ids);
  EXPECT_EQ(*received.bad_words_token_ids, *sent.bad_words_token_ids);
  EXPECT_EQ(received.priority, -2);
  EXPECT_EQ(received.cache_salt, "salt");
  EXPECT_EQ(received.lora_name, "lora");
  EXPECT_EQ(received.lora_id, 6U);
  EXPECT_EQ(received.lora_fingerprint, "2f");
}

TEST(ArchiveTest, EverySamplingFieldRoundTrips) {
  EngineCoreRequest sent;
  for_each_field(kSamplingParamsFields, [&](const auto& field) {
    auto& member = sent.sampling_params.edit().*field.member;
    member = sample_of(field.range, member).value;
  });
  EXPECT_EQ(*deserialize<EngineCoreRequest>(bytes_of(sent)).sampling_params, *sent.sampling_params);
}

SchedulerOutput sample_scheduler_output() {
  SchedulerOutput scheduler_output;
  scheduler_output.step_id = 7;
  scheduler_output.scheduled_new_reqs.push_back(
      {1, {1, 2}, {3}, {}, 7, {0}, std::vector<std::vector<int32_t>>{{8, 9}, {10}}, 5, {{"cat", 1, 2}}, 6});
  scheduler_output.scheduled_reqs = {{1, 2, 0, 0, 1, 1, 0, 0}, {2, 3, 16, 2, 0, 0, 1, 0}};
  scheduler_output.new_block_ids.clear(2);
  scheduler_output.new_block_ids.push(4);
  scheduler_output.new_block_ids.end_list();
  scheduler_output.new_block_ids.end_list();
  scheduler_output.new_block_ids.push_empty_rows(1);
  scheduler_output.spec_token_ids = {10, 11};
  scheduler_output.scheduled_encoder_inputs = {{1, 0}};
  scheduler_output.free_encoder_mm_hashes = {"dog"};
  scheduler_output.kv_extents = {{1, 5, 6, 1}};
  scheduler_output.kv_copies = {{2, 3, 4}};
  scheduler_output.lora_loads = {{6, 1}};
  scheduler_output.kv_connector_metadata = "load";
  scheduler_output.total_num_scheduled_tokens = 5;
  scheduler_output.preempted_req_ids = {3};
  scheduler_output.finished_req_ids = {4, 5};
  return scheduler_output;
}

ModelRunnerOutput sample_result() {
  ModelRunnerOutput result;
  result.add(1, std::vector<int32_t>{5}, std::vector<int32_t>{6, 7});
  result.add(2, {});
  result.logprobs = {{0, {{{5, -0.5F, 1}}}}};
  result.prompt_logprobs = {{1, {{}, {{5, -0.5F, 1}, {6, -0.25F, 2}}}}};
  result.errors = {{1, "failed"}};
  result.finished_sending = {8};
  result.invalid_block_ids = {9};
  return result;
}

TEST(ArchiveTest, EveryMessageRoundTrips) {
  expect_round_trip(sample_request());
  expect_round_trip(sample_scheduler_output());
  expect_round_trip(sample_result());
  EngineCoreOutputs outputs;
  outputs.outputs.push_back({.request_id = 1,
                             .num_tokens = 2,
                             .first_scheduled_time = 0.5,
                             .num_cached_tokens = 16,
                             .stop_token_id = 3,
                             .finish_reason = FinishReason::kStop,
                             .new_logprobs = std::vector<PositionLogprobs>{{{2, -1.0F, 2}}},
                             .error = {}});
  outputs.token_ids = {2, 3};
  outputs.prompt_logprobs = {{0, {{}, {{4, -2.0F, 7}}}}};
  outputs.kv_events.push_back(
      {KVCacheEventKind::kBlockStored, 1, {{1, 2}}, {3, 4}, {5, 6}, 2, 9, "lora", "salt", "mamba", 8});
  outputs.scheduler_stats.num_steps = 9;
  outputs.running_loras = {{7, 2}};
  outputs.engine_error = "gone";
  expect_round_trip(outputs);
}

// Seeds of another version would be refused before anything in them is looked at. With QUIRE_WRITE_SEEDS set
// they are written anew.
template <typename Message>
void check_seed(const std::string& name, std::byte kind, const Message& message) {
  const std::string path = "tests/fuzz/seeds/message_fuzz/" + name;
  std::vector<std::byte> expected = bytes_of(message);
  expected.insert(expected.begin(), kind);
  if (std::getenv("QUIRE_WRITE_SEEDS") != nullptr) {
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(expected.data()), static_cast<std::streamsize>(expected.size()));
  }
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> text{std::istreambuf_iterator<char>(file), {}};
  std::vector<std::byte> bytes(text.size());
  std::transform(text.begin(), text.end(), bytes.begin(), [](char c) { return static_cast<std::byte>(c); });
  EXPECT_EQ(bytes, expected) << name;
}

TEST(ArchiveTest, SeedsOfTheFuzzerAreOfThisVersion) {
  check_seed("request", std::byte{0}, sample_request());
  check_seed("scheduler_output", std::byte{1}, sample_scheduler_output());
  check_seed("result", std::byte{2}, sample_result());
}

TEST(ArchiveTest, EveryTruncationIsRefused) {
  const auto bytes = bytes_of(sample_request());
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_THROW(deserialize<EngineCoreRequest>(std::span(bytes).first(size)), InvalidArgument) << size;
  }
}

TEST(ArchiveTest, BytesLeftOverAreRefused) {
  auto bytes = bytes_of(sample_request());
  bytes.push_back(std::byte{0});
  EXPECT_THROW(deserialize<EngineCoreRequest>(bytes), InvalidArgument);
}

TEST(ArchiveTest, AnotherVersionIsRefused) {
  auto bytes = bytes_of(sample_request());
  bytes[0] = std::byte{0xEE};
  EXPECT_THROW(deserialize<EngineCoreRequest>(bytes), InvalidArgument);
}

TEST(ArchiveTest, AHugeLengthIsRefusedBeforeAnythingIsAllocated) {
  std::vector<std::byte> bytes;
  Writer writer(bytes);
  writer(kMessageVersion, uint64_t{1}, ~uint64_t{0});  // request_id, then a vector's size
  EXPECT_THROW(deserialize<EngineCoreRequest>(bytes), InvalidArgument);
}

}  // namespace
}  // namespace quire
