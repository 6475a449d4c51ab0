// Engines that sleep: what they give back, and that they wake up as they were.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <future>

#include "quire/engine.h"
#include "quire/flight_recorder.h"
#include "util/error_of.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

EngineConfig sleep_config(bool async_scheduling) {
  EngineConfig config;
  config.model = QUIRE_DEMO_MODEL;
  config.device = "cpu";
  config.dtype = "float32";
  config.max_model_len = 256;
  config.max_num_seqs = 8;
  config.num_threads = 2;
  config.kv_cache_memory_bytes = 32 << 20;
  config.async_scheduling = async_scheduling;
  return config;
}

EngineRequest greedy_for(const std::string& prompt, int32_t max_tokens) {
  EngineRequest request;
  request.prompt = prompt;
  request.sampling_params.temperature = 0;
  request.sampling_params.max_tokens = max_tokens;
  request.sampling_params.ignore_eos = true;
  request.sampling_params.logprobs = 2;
  return request;
}

// Tokens and log-probabilities, to be compared bit by bit.
std::vector<std::pair<int32_t, float>> answers_of(Engine& engine) {
  std::vector<std::pair<int32_t, float>> found;
  for (const RequestOutput& output : engine.generate(
           {greedy_for("Once upon a time", 20), greedy_for("The baker said", 12), greedy_for("She", 30)})) {
    const CompletionOutput& completion = output.outputs.at(0);
    for (size_t i = 0; i < completion.token_ids.size(); ++i)
      found.emplace_back(completion.token_ids[i], completion.logprobs.at(i).at(0).logprob);
  }
  return found;
}

size_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  size_t all = 0, resident = 0;
  statm >> all >> resident;
  return resident * 4096;
}

