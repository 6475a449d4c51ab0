// Whether an engine makes progress, for whoever watches over it.
#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "kv_cache/kv_arena.h"
#include "quire/engine.h"
#include "quire/logits_processor.h"
#include "util/error_of.h"

namespace quire {
namespace {

using std::chrono::milliseconds;

// Every step waits until the test lets it go.
class Gate final : public LogitsProcessor {
 public:
  explicit Gate(std::shared_future<void> open) : open_(std::move(open)) {}
  void update_state(const BatchUpdate&) override { open_.wait(); }
  void apply(std::span<const LogitsRow>) override {}

 private:
  std::shared_future<void> open_;
};

EngineConfig gated_config(const std::shared_future<void>& open) {
  const auto gate = std::make_shared<NamedLogitsProcessor>();
  gate->name = "gate";
  gate->factory = {[open](const LogitsProcessorConfig&) { return std::make_unique<Gate>(open); },
                   [](const SamplingParams&) { return true; }};
  EngineConfig config;
  config.model = QUIRE_DEMO_MODEL;
  config.device = "cpu";
  config.max_model_len = 64;
  config.num_threads = 1;
  config.logits_processors = {"gate"};
  config.own_logits_processors = {gate};
  return config;
}

EngineRequest three_tokens() {
  EngineRequest request;
  request.prompt = "Once upon a time";
  request.sampling_params.max_tokens = 3;
  return request;
}

TEST(EngineHealthTest, AStepThatHangsIsSeenWithinTheTimeoutAndNotBefore) {
  std::promise<void> open;
  Engine engine(gated_config(open.get_future().share()));
  EXPECT_NO_THROW(engine.check_health(milliseconds(0))) << "it has nothing to do";
  std::promise<void> finished;
  engine.add_request(three_tokens(), [&finished](RequestOutput&& output) {
    if (output.finished) finished.set_value();
  });
  EXPECT_NO_THROW(engine.check_health(milliseconds(60'000)));
  const auto begin = std::chrono::steady_clock::now();
  std::string error;
  while (error.empty()) {
    std::this_thread::sleep_for(milliseconds(5));
    error = error_of<Error>([&engine] { engine.check_health(milliseconds(200)); });
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
  EXPECT_NE(error.find("which is more than the 200 ms"), std::string::npos) << error;
  EXPECT_EQ(engine.dead_error(), "") << "nobody is to be told that it has ended";
  open.set_value();
  finished.get_future().wait();
  while (engine.seconds_since_progress() > 0) std::this_thread::sleep_for(milliseconds(1));
  EXPECT_NO_THROW(engine.check_health(milliseconds(0)));
}

TEST(EngineHealthTest, AnEngineThatHasEndedSaysWhyAndDoesNotCountAsHanging) {
  EngineConfig config = gated_config({});
  config.logits_processors.clear();
  config.own_logits_processors.clear();
  config.max_num_seqs = 4;
  config.kv_arena = make_kv_arena(16 << 20);
  Engine engine(config);
  // A neighbour in the arena that breaks when it is asked for memory takes the scheduler with it.
  KVArena::Member neighbour(config.kv_arena, 0, [] { throw InternalError("the neighbour broke"); });
  ASSERT_TRUE(neighbour.take(neighbour.bytes_available()));
  EngineRequest request = three_tokens();
  request.sampling_params.max_tokens = 60;
  request.sampling_params.ignore_eos = true;
  engine.generate({request, request, request, request});
  EXPECT_EQ(error_of<Error>([&engine] { engine.check_health(); }),
            "the engine has ended: the neighbour broke");
  while (engine.seconds_since_progress() > 0) std::this_thread::sleep_for(milliseconds(1));
}

}  // namespace
}  // namespace quire
