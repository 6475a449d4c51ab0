#include "quire/simulator.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <string>

#include "formats/json.h"
#include "quire/error.h"
#include "util/error_of.h"
#include "util/sanitized.h"

namespace quire {
namespace {

// A file of lines for the length of a test.
class LinesFile {
 public:
  explicit LinesFile(const std::string& text)
      : path_(testing::TempDir() + "simulate_test-" + std::to_string(getpid()) + ".jsonl") {
    std::ofstream(path_) << text;
  }
  ~LinesFile() { std::remove(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

Json run(const Json& options) { return Json::parse(simulate(options.dump())); }

Json run_trace(const std::string& lines, Json options) {
  const LinesFile file(lines);
  options["workload"] = file.path();
  return run(options);
}

// 1 s a step, 0.1 s a token, 0.001 s for each key read.
const Json kHandCosts = {
    {"seconds_per_step", 1}, {"seconds_per_token", 0.1}, {"seconds_per_context_token", 0.001}};
const Json kServerCosts = {{"seconds_per_step", 0.01},
                           {"seconds_per_token", 2e-5},
                           {"seconds_per_request", 5e-5},
                           {"seconds_per_context_token", 5e-8}};

std::string refusal(const Json& options) {
  return error_of([&] { run(options); });
}

std::string refusal_of_trace(const std::string& lines) {
  const LinesFile file(lines);
  std::string message = refusal({{"workload", file.path()}});
  if (message.starts_with(file.path())) message.erase(0, file.path().size());
  return message;
}

TEST(SimulateTest, OneRequestTakesTheTimeItsStepsCost) {
  const Json report =
      run_trace(R"({"arrival": 5, "prompt_len": 10, "output_len": 3})", {{"cost_model", kHandCosts}});
  EXPECT_EQ(report["num_steps"], 3);
  EXPECT_EQ(report["num_scheduled_tokens"], 12);               // the last token is never computed
  EXPECT_NEAR(report["ttft"]["mean"], 1 + 1.0 + 0.010, 1e-9);  // ten tokens, ten keys
  EXPECT_NEAR(report["itl"]["mean"], 1 + 0.1 + 0.0115, 1e-9);  // eleven keys, then twelve
  EXPECT_NEAR(report["itl"]["max"], 1 + 0.1 + 0.012, 1e-9);
  EXPECT_NEAR(report["e2e"]["mean"], 2.010 + 1.111 + 1.112, 1e-9);
  EXPECT_NEAR(report["simulated_seconds"], 5 + 4.233, 1e-9);
  EXPECT_EQ(report["queue_time"]["max"], 0);
}

TEST(SimulateTest, ALongPromptIsComputedInChunks) {
  const Json report = run_trace(
      R"({"arrival": 0, "prompt_len": 40, "output_len": 1})",
      {{"cost_model", kHandCosts}, {"engine", {{"max_num_batched_tokens", 16}, {"max_num_seqs", 4}}}});
  EXPECT_EQ(report["num_steps"], 3);  // 16, 16 and 8 tokens
  EXPECT_NEAR(report["ttft"]["mean"], 3 + 4.0 + 0.016 + 0.032 + 0.040, 1e-9);
  EXPECT_EQ(report["itl"]["count"], 0);
}

TEST(SimulateTest, RequestsThatComeTogetherShareSteps) {
  const Json report = run_trace(
      R"({"arrival": 0, "prompt_len": 4, "output_len": 2}
         {"arrival": 0, "prompt_len": 6, "output_len": 2}
         {"arrival": 2.5, "prompt_len": 5, "output_len": 1})",
      {{"cost_model", {{"seconds_per_step", 1}, {"seconds_per_request", 0.5}}}});
  // Two requests until 2 s and until 4 s; the third waits for the end of that step.
  EXPECT_EQ(report["num_steps"], 3);
  EXPECT_NEAR(report["itl"]["max"], 2.0, 1e-9);
  EXPECT_NEAR(report["queue_time"]["max"], 1.5, 1e-9);
  EXPECT_NEAR(report["simulated_seconds"], 5.5, 1e-9);
  EXPECT_NEAR(report["kv_cache"]["mean_running_reqs"], (2 * 4 + 1 * 1.5) / 5.5, 1e-9);
}

TEST(SimulateTest, AsynchronousSchedulingHidesTheHost) {
  const std::string line = R"({"arrival": 0, "prompt_len": 10, "output_len": 3})";
  Json options = {{"cost_model", kHandCosts}, {"host_seconds_per_step", 0.5}};
  EXPECT_NEAR(run_trace(line, options)["e2e"]["mean"], 4.233 + 3 * 0.5, 1e-9);
  options["engine"]["async_scheduling"] = true;
  EXPECT_NEAR(run_trace(line, options)["e2e"]["mean"], 4.233 + 0.5, 1e-9);  // the first step is waited for
}

TEST(SimulateTest, EveryRequestFinishesWithAllItsTokens) {
  const std::string lines =
      R"({"arrival": 0, "prompt_len": 100, "output_len": 50}
         {"arrival": 0, "prompt_len": 120, "output_len": 60}
         {"arrival": 0.001, "prompt_len": 90, "output_len": 70})";
  for (const bool async_scheduling : {false, true}) {
    // 22 blocks hold the prompts, but not all the outputs: somebody is preempted and computed again.
    const Json report = run_trace(lines, {{"cost_model", kServerCosts},
                                          {"engine",
                                           {{"num_gpu_blocks_override", 23},
                                            {"max_model_len", 200},
                                            {"scheduler_reserve_full_isl", false},
                                            {"async_scheduling", async_scheduling}}}});
    EXPECT_EQ(report["num_finished"], 3);
    EXPECT_EQ(report["num_prompt_tokens"], 310);
    EXPECT_EQ(report["num_output_tokens"], 180);
    EXPECT_EQ(report["ttft"]["count"], 3);
    EXPECT_EQ(report["itl"]["count"], 177);
    EXPECT_GT(report["num_preemptions"], 0);
  }
}

TEST(SimulateTest, RequestsThatCannotBeServedAreCounted) {
  const Json report = run_trace(
      R"({"arrival": 0, "prompt_len": 64, "output_len": 1}
         {"arrival": 0, "prompt_len": 60, "output_len": 9}
         {"arrival": 0, "prompt_len": 8, "output_len": 50, "deadline_ms": 2500}
         {"arrival": 0, "prompt_len": 8, "output_len": 1})",
      {{"cost_model", {{"seconds_per_step", 1}}},
       {"engine", {{"max_model_len", 64}, {"max_queued_requests", 2}}}});
  EXPECT_EQ(report["num_refused"], 2);  // no room for an output token; a full queue
  EXPECT_EQ(report["num_expired"], 1);
  EXPECT_EQ(report["num_finished"], 1);  // with the 4 tokens that fit
  EXPECT_EQ(report["num_output_tokens"], 4 + 2);
}

TEST(SimulateTest, AnExpiredRequestIsNoLoadAnyMore) {
  // One engine gets a long request that expires; afterwards both are idle and the first is as good as the
  // second.
  std::string lines = R"({"arrival": 0, "prompt_len": 8, "output_len": 1500, "deadline_ms": 3000})";
  for (int i = 1; i <= 20; ++i)
    lines += "\n{\"arrival\": " + std::to_string(i * 100) + ", \"prompt_len\": 8, \"output_len\": 2}";
  const Json report = run_trace(
      lines, {{"cost_model", {{"seconds_per_step", 1}}}, {"num_engines", 2}, {"router", "least_loaded"}});
  EXPECT_EQ(report["num_expired"], 1);
  EXPECT_EQ(report["engines"]["most_requests"], 21);
}

TEST(SimulateTest, PagedMemoryWastesLessThanFourPercentWhereContiguousWastesHalf) {
  const Json report =
      run({{"cost_model", kServerCosts},
           {"workload", {{"num_requests", kSanitized ? 400 : 2000}, {"rate", 10}}}});  // ShareGPT-like
  EXPECT_LT(report["kv_cache"]["waste"], 0.04);
  EXPECT_GT(report["kv_cache"]["waste"], 0.005);
  EXPECT_GT(report["kv_cache"]["contiguous"]["waste"], 0.5);
}

// Utilization law: busy = rate * service time. Pollaczek-Khinchine for one server and equal service times:
// the mean wait is busy * service / (2 * (1 - busy)).
TEST(SimulateTest, AQueueOfEqualJobsBehavesAsQueueingTheorySays) {
  const Json report = run({{"cost_model", {{"seconds_per_step", 1}}},
                           {"engine", {{"max_num_seqs", 1}}},
                           {"workload",
                            {{"num_requests", kSanitized ? 5000 : 50000},
                             {"rate", 0.5},
                             {"prompt_min", 1},
                             {"prompt_max", 1},
                             {"output_max", 1}}}});
  EXPECT_NEAR(report["busy_fraction"], 0.5, kSanitized ? 0.03 : 0.01);
  EXPECT_NEAR(report["queue_time"]["mean"], 0.5 * 1 / (2 * (1 - 0.5)), kSanitized ? 0.06 : 0.02);
}

TEST(SimulateTest, RoundRobinGivesEveryEngineTheSameNumberOfRequests) {
  const Json report = run({{"num_engines", 8}, {"workload", {{"num_requests", 804}, {"rate", 100}}}});
  EXPECT_EQ(report["engines"]["most_requests"], 101);
  EXPECT_EQ(report["engines"]["fewest_requests"], 100);
}

TEST(SimulateTest, LeastLoadedShortensTheQueueOfABusyFleet) {
  Json options = {{"num_engines", 8},
                  {"cost_model", kServerCosts},
                  {"engine", {{"max_num_seqs", 8}}},
                  {"workload", {{"num_requests", kSanitized ? 1000 : 3000}, {"rate", 24}}}};
  const double in_turn = run(options)["queue_time"]["p99"];
  options["router"] = "least_loaded";
  EXPECT_LT(run(options)["queue_time"]["p99"], in_turn);
}

TEST(SimulateTest, PrefixAwareFindsMoreCachedTokensThanRoundRobin) {
  constexpr int kRequests = kSanitized ? 600 : 2000;
  // 32 prefixes of 16 blocks: more than the 300 blocks of one engine, fewer than those of four.
  Json options = {
      {"num_engines", 4},
      {"cost_model", kServerCosts},
      {"engine", {{"num_gpu_blocks_override", 301}}},
      {"workload", {{"num_requests", kRequests}, {"rate", 8}, {"prefix_share", 0.9}, {"num_prefixes", 32}}}};
  const double in_turn = run(options)["prefix_cache_hit_rate"];
  options["router"] = "prefix_aware";
  const Json report = run(options);
  EXPECT_GT(report["prefix_cache_hit_rate"], in_turn + 0.05);
  EXPECT_EQ(report["num_finished"], kRequests);
  EXPECT_LT(report["engines"]["most_tokens"], 2 * report["engines"]["fewest_tokens"].get<int64_t>());
}

TEST(SimulateTest, TheSameSeedGivesTheSameReportWhateverTheThreads) {
  for (const std::string router : {"round_robin", "least_loaded", "prefix_aware"}) {
    Json options = {
        {"num_engines", 5},
        {"router", router},
        {"seed", 7},
        {"num_threads", 1},
        {"workload", {{"num_requests", kSanitized ? 40 : 500}, {"rate", 50}, {"prefix_share", 0.5}}}};
    const std::string report = simulate(options.dump());
    EXPECT_EQ(simulate(options.dump()), report);
    options["num_threads"] = 3;
    EXPECT_EQ(simulate(options.dump()), report);
    options["seed"] = 8;
    EXPECT_NE(simulate(options.dump()), report);
  }
}

TEST(SimulateTest, MooncakeTracesShareTheBlocksTheirIdsName) {
  const Json report = run_trace(
      R"({"timestamp": 0, "input_length": 1100, "output_length": 2, "hash_ids": [0, 1, 2]}
         {"timestamp": 4000, "input_length": 1100, "output_length": 2, "hash_ids": [0, 1, 3]})",
      {{"cost_model", kServerCosts}});
  EXPECT_EQ(report["num_finished"], 2);
  EXPECT_EQ(report["prefix_cache_hits"], 1024);
}

TEST(SimulateTest, APolicyThatKnowsPrioritiesServesTheUrgentFirst) {
  // All at once, one at a time: the last line has the lowest value.
  const Json report = run_trace(
      R"({"arrival": 0, "prompt_len": 1, "output_len": 9, "priority": 1}
         {"arrival": 0, "prompt_len": 1, "output_len": 1, "priority": 0, "user": "someone"})",
      {{"cost_model", {{"seconds_per_step", 1}}},
       {"engine", {{"max_num_seqs", 1}, {"scheduling_policy", "priority"}}}});
  EXPECT_NEAR(report["queue_time"]["max"], 1.0, 1e-9);  // the long one waited for the short one
}

