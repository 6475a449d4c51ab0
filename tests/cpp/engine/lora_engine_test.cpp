// Adapters through a whole engine: what is counted of requests that have one.
#include <gtest/gtest.h>

#include <deque>

#include "engine/fake_metric_sink.h"
#include "engine/lora_engine_rig.h"
#include "engine/lora_registry.h"
#include "quire/prometheus.h"
#include "util/error_of.h"

namespace quire {
namespace {

using LoraNames = std::vector<std::string>;

// One adapter is in memory at a time, and while a request has it others wait to be read.
struct LoraEngineTest : testing::TestWithParam<bool> {
  LoraEngineTest() {
    config.async_scheduling = GetParam();
    config.metric_sink = sink;
  }
  void add_adapters(Engine& engine) const {
    for (const char* name : {"sailor", "json"}) engine.add_lora({name, 0, trained_adapter(name)});
  }
  static int64_t uses(const Engine& engine, const std::string& name) {
    for (const LoraInfo& info : engine.list_loras())
      if (info.lora_name == name) return info.num_requests;
    return -1;
  }
  bool tells(double num_waiting, const LoraNames& waiting, const LoraNames& running) const {
    return comes_true([&] {
      return sink->gauge(Metric::kNumRequestsWaiting) == num_waiting &&
             sink->lora_requests() == LoraRequestsInfo{1, waiting, running};
    });
  }

