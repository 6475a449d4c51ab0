// What scenarios cannot say: limits of the interface, and properties over many runs. The rules themselves are
// in tests/cpp/scenarios.
#include "scheduler/scheduler.h"

#include <gtest/gtest.h>

#include "kv_cache/kv_cache_planner.h"
#include "quire/error.h"
#include "request/make_request.h"

namespace quire {
namespace {

KVCacheConfig kv_cache(int32_t usable_blocks, int32_t block_size) {
  KVCacheSpec spec;
  spec.block_size = block_size;
  spec.page_bytes = 4096;
  KVCacheDemand demand;
  demand.num_blocks = usable_blocks + 1;
  demand.max_model_len = 1;
  return plan_kv_cache({spec}, demand);
}

std::vector<int32_t> some_tokens(int32_t count, int32_t id = 1) {
  return std::vector<int32_t>(static_cast<size_t>(count), id);
}

TEST(SchedulerTest, AnIdInUseIsRefused) {
  Scheduler scheduler({}, kv_cache(20, 4));
  scheduler.add_request(make_request(1, some_tokens(4), 2));
  EXPECT_THROW(scheduler.add_request(make_request(1, some_tokens(4), 2)), InvalidArgument);
  EXPECT_FALSE(scheduler.finish_request(9, RequestStatus::kFinishedAborted));
}

TEST(SchedulerTest, AnIdMayBeUsedAgainWhileItsFirstOwnerIsStillInFlight) {
  Scheduler scheduler({}, kv_cache(20, 4));
  scheduler.add_request(make_request(1, some_tokens(4), 2));
  SchedulerOutput scheduler_output;
  ASSERT_TRUE(scheduler.schedule(scheduler_output));
  scheduler.finish_request(1, RequestStatus::kFinishedAborted);
  scheduler.add_request(make_request(1, some_tokens(6), 2));
  ModelRunnerOutput result;
  result.reset(scheduler_output.step_id);
  result.add(1, std::vector<int32_t>{7});
  EngineCoreOutputs outputs;
  scheduler.update_from_output(scheduler_output, result, outputs);
  EXPECT_TRUE(outputs.outputs.empty());  // the token was the first owner's
  EXPECT_EQ(scheduler.find_request(1)->num_output_tokens(), 0);
}

// Two steps in flight: what the first of them samples may be the last token that the model takes.
TEST(SchedulerTest, NothingIsComputedBehindTheLongestSequence) {
  SchedulerConfig config;
  config.max_model_len = 32;
  config.max_in_flight_steps = 2;
  Scheduler scheduler(config, kv_cache(20, 16));
  scheduler.add_request(make_request(1, some_tokens(3), 1000));
  std::vector<SchedulerOutput> in_flight;
  EngineCoreOutputs outputs;
  int32_t num_tokens = 3, furthest = 0;
  while (true) {
    SchedulerOutput scheduler_output;
    while (in_flight.size() < 2 && scheduler.schedule(scheduler_output)) {
      for (const ScheduledRequest& scheduled : scheduler_output.scheduled_reqs)
        furthest = std::max(furthest, scheduled.num_computed_tokens + scheduled.num_tokens);
      in_flight.push_back(scheduler_output);
    }
    if (in_flight.empty()) break;
    ModelRunnerOutput result;
    result.reset(in_flight.front().step_id);
    if (!in_flight.front().scheduled_reqs.empty()) result.add(1, std::vector<int32_t>{7});
    outputs.clear();
    scheduler.update_from_output(in_flight.front(), result, outputs);
    num_tokens += static_cast<int32_t>(outputs.token_ids.size());
    in_flight.erase(in_flight.begin());
  }
  EXPECT_EQ(num_tokens, 32);
  EXPECT_EQ(furthest, 31);
}

TEST(SchedulerTest, DeadlinesOfRequestsThatHaveGoneAreNotKeptForEver) {
  Scheduler scheduler({}, kv_cache(20, 4));
  EngineCoreOutputs outputs;
  for (RequestId id = 1; id <= 1000; ++id) {
    EngineCoreRequest request = make_request(id, some_tokens(4), 2);
    request.deadline = id == 500 ? 2.0 : 1e6;
    scheduler.add_request(std::move(request));
    if (id != 500) scheduler.finish_request(id, RequestStatus::kFinishedAborted);
  }
  SchedulerSnapshot snapshot;
  scheduler.save(snapshot,
                 [](size_t) -> const SchedulerOutput& { throw InternalError("nothing is in flight"); });
  EXPECT_LT(snapshot.deadlines.size(), 100U);
  // That of the one that is left has not gone with the others'.
  scheduler.advance(3.0, outputs);
  ASSERT_EQ(outputs.outputs.size(), 1U);
  EXPECT_EQ(outputs.outputs[0].request_id, 500U);
  EXPECT_EQ(outputs.outputs[0].finish_reason, FinishReason::kAbort);
}

TEST(SchedulerTest, AStopTokenIsReportedAndEndOfSequenceIsNot) {
  Scheduler scheduler({}, kv_cache(20, 4));
  EngineCoreRequest eos = make_request(1, some_tokens(4), 10);
  eos.eos_token_ids = {7};
  EngineCoreRequest stop = make_request(2, some_tokens(4, 2), 10);
  stop.sampling_params.edit().stop_token_ids = {7};
  scheduler.add_request(std::move(eos));
  scheduler.add_request(std::move(stop));
  SchedulerOutput scheduler_output;
  scheduler.schedule(scheduler_output);
  ModelRunnerOutput result;
  result.reset(scheduler_output.step_id);
  result.add(1, std::vector<int32_t>{7});
  result.add(2, std::vector<int32_t>{7});
  EngineCoreOutputs outputs;
  scheduler.update_from_output(scheduler_output, result, outputs);
  ASSERT_EQ(outputs.outputs.size(), 2U);
  EXPECT_FALSE(outputs.outputs[0].stop_token_id.has_value());
  EXPECT_EQ(outputs.outputs[1].stop_token_id, 7);
}

TEST(SchedulerTest, ResultsMustBeThoseOfTheOldestStep) {
  SchedulerConfig config;
  config.max_in_flight_steps = 2;
  Scheduler scheduler(config, kv_cache(20, 4));
  scheduler.add_request(make_request(1, some_tokens(4), 8));
  SchedulerOutput first, second;
  scheduler.schedule(first);
  scheduler.schedule(second);
  ModelRunnerOutput result;
  result.reset(second.step_id);
  result.add(1, std::vector<int32_t>{7});
  EngineCoreOutputs outputs;
  EXPECT_THROW(scheduler.update_from_output(second, result, outputs), InternalError);
}

TEST(SchedulerTest, WorkersAreToldWithThePromptAndTheParametersThatCame) {
  Scheduler scheduler({}, kv_cache(20, 4));
  EngineCoreRequest request = make_request(1, some_tokens(8), 2);
  request.seed = 9;
  const EngineCoreRequest came = request;
  scheduler.add_request(std::move(request));
  EXPECT_EQ(scheduler.find_request(1)->token_ids().data(), came.prompt_token_ids->data());  // while it waits
  SchedulerOutput scheduler_output;
  ASSERT_TRUE(scheduler.schedule(scheduler_output));
  const NewRequestData& told = scheduler_output.scheduled_new_reqs.at(0);
  EXPECT_EQ(told.prompt_token_ids->data(), came.prompt_token_ids->data());
  EXPECT_EQ(&*told.sampling_params, &*came.sampling_params);
  EXPECT_EQ(&scheduler.find_request(1)->sampling_params(), &*came.sampling_params);
  EXPECT_EQ(told.seed, 9U);
}

// What a connector is asked about.
struct AskedConnector : KVConnectorScheduler {
  std::optional<KVConnectorMatch> get_num_new_matched_tokens(const KVConnectorRequest& request,
                                                             int32_t) override {
    lora_name = request.lora_name;
    cache_salt = request.cache_salt;
    for (const MultiModalFeature& feature : request.mm_features) mm_hashes.push_back(feature.mm_hash);
    block_hashes.assign(request.block_hashes.begin(), request.block_hashes.end());
    return KVConnectorMatch{};
  }
  void update_state_after_alloc(const KVConnectorRequest& request, KVConnectorBlocks, int32_t) override {
    num_found_here = request.num_computed_tokens;
  }
  std::string build_connector_meta(uint64_t, std::span<const KVConnectorScheduled>) override { return ""; }
  bool request_finished(const KVConnectorRequest& request, KVConnectorBlocks blocks) override {
    num_computed_tokens = request.num_computed_tokens;
    num_groups = blocks.size();
    return false;
  }
  std::string lora_name, cache_salt;
  std::vector<std::string> mm_hashes;
  std::vector<KVBlockHash> block_hashes;
  int32_t num_computed_tokens = -1, num_found_here = -1;
  size_t num_groups = 0;
};

TEST(SchedulerTest, AConnectorSeesWhatTheEnginesOwnPrefixesDependOn) {
  const auto connector = std::make_shared<AskedConnector>();
  SchedulerConfig config;
  config.max_num_encoder_input_tokens = config.encoder_cache_size = 4;
  SchedulerParts parts;
  parts.kv_connector = connector;
  Scheduler scheduler(config, kv_cache(20, 4), std::move(parts));
  EngineCoreRequest request = make_request(1, some_tokens(8), 2);
  request.lora_name = "lora";
  request.cache_salt = "salt";
  request.mm_features = {{"cat", 1, 2}};
  scheduler.add_request(std::move(request));
  SchedulerOutput scheduler_output;
  ASSERT_TRUE(scheduler.schedule(scheduler_output));
  EXPECT_EQ(connector->lora_name, "lora");
  EXPECT_EQ(connector->cache_salt, "salt");
  EXPECT_EQ(connector->mm_hashes, std::vector<std::string>{"cat"});
  const Request& known = *scheduler.find_request(1);
  ASSERT_EQ(connector->block_hashes.size(), 2U);
  EXPECT_EQ(connector->block_hashes[1],
            (KVBlockHash{known.block_hashes()[1].high, known.block_hashes()[1].low}));
  EXPECT_EQ(connector->num_found_here, 0);
  // What failed has computed nothing that could be kept.
  for (const auto& [status, expected] :
       {std::pair{RequestStatus::kFinishedAborted, 8}, {RequestStatus::kFinishedError, 0}}) {
    EngineCoreRequest next = make_request(2, some_tokens(8, 2), 2);
    scheduler.add_request(std::move(next));
    ASSERT_TRUE(scheduler.schedule(scheduler_output));
    scheduler.finish_request(2, status);
    EXPECT_EQ(connector->num_computed_tokens, expected);
    EXPECT_EQ(connector->num_groups, 1U);
    EXPECT_EQ(connector->num_found_here, status == RequestStatus::kFinishedError ? 4 : 0);
  }
}

}  // namespace
}  // namespace quire
