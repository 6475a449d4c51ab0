#include "response_pacer.h"

#include <gtest/gtest.h>

#include "host/server_objects.h"
#include "response_sender.h"

namespace quire::triton {
namespace {

using namespace std::chrono_literals;
using Clock = ResponsePacer::Clock;

TEST(ResponsePacerTest, ABurstGoesOutAtOnceAndNoMore) {
  ResponsePacer pacer(/*burst=*/96);
  const Clock::time_point now = Clock::now();
  for (int i = 0; i < 96; ++i) ASSERT_EQ(pacer.enter(now), 0ms) << i;
  EXPECT_EQ(pacer.enter(now), 1ms);
}

TEST(ResponsePacerTest, ATwelfthOfTheBurstLeavesInAMillisecond) {
  ResponsePacer pacer(/*burst=*/96);
  const Clock::time_point start = Clock::now();
  for (int i = 0; i < 96; ++i) pacer.enter(start);
  for (int i = 0; i < 16; ++i) ASSERT_EQ(pacer.enter(start + 2ms), 0ms) << i;
  EXPECT_GE(pacer.enter(start + 2ms), 1ms);
}

// Whoever does not sleep, because others overtake it, waits longer and longer.
TEST(ResponsePacerTest, TheWaitGrowsWithWhatIsUnderWay) {
  ResponsePacer pacer(/*burst=*/96);
  const Clock::time_point now = Clock::now();
  for (int i = 0; i < 96 + 80; ++i) pacer.enter(now);
  EXPECT_GT(pacer.enter(now), 10ms);
  EXPECT_LT(pacer.enter(now), 11ms);
}

TEST(ResponsePacerTest, AFirstResponseCountsTwice) {
  ResponsePacer pacer(/*burst=*/96);
  const Clock::time_point now = Clock::now();
  for (int i = 0; i < 48; ++i) ASSERT_EQ(pacer.enter(now, 2), 0ms) << i;
  EXPECT_GE(pacer.enter(now, 2), 1ms);
}

// With a burst of 1 a message leaves every 12 ms: the head, the first response, the last one, the end of the
// chunks.
TEST(ResponsePacerTest, AStreamOfTwoResponsesIsFourMessages) {
  host::ledger().reset();
  TRITONBACKEND_Model model;
  model.decoupled = true;
  TRITONBACKEND_Request request;
  request.model = &model;
  request.client = std::make_shared<host::ClientEnd>();
  ResponsePacer pacer(/*burst=*/1);
  const Clock::time_point start = Clock::now();
  ResponseSender sender(&request, pacer);
  sender.send(sender.make({}), ResponseSender::Place::kMore);
  sender.send(sender.make({}), ResponseSender::Place::kLast);
  EXPECT_GE(Clock::now() - start, 35ms);
  sender.close();
  EXPECT_EQ(host::ledger().violations(), std::vector<std::string>());
  host::ledger().reset();
}

TEST(ResponsePacerTest, NobodyWaitsAtAModestPace) {
  ResponsePacer pacer(/*burst=*/96);
  Clock::time_point now = Clock::now();
  for (int step = 0; step < 1000; ++step, now += 8ms) {
    for (int i = 0; i < 60; ++i) ASSERT_EQ(pacer.enter(now), 0ms);
  }
}

}  // namespace
}  // namespace quire::triton