  const std::shared_ptr<FakeMetricSink> sink = std::make_shared<FakeMetricSink>();
  EngineConfig config = lora_engine_config(/*max_loras=*/1, /*max_cpu_loras=*/1);
};
INSTANTIATE_TEST_SUITE_P(Scheduling, LoraEngineTest, testing::Bool(), [](const auto& info) {
  return info.param ? std::string("async") : std::string("sync");
});

TEST_P(LoraEngineTest, WhoseAdapterIsNotInMemoryWaitsInEveryCount) {
  Engine engine(config);
  EXPECT_EQ(sink->lora_requests(), (LoraRequestsInfo{1, {}, {}}));
  add_adapters(engine);
  engine.pause();
  Asked json(engine, lora_request("json", 400));
  EXPECT_TRUE(tells(1, {"json"}, {}));
  engine.resume();
  EXPECT_TRUE(tells(0, {}, {"json"}));
  EngineRequest two = lora_request("sailor", 4);
  two.sampling_params.n = 2;
  Asked aborted(engine, two);
  EXPECT_TRUE(tells(2, {"sailor"}, {"json"}));
  EXPECT_EQ(engine.stats().num_waiting_reqs, 2);
  const auto num_tokens = static_cast<int64_t>(engine.tokenizer()->encode(two.prompt, true).size());
  EXPECT_EQ(engine.stats().num_waiting_tokens, 2 * num_tokens);
  engine.abort_request(aborted.id);
  EXPECT_EQ(aborted.wait().finish_reason, FinishReason::kAbort);
  EXPECT_TRUE(tells(0, {}, {"json"}));
  EXPECT_TRUE(comes_true([&] { return uses(engine, "sailor") == 0; }));  // nothing is kept of it
  EXPECT_EQ(uses(engine, "json"), 1);
  EXPECT_EQ(engine.stats().num_waiting_reqs, 0);
  Asked sailor(engine, lora_request("sailor", 4));
  EXPECT_TRUE(tells(1, {"sailor"}, {"json"}));
  engine.abort_request(json.id);
  EXPECT_EQ(sailor.wait().finish_reason, FinishReason::kLength);
  EXPECT_TRUE(tells(0, {}, {}));
  EXPECT_EQ(engine.stats().num_waiting_reqs + engine.stats().num_waiting_tokens, 0);
}

TEST_P(LoraEngineTest, WhoWaitsForAnAdapterTakesAPlaceInTheQueueAndGivesItBack) {
  config.max_waiting_requests = 1;
  Engine engine(config);
  add_adapters(engine);
  Asked json(engine, lora_request("json", 400));
  json.wait_for_begin();
  for (int i = 0; i < 3; ++i) {
    Asked waits(engine, lora_request("sailor", 4));
    EXPECT_EQ(error_of<ResourceExhausted>([&] { Asked(engine, lora_request("sailor", 4)); }),
              "the queue is full: 1 requests run, 1 wait, 1 more would exceed max_waiting_requests 1; try "
              "again later");
    engine.abort_request(waits.id);
    waits.wait();
  }
  engine.abort_request(json.id);
}

TEST_P(LoraEngineTest, ARequestKeepsTheAdapterThatIsReplaced) {
  config.max_loras = config.max_cpu_loras = 2;
  Engine engine(config);
  engine.add_lora({"mine", 0, trained_adapter("sailor")});
  const EngineRequest asked = lora_request("mine", 200);
  const std::string sailor = Asked(engine, asked).wait().text;
  Asked under_way(engine, asked);
  under_way.wait_for_begin();
  EXPECT_TRUE(engine.add_lora({"mine", 0, trained_adapter("json"), /*load_inplace=*/true}));
  Asked now(engine, asked);
  EXPECT_EQ(under_way.wait().text, sailor);
  EXPECT_NE(now.wait().text, sailor);
  EXPECT_TRUE(comes_true([&] { return engine.list_loras().at(0).num_requests == 0; }));
  EXPECT_EQ(engine.list_loras().size(), 1U);
}

// No step follows in which they could.
TEST_P(LoraEngineTest, ASearchLetsGoOfItsAdapterWhenItEnds) {
  Engine engine(config);
  add_adapters(engine);
  EngineRequest search = lora_request("sailor", 8);
  search.sampling_params.beam_width = search.sampling_params.n = 3;
  Asked(engine, search).wait();
  ASSERT_TRUE(comes_true([&] { return uses(engine, "sailor") == 0; }));
  EXPECT_EQ(Asked(engine, lora_request("json", 4)).wait().finish_reason, FinishReason::kLength);
}

TEST_P(LoraEngineTest, ARequestIsPassedOverByNoMoreThanSoManyThatNeedNotWait) {
  Engine engine(config);
  add_adapters(engine);
  // Three at a time, so that one of them is always unfinished.
  std::deque<Asked> busy;
  for (int i = 0; i < 3; ++i) busy.emplace_back(engine, lora_request("json", 8 + 3 * i));
  auto waits = std::make_unique<Asked>(engine, lora_request("sailor", 2));
  int num_later = 0;
  while (!waits->is_over() && num_later < 4 * LoraRegistry::kMostPassedOver) {
    busy.emplace_back(engine, lora_request("json", 10));
    busy.front().wait();
    busy.pop_front();
    ++num_later;
  }
  EXPECT_TRUE(waits->is_over());
  EXPECT_GT(num_later, 3);
  while (!busy.empty()) {
    EXPECT_EQ(busy.front().wait().finish_reason, FinishReason::kLength);
    busy.pop_front();
  }
}

TEST_P(LoraEngineTest, AnEngineWithoutAdaptersTellsOfNone) {
  config.enable_lora = false;
  Engine engine(config);
  Asked(engine, lora_request("", 4)).wait();
  EXPECT_FALSE(sink->lora_requests());
}

TEST_P(LoraEngineTest, PrometheusShowsTheAdaptersAsLabelsOfOneSeries) {
  const auto metrics = std::make_shared<PrometheusMetrics>(
      PrometheusOptions{.model_name = "demo", .engine = "0", .quire_names = true, .alias_vllm = true});
  config.metric_sink = metrics;
  const auto shows = [&](const std::string& labels) {
    const std::string text = metrics->render();
    for (const std::string prefix : {"\nquire:", "\nvllm:"}) {
      const std::string series = prefix + "lora_requests_info{";
      const size_t found = text.find(series);
      if (found == std::string::npos || text.find(series, found + 1) != std::string::npos) return false;
      if (!text.substr(found + series.size()).starts_with(labels)) return false;
      const std::string value = text.substr(text.find("} ", found) + 2, 3);
      if (value < "1.7" || value > "9.9") return false;  // seconds since 1970, in powers of ten
    }
    return true;
  };
  {
    Engine engine(config);
    const std::string base = R"(model_name="demo",engine="0",max_lora="1",)";
    EXPECT_TRUE(shows(base + R"(waiting_lora_adapters="",running_lora_adapters=""})"));
    add_adapters(engine);
    Asked json(engine, lora_request("json", 400)), sailor(engine, lora_request("sailor", 4));
    EXPECT_TRUE(comes_true(
        [&] { return shows(base + R"(waiting_lora_adapters="sailor",running_lora_adapters="json"})"); }));
    engine.abort_request(json.id);
    sailor.wait();
  }
  EXPECT_EQ(metrics->render().find("lora_requests_info"), std::string::npos);
  PrometheusFamilyOptions mine;
  mine.name = "vllm:lora_requests_info";
  mine.help = "mine";
  EXPECT_THROW(metrics->add_family(mine), InvalidArgument);
}

}  // namespace
}  // namespace quire
