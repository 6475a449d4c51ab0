// What scenarios/lora.txt is too short for: how long a request waits for its adapter, forks, and whoever
// restores a scheduler in between.
#include <gtest/gtest.h>

#include <algorithm>

#include "kv_cache/kv_cache_planner.h"
#include "quire/error.h"
#include "request/make_request.h"
#include "scheduler/scheduler.h"

namespace quire {
namespace {

// A scheduler whose requests have a prompt of four tokens, and what it does.
class SchedulerLoraTest : public testing::Test {
 protected:
  static constexpr int32_t kBlockSize = 4;

  void SetUp() override { make({}); }
  void make(SchedulerConfig config, int32_t max_loras = 1) {
    config.max_loras = max_loras;
    config_ = config;
    KVCacheSpec spec;
    spec.block_size = kBlockSize;
    spec.page_bytes = 4096;
    KVCacheDemand demand;
    demand.num_blocks = 2000;
    demand.max_model_len = config.max_model_len;
    kv_cache_ = plan_kv_cache({spec}, demand);
    scheduler_ = std::make_unique<Scheduler>(config_, kv_cache_);
  }
  void add(RequestId id, LoraId lora, int32_t max_tokens = 1, int32_t prompt = 4,
           std::shared_ptr<const void> lora_use = nullptr) {
    EngineCoreRequest request =
        make_request(id, std::vector<int32_t>(static_cast<size_t>(prompt), static_cast<int32_t>(id)));
    request.sampling_params.edit().max_tokens = max_tokens;
    request.lora_id = lora;
    request.lora_name = lora == 0 ? "" : "adapter" + std::to_string(lora);
    request.lora_use = std::move(lora_use);
    scheduler_->add_request(std::move(request));
  }
  // The requests of the next step, which then has run.
  std::vector<RequestId> step() {
    std::vector<RequestId> ids;
    if (!scheduler_->schedule(out_)) return ids;
    ModelRunnerOutput result;
    result.reset(out_.step_id);
    for (const ScheduledRequest& s : out_.scheduled_reqs) {
      ids.push_back(s.request_id);
      result.add(s.request_id, std::vector<int32_t>(s.samples, 7));
    }
    EngineCoreOutputs outputs;
    scheduler_->update_from_output(out_, result, outputs);
    return ids;
  }
  bool is_running(RequestId id) const {
    const Request* request = scheduler_->find_request(id);
    return request != nullptr && request->is_running();
  }