// A directory with the demo model's files, to be changed.
class CopiedModel {
 public:
  CopiedModel() {
    std::string pattern = (fs::temp_directory_path() / "quire_sleep_XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
    fs::copy(QUIRE_DEMO_MODEL, path_, fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  }
  ~CopiedModel() { fs::remove_all(path_); }
  CopiedModel(const CopiedModel&) = delete;
  CopiedModel& operator=(const CopiedModel&) = delete;

  const std::string& path() const { return path_; }
  std::string weights() const { return path_ + "/model.safetensors"; }

 private:
  std::string path_;
};

class SleepTest : public testing::TestWithParam<bool> {};

TEST_P(SleepTest, AnEngineWakesUpAsItWas) {
  Engine engine(sleep_config(GetParam()));
  const auto expected = answers_of(engine);
  EXPECT_GT(engine.stats().prefix_cache_queries, 0U);
  for (const int32_t level : {1, 2, 1}) {
    engine.sleep(level);
    EXPECT_TRUE(engine.is_sleeping());
    EXPECT_NE(error_of<ResourceExhausted>([&] { answers_of(engine); }).find("the engine is asleep"),
              std::string::npos);
    engine.sleep(level);  // as it does
    engine.wake_up();
    EXPECT_FALSE(engine.is_sleeping());
    EXPECT_EQ(answers_of(engine), expected) << "level " << level;
    engine.wake_up();  // as it is
  }
  engine.sleep(1);
  engine.sleep(2);
  engine.wake_up({"kv_cache"});
  EXPECT_TRUE(engine.is_sleeping());
  EXPECT_NE(error_of<ResourceExhausted>([&] { answers_of(engine); }).find("no weights"), std::string::npos);
  engine.wake_up({"weights"});
  EXPECT_EQ(answers_of(engine), expected);
  EXPECT_EQ(engine.stats().num_free_blocks, engine.stats().num_total_blocks);
}

TEST_P(SleepTest, MemoryGoesBackToTheMachine) {
  EngineConfig config = sleep_config(GetParam());
  config.kv_cache_memory_bytes = 64 << 20;
  Engine engine(config);
  std::vector<EngineRequest> requests;
  for (int i = 0; i < 8; ++i) requests.push_back(greedy_for("Once upon a time " + std::to_string(i), 200));
  engine.generate(std::move(requests));
  const size_t awake = resident_bytes();
  engine.sleep();
  const size_t asleep = resident_bytes();
  // 7.3 million parameters of four bytes, and the keys and values of 1,600 tokens.
  EXPECT_GT(awake, asleep + (size_t{28} << 20));
  engine.wake_up();
  EXPECT_GT(resident_bytes(), asleep + (size_t{24} << 20));
}

TEST_P(SleepTest, UnfinishedRequestsAreRefusedWaitedForOrAborted) {
  Engine engine(sleep_config(GetParam()));
  const auto expected = answers_of(engine);
  const auto begin = [&engine](int32_t max_tokens) {
    auto reason = std::make_shared<std::promise<FinishReason>>();
    engine.add_request(greedy_for("Once", max_tokens), [reason](RequestOutput&& output) {
      if (output.finished) reason->set_value(output.outputs.at(0).finish_reason);
    });
    return reason->get_future();
  };
  engine.pause();
  auto paused = begin(200);
  EXPECT_NE(error_of([&] { engine.sleep(); }).find("1 requests are unfinished"), std::string::npos);
  EXPECT_FALSE(engine.is_sleeping());
  engine.sleep(1, UnfinishedRequests::kAbort);
  EXPECT_EQ(paused.get(), FinishReason::kAbort);
  engine.resume();
  engine.wake_up();
  auto running = begin(100);
  engine.sleep(2, UnfinishedRequests::kWait);
  EXPECT_EQ(running.get(), FinishReason::kLength);
  engine.wake_up();
  auto more = begin(200);
  engine.sleep(2, UnfinishedRequests::kAbort);
  more.get();
  engine.wake_up();
  EXPECT_EQ(answers_of(engine), expected);
}

TEST_P(SleepTest, RanksSleepTogether) {
  EngineConfig config = sleep_config(GetParam());
  config.tensor_parallel_size = 2;
  config.num_threads = 1;
  Engine engine(config);
  const auto expected = answers_of(engine);
  for (const int32_t level : {1, 2}) {
    engine.sleep(level);
    engine.wake_up();
    EXPECT_EQ(answers_of(engine), expected);
  }
}

TEST_P(SleepTest, ASleepingEngineLendsWhatItHasOfASharedArena) {
  EngineConfig config = sleep_config(GetParam());
  config.kv_cache_memory_bytes = 0;
  config.max_num_seqs = 4;
  config.kv_arena = make_kv_arena(16 << 20);
  Engine sleeper(config), other(config);
  const auto expected = answers_of(sleeper);
  sleeper.sleep();
  std::vector<EngineRequest> requests;
  for (int i = 0; i < 6; ++i) requests.push_back(greedy_for(std::to_string(i) + " times", 200));
  EXPECT_EQ(other.generate(std::move(requests)).size(), 6U);
  sleeper.wake_up();
  EXPECT_EQ(answers_of(sleeper), expected);
  EXPECT_EQ(answers_of(other), expected);
}

TEST_P(SleepTest, DummyWeightsAndRecordingsGoOn) {
  EngineConfig config = sleep_config(GetParam());
  config.load_format = "dummy";
  config.flight_recorder_bytes = 4 << 20;
  Engine engine(config);
  const auto expected = answers_of(engine);
  engine.sleep(2);
  engine.wake_up();
  EXPECT_EQ(answers_of(engine), expected);
  const std::string path = testing::TempDir() + "sleep_test-" + std::to_string(GetParam()) + ".rec";
  engine.dump_flight_recorder(path);
  EXPECT_EQ(replay_recording(path).divergence, "");
  fs::remove(path);
}

TEST_P(SleepTest, AtLevel1TheWeightsAreTheSameOrTheEngineSleepsOn) {
  const CopiedModel model;
  EngineConfig config = sleep_config(GetParam());
  config.model = model.path();
  Engine engine(config);
  const auto expected = answers_of(engine);
  engine.sleep();
  fs::rename(model.weights(), model.weights() + ".away");
  EXPECT_THROW(engine.wake_up(), InvalidArgument);
  fs::copy_file(model.weights() + ".away", model.weights());
  EXPECT_NE(error_of([&] { engine.wake_up(); }).find("have changed since they were loaded"),
            std::string::npos);
  EXPECT_TRUE(engine.is_sleeping());
  fs::rename(model.weights() + ".away", model.weights());
  engine.wake_up();
  EXPECT_EQ(answers_of(engine), expected);
  // Files that are not there any more cannot be read again: the weights stay in memory.
  fs::remove(model.weights());
  engine.sleep();
  engine.wake_up();
  EXPECT_EQ(answers_of(engine), expected);
  engine.sleep(2);
  EXPECT_THROW(engine.wake_up(), InvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Scheduling, SleepTest, testing::Bool());

TEST(LLMEngineSleepTest, SleepsBetweenSteps) {
  LLMEngine engine(sleep_config(/*async_scheduling=*/true));
  const auto run = [&engine] {
    std::vector<int32_t> tokens;
    engine.add_request(greedy_for("Once upon a time", 10));
    while (engine.has_unfinished_requests())
      for (const RequestOutput& output : engine.step())
        if (output.finished) tokens = output.outputs.at(0).token_ids;
    return tokens;
  };
  const auto expected = run();
  const std::string id = engine.add_request(greedy_for("Once upon a time", 10));
  engine.step();
  engine.step();
  EXPECT_THROW(engine.sleep(), InvalidArgument);
  EXPECT_NE(error_of([&] { engine.sleep(1, UnfinishedRequests::kWait); }).find("step()"), std::string::npos);
  engine.sleep(2, UnfinishedRequests::kAbort);
  EXPECT_TRUE(engine.has_unfinished_requests()) << "its last output waits";
  EXPECT_EQ(engine.step().at(0).outputs.at(0).finish_reason, FinishReason::kAbort);
  EXPECT_THROW(engine.add_request(greedy_for("Once", 1)), ResourceExhausted);
  engine.wake_up();
  EXPECT_EQ(run(), expected);
  EXPECT_NE(error_of([&] { engine.sleep(3); }).find("got 3"), std::string::npos);
  EXPECT_NE(error_of([&] { engine.wake_up({"graphs"}); }).find("got \"graphs\""), std::string::npos);
}

}  // namespace
}  // namespace quire