TEST(SimulateTest, ABadLineIsNamedByNumberAndField) {
  EXPECT_EQ(refusal_of_trace("{\"arrival\": 0, \"prompt_len\": 1, \"output_len\": 1}\n\n{\"arrival\": 0}\n"),
            " line 3: prompt_len is missing");
  EXPECT_EQ(refusal_of_trace(R"({"arrival": 0, "prompt_len": 0, "output_len": 1})"),
            " line 1: prompt_len must be an integer from 1 to 16777216");
  EXPECT_EQ(refusal_of_trace(R"({"arrival": "soon", "prompt_len": 1, "output_len": 1})"),
            " line 1: arrival must be a number");
  EXPECT_EQ(
      refusal_of_trace(R"({"arrival": 0, "prompt_len": 4, "output_len": 1, "prefix": "a", "prefix_len": 5})"),
      " line 1: prefix_len must be an integer from 0 to 4");
  EXPECT_EQ(
      refusal_of_trace(R"({"timestamp": 0, "input_length": 4, "output_length": 1, "hash_ids": [1, 2]})"),
      " line 1: hash_ids has more than one id for each 512 tokens");
  EXPECT_EQ(refusal_of_trace("\n"), ": has no requests");
  EXPECT_NE(refusal_of_trace("nonsense").find(" line 1: not valid JSON"), std::string::npos);
}

TEST(SimulateTest, ABadOptionIsNamed) {
  EXPECT_EQ(refusal({{"engine", {{"max_num_seqs", 0}}}}),
            "options: engine.max_num_seqs must be an integer from 1 to 4096");
  EXPECT_EQ(refusal({{"workload", {{"rate", -1}}}}),
            "options: workload.rate must be a number from 0 to 1e+09");
  EXPECT_EQ(refusal({{"speed", 1}}), "options: speed is not a key we know, and it may change the result");
  EXPECT_NE(refusal({{"router", "random"}}).find("got 'random'"), std::string::npos);
  EXPECT_NE(
      refusal({{"workload", {{"rate", 1e-9}, {"num_requests", 50}}}}).find("rate 1e-09 brings 50 requests"),
      std::string::npos);
  EXPECT_NE(refusal({{"workload", "/nowhere.jsonl"}}).find("no such file"), std::string::npos);
  EXPECT_NE(refusal({{"engine", {{"num_gpu_blocks_override", 4}}}}).find("max_model_len 2048"),
            std::string::npos);
  EXPECT_NE(refusal({{"engine", {{"max_num_batched_tokens", 8}}}}).find("block_size"), std::string::npos);
}

}  // namespace
}  // namespace quire