  SchedulerConfig config_;
  KVCacheConfig kv_cache_;
  std::unique_ptr<Scheduler> scheduler_;
  SchedulerOutput out_;
};

constexpr RequestId kRunner = 1, kWaiter = 2;

TEST_F(SchedulerLoraTest, AHundredAndTwentyEightBeginBeforeWhoWaitsForASlotAndThenNobody) {
  add(kRunner, /*lora=*/1, /*max_tokens=*/100);
  add(kWaiter, /*lora=*/2, /*max_tokens=*/2);
  for (RequestId id = 3; id < 203; ++id) add(id, 0);
  std::vector<RequestId> begun;
  for (int i = 0; i < 20; ++i) {
    for (RequestId id : step())
      if (id != kRunner) begun.push_back(id);
  }
  EXPECT_EQ(begun.size(), 128U);
  EXPECT_EQ(begun.back(), 130U);
  EXPECT_TRUE(std::ranges::is_sorted(begun));
  scheduler_->finish_request(kRunner, RequestStatus::kFinishedAborted);
  const std::vector<RequestId> next = step();
  ASSERT_GE(next.size(), 2U);
  EXPECT_EQ(next[0], kWaiter);
  EXPECT_EQ(next[1], 131U);
  EXPECT_EQ(next.size(), 64U);
}

TEST_F(SchedulerLoraTest, ARequestOfTheRunningAdapterOvertakesLikeAnyOther) {
  SchedulerConfig config;
  config.max_num_seqs = 2;
  make(config);
  add(kRunner, 1, 1000);
  add(kWaiter, 2);
  for (RequestId id = 3; id < 203; ++id) add(id, 1);
  for (int i = 0; i < 200; ++i) step();
  EXPECT_FALSE(scheduler_->find_request(130));
  EXPECT_TRUE(scheduler_->find_request(131));
  EXPECT_FALSE(is_running(131));
  EXPECT_FALSE(is_running(kWaiter));
}

TEST_F(SchedulerLoraTest, TwiceAsManyAsMayRunArePassedOverInAStep) {
  for (const auto& [seats, most] : {std::pair{8, 128}, {64, 128}, {100, 200}}) {
    for (const int32_t num_waiting : {most, most + 1}) {
      SchedulerConfig config;
      config.max_num_seqs = seats;
      make(config);
      add(kRunner, 1, 100);
      for (int32_t i = 0; i < num_waiting; ++i) add(static_cast<RequestId>(2 + i), 2 + i);
      add(1000, 0);
      EXPECT_EQ(step().size(), num_waiting == most ? 2U : 1U) << num_waiting << " of " << seats;
    }
  }
}

// A request that is only passed over has not had its turn before older ones.
TEST_F(SchedulerLoraTest, WhoIsPassedOverHasOvertakenNobody) {
  SchedulerConfig config;
  config.policy = "cache_aware";
  config.enable_chunked_prefill = false;
  config.max_num_batched_tokens = 100;
  make(config);
  add(kWaiter, 2, 1, 9);
  step();  // its prefix is cached from now on
  add(kRunner, 1, 100);
  step();
  add(3, 0, 1, 100);  // older, and fits a step only when nobody else runs
  add(kWaiter, 2, 1, 9);
  for (int i = 0; i < 70; ++i) step();
  EXPECT_EQ(scheduler_->find_request(3)->num_overtaken(), 0);
  scheduler_->finish_request(kRunner, RequestStatus::kFinishedAborted);
  EXPECT_EQ(step(), std::vector<RequestId>{kWaiter});
}

TEST_F(SchedulerLoraTest, WhoStaysForForksHasNoSlotAndAForkWaitsForOne) {
  EngineCoreRequest parent = make_request(1, {1, 2, 3, 4}, 1);
  parent.awaits_forks = 1;
  parent.lora_id = 1;
  scheduler_->add_request(std::move(parent));
  EXPECT_EQ(step(), std::vector<RequestId>{1});
  EXPECT_EQ(scheduler_->lora_manager().num_running(), 0);
  add(2, /*lora=*/2, /*max_tokens=*/3);
  EXPECT_EQ(step(), std::vector<RequestId>{2});
  EngineCoreRequest fork = make_request(3, {1, 2, 3, 4, 7}, 1);
  fork.fork_of = 1;
  fork.lora_id = 1;
  scheduler_->add_request(std::move(fork));
  EXPECT_EQ(step(), std::vector<RequestId>{2});
  EXPECT_EQ(step(), std::vector<RequestId>{2});
  EXPECT_EQ(step(), std::vector<RequestId>{3});
  EXPECT_EQ(out_.lora_loads, (std::vector<LoraLoad>{{1, 0}}));
  EXPECT_EQ(out_.scheduled_reqs[0].num_computed_tokens, 4);  // the parent's
  EXPECT_EQ(scheduler_->lora_manager().num_running(), 0);
}

TEST_F(SchedulerLoraTest, PreemptingAllGivesAllSlotsBack) {
  make({}, /*max_loras=*/2);
  for (RequestId id : {1, 2, 3, 4}) add(id, id % 2 + 1, 100);
  step();
  EXPECT_EQ(scheduler_->lora_manager().num_running(), 2);
  scheduler_->preempt_all();
  EXPECT_EQ(scheduler_->lora_manager().num_running(), 0);
  EXPECT_EQ(step(), (std::vector<RequestId>{1, 2, 3, 4}));
  EXPECT_EQ(out_.lora_loads, std::vector<LoraLoad>());
  EXPECT_EQ(scheduler_->lora_manager().num_running(), 2);
}

TEST_F(SchedulerLoraTest, WithoutSlotsARequestWithAnAdapterWaits) {
  make({}, /*max_loras=*/0);
  add(1, 1);
  add(2, 0);
  EXPECT_EQ(step(), std::vector<RequestId>{2});
  EXPECT_EQ(step(), std::vector<RequestId>{});
}

// The workers look for it when they begin the step, which may be long after the request has gone.
TEST_F(SchedulerLoraTest, AnAdapterIsKeptUntilTheStepThatBringsItHasReturned) {
  SchedulerConfig config;
  config.max_awaited_lora_loads = 0;
  config.max_in_flight_steps = 2;
  make(config, /*max_loras=*/2);
  add(1, 0, 100);
  auto use = std::make_shared<int>();
  const std::weak_ptr<int> is_used = use;
  add(2, 7, 1, 4, std::move(use));
  ASSERT_TRUE(scheduler_->schedule(out_));
  EXPECT_EQ(out_.lora_loads, (std::vector<LoraLoad>{{7, 0}}));
  scheduler_->finish_request(2, RequestStatus::kFinishedAborted);
  SchedulerOutput next;
  ASSERT_TRUE(scheduler_->schedule(next));
  EXPECT_FALSE(is_used.expired());
  ModelRunnerOutput result;
  result.reset(out_.step_id);
  result.add(1, std::vector<int32_t>{7});
  EngineCoreOutputs outputs;
  scheduler_->update_from_output(out_, result, outputs);
  EXPECT_TRUE(is_used.expired());
}

// Each adapter comes once, for as many as may begin.
TEST_F(SchedulerLoraTest, ABurstOfAdaptersBeginsAStepLaterInItsOrder) {
  SchedulerConfig config;
  config.max_awaited_lora_loads = 1;
  config.max_num_seqs = 12;
  make(config, /*max_loras=*/20);
  add(1, 0, 100);
  step();
  for (RequestId id = 2; id < 22; ++id) add(id, static_cast<LoraId>(id), 100);
  EXPECT_EQ(step(), (std::vector<RequestId>{1, 2}));
  EXPECT_EQ(out_.lora_loads.size(), 11U);
  EXPECT_EQ(step(), (std::vector<RequestId>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}));
  EXPECT_EQ(out_.lora_loads, std::vector<LoraLoad>());
}

SchedulerSnapshot snapshot_of(const Scheduler& scheduler) {
  SchedulerSnapshot snapshot;
  scheduler.save(snapshot,
                 [](size_t) -> const SchedulerOutput& { throw InternalError("nothing is in flight"); });
  return snapshot;
}

TEST_F(SchedulerLoraTest, ARestoredSchedulerGoesOnAsTheFirst) {
  make({}, /*max_loras=*/2);
  add(1, 1, 3);
  add(2, 2, 5);
  add(3, 3, 2);
  add(4, 0, 2);
  step();
  const SchedulerSnapshot snapshot = snapshot_of(*scheduler_);
  std::vector<std::vector<RequestId>> steps[2];
  std::vector<LoraLoad> loads[2];
  for (const size_t pass : {0, 1}) {
    if (pass == 1) {
      scheduler_ = std::make_unique<Scheduler>(config_, kv_cache_);
      scheduler_->restore(snapshot, [](RequestId) { return std::vector<BlockHash>(2); });
    }
    while (scheduler_->has_unfinished_requests()) {
      steps[pass].push_back(step());
      loads[pass].insert(loads[pass].end(), out_.lora_loads.begin(), out_.lora_loads.end());
    }
  }
  EXPECT_EQ(steps[0][0], (std::vector<RequestId>{1, 2, 4}));
  EXPECT_EQ(loads[0], (std::vector<LoraLoad>{{3, 0}}));
  EXPECT_EQ(steps[1], steps[0]);
  EXPECT_EQ(loads[1], loads[0]);
}

TEST_F(SchedulerLoraTest, SnapshotsOfAdaptersThatCannotBeAreRefused) {
  add(1, 1, 5);
  step();
  const SchedulerSnapshot good = snapshot_of(*scheduler_);
  const auto restore = [&](const SchedulerSnapshot& snapshot) {
    scheduler_ = std::make_unique<Scheduler>(config_, kv_cache_);
    scheduler_->restore(snapshot, [](RequestId) { return std::vector<BlockHash>(2); });
  };
  restore(good);
  SchedulerSnapshot bad = good;
  bad.requests[0].request.lora_id = 2;
  EXPECT_THROW(restore(bad), InvalidArgument);
  bad = good;
  bad.loras.ids = {};
  EXPECT_THROW(restore(bad), InvalidArgument);
  // One that says it runs, and is not among those that do, is found out when it ends.
  bad = good;
  bad.running.clear();
  bad.requests[0].request.lora_id = 2;
  restore(bad);
  EXPECT_THROW(scheduler_->finish_request(1, RequestStatus::kFinishedAborted), InternalError);
}

}  // namespace
}  // namespace quire
