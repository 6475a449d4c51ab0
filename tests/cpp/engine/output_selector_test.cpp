#include <gtest/gtest.h>
#include <poll.h>

#include <set>

#include "quire/engine.h"

namespace quire {
namespace {

bool is_readable(int descriptor) {
  pollfd poll_of{descriptor, POLLIN, 0};
  return poll(&poll_of, 1, /*timeout=*/10'000) == 1;
}

TEST(OutputSelectorTest, ItTellsOnceOfAllThatADeliveryBrought) {
  EngineConfig config;
  config.model = QUIRE_DEMO_MODEL;
  config.device = "cpu";
  config.num_threads = 1;
  Engine engine(config);
  OutputSelector selector(engine);
  std::vector<EngineRequest> requests;
  std::vector<OutputCallback> callbacks;
  std::vector<std::shared_ptr<OutputQueue>> queues;
  for (uint64_t key = 0; key < 3; ++key) {
    EngineRequest& request = requests.emplace_back();
    request.prompt = "Once upon a time";
    request.sampling_params.temperature = 0;
    request.sampling_params.output_kind = RequestOutputKind::kFinalOnly;
    queues.push_back(selector.open(10 + key));
    callbacks.push_back(queues.back()->callback(RequestOutputKind::kFinalOnly));
  }
  EXPECT_TRUE(selector.take().empty());
  engine.pause();
  engine.add_requests(std::move(requests), std::move(callbacks));
  engine.resume();  // they begin together, and so end in one step
  ASSERT_TRUE(is_readable(selector.fileno()));
  const std::vector<uint64_t> keys = selector.take();
  EXPECT_EQ(std::set<uint64_t>(keys.begin(), keys.end()), (std::set<uint64_t>{10, 11, 12}));
  EXPECT_TRUE(selector.take().empty());
  for (const auto& queue : queues)
    EXPECT_EQ(queue->take(std::chrono::milliseconds(0)).at(0).outputs.at(0).token_ids.size(), 16U);
}

TEST(OutputSelectorTest, ItMayGoBeforeItsQueuesAndItsEngine) {
  EngineConfig config;
  config.model = QUIRE_DEMO_MODEL;
  config.device = "cpu";
  config.num_threads = 1;
  Engine engine(config);
  auto selector = std::make_unique<OutputSelector>(engine);
  const std::shared_ptr<OutputQueue> queue = selector->open(1);
  selector.reset();
  EngineRequest request;
  request.prompt = "Once upon a time";
  engine.add_request(std::move(request), queue->callback(RequestOutputKind::kDelta));
  EXPECT_FALSE(queue->take(std::chrono::seconds(10)).empty());
}

}  // namespace
}  // namespace quire
