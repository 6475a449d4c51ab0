#include "quire/prometheus.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <sstream>
#include <thread>

#include "util/count_allocations.h"
#include "util/error_of.h"

namespace quire {
namespace {

// The lines of a text that begin so.
std::vector<std::string> lines(const std::string& text, const std::string& begin) {
  std::vector<std::string> found;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(begin)) found.push_back(line);
  return found;
}
std::string line(const std::string& text, const std::string& begin) {
  const auto found = lines(text, begin);
  return found.size() == 1 ? found[0] : std::to_string(found.size()) + " lines begin with " + begin;
}

double value(const std::string& line) { return std::stod(line.substr(line.rfind(' '))); }

PrometheusFamilyOptions family(const std::string& name, MetricKind kind, std::vector<std::string> labels,
                               std::vector<double> buckets = {}) {
  PrometheusFamilyOptions options;
  options.name = name;
  options.help = "of a test";
  options.kind = kind;
  options.label_names = std::move(labels);
  options.buckets = std::move(buckets);
  return options;
}

TEST(PrometheusTest, EachFamilyHasHelpAndTypeAndBeginsAtZero) {
  const std::string text = PrometheusMetrics({.model_name = "demo"}).render();
  EXPECT_EQ(lines(text, "# HELP quire:").size(), kNumMetrics);
  EXPECT_EQ(lines(text, "# TYPE quire:").size(), kNumMetrics);
  EXPECT_EQ(line(text, "quire:num_requests_running"),
            R"(quire:num_requests_running{model_name="demo",engine="0"} 0)");
  EXPECT_EQ(line(text, "# TYPE quire:num_preemptions_total"), "# TYPE quire:num_preemptions_total counter");
  EXPECT_EQ(lines(text, "quire:request_success_total{").size(), 4U);
  EXPECT_TRUE(text.ends_with("\n"));
}

TEST(PrometheusTest, WhatIsToldIsShown) {
  PrometheusMetrics metrics({.model_name = "demo", .engine = "3"});
  metrics.add(Metric::kRequestSuccess, 1, 2);
  metrics.add(Metric::kRequestSuccess, 1, 1);
  metrics.set(Metric::kKVCacheUsage, 0.25);
  metrics.observe(Metric::kRequestParamsN, 2, 3);  // a bound is within its bucket
  metrics.observe(Metric::kRequestParamsN, 2.5, 1);
  metrics.observe(Metric::kRequestParamsN, 99, 1);
  const std::string text = metrics.render();
  EXPECT_EQ(
      line(text, R"(quire:request_success_total{model_name="demo",engine="3",finished_reason="length"})"),
      R"(quire:request_success_total{model_name="demo",engine="3",finished_reason="length"} 3)");
  EXPECT_EQ(line(text, "quire:kv_cache_usage_perc"),
            R"(quire:kv_cache_usage_perc{model_name="demo",engine="3"} 0.25)");
  const std::string labels = R"({model_name="demo",engine="3")";
  EXPECT_EQ(lines(text, "quire:request_params_n"),
            (std::vector<std::string>{"quire:request_params_n_bucket" + labels + ",le=\"1.0\"} 0",
                                      "quire:request_params_n_bucket" + labels + ",le=\"2.0\"} 3",
                                      "quire:request_params_n_bucket" + labels + ",le=\"5.0\"} 4",
                                      "quire:request_params_n_bucket" + labels + ",le=\"10.0\"} 4",
                                      "quire:request_params_n_bucket" + labels + ",le=\"20.0\"} 4",
                                      "quire:request_params_n_bucket" + labels + ",le=\"+Inf\"} 5",
                                      "quire:request_params_n_sum" + labels + "} 107.5",
                                      "quire:request_params_n_count" + labels + "} 5"}));
  EXPECT_EQ(lines(text, "quire:request_prompt_tokens_bucket" + labels + ",le=\"1e+06\"}").size(), 1U);
}

TEST(PrometheusTest, FamiliesAreShownUnderVLLMsNamesToo) {
  PrometheusMetrics both({.model_name = "m", .alias_vllm = true});
  both.add(Metric::kPromptTokens, 0, 7);
  EXPECT_EQ(line(both.render(), "vllm:prompt_tokens_total"),
            R"(vllm:prompt_tokens_total{model_name="m",engine="0"} 7)");
  EXPECT_EQ(lines(both.render(), "# TYPE ").size(), 2 * kNumMetrics);
  const std::string text =
      PrometheusMetrics({.model_name = "m", .quire_names = false, .alias_vllm = true}).render();
  EXPECT_EQ(text.find("quire:"), std::string::npos);
  EXPECT_EQ(lines(text, "# TYPE vllm:").size(), kNumMetrics);
  EXPECT_NE(error_of<InvalidArgument>([] {
              PrometheusMetrics({.model_name = "m", .quire_names = false});
            }).find("both false"),
            std::string::npos);
}

TEST(PrometheusTest, LabelsAreEscaped) {
  const std::string text = PrometheusMetrics({.model_name = "a\"b\\c\nd\xff"}).render();
  EXPECT_EQ(line(text, "quire:num_requests_waiting"),
            R"(quire:num_requests_waiting{model_name="a\"b\\c\nd\\xff",engine="0"} 0)");
}

TEST(PrometheusTest, ASinkHasOneEngineAtATime) {
  PrometheusMetrics metrics({.model_name = "demo"});
  metrics.attach();
  metrics.set_cache_config({.block_size = 16, .num_gpu_blocks = 100, .cache_dtype = "bfloat16"});
  metrics.set(Metric::kNumRequestsRunning, 2);
  metrics.add(Metric::kPromptTokens, 0, 5);
  EXPECT_NE(error_of<InvalidArgument>([&] { metrics.attach(); }).find("model_name 'demo'"),
            std::string::npos);
  EXPECT_NE(
      line(metrics.render(), "quire:cache_config_info{").find(R"(,block_size="16",cache_dtype="bfloat16")"),
      std::string::npos);
  metrics.detach();
  const std::string text = metrics.render();
  EXPECT_TRUE(lines(text, "quire:cache_config_info").empty());
  EXPECT_TRUE(line(text, "quire:num_requests_running").ends_with(" 0"));
  EXPECT_TRUE(line(text, "quire:prompt_tokens_total").ends_with(" 5"));
  metrics.attach();
}

TEST(PrometheusTest, TellingAllocatesNothing) {
  PrometheusMetrics metrics({.model_name = "demo"});
  const uint64_t before = num_allocations();
  for (int i = 0; i < 100; ++i) {
    metrics.add(Metric::kGenerationTokens, 0, 1);
    metrics.set(Metric::kNumRequestsRunning, i);
    metrics.observe(Metric::kInterTokenLatency, i * 0.01, 64);
  }
  EXPECT_EQ(num_allocations() - before, 0U);
}

// One thread tells and three render: what they see of a counter never falls, and a histogram's count is that
// of its last bucket.
TEST(PrometheusTest, ItRendersWhileTheEngineTells) {
  PrometheusMetrics metrics({.model_name = "demo"});
  const auto requests = metrics.add_family(family("http_requests_total", MetricKind::kCounter, {"route"}));
  std::atomic<bool> done = false;
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&, route = std::vector{"/" + std::to_string(i)}] {
      double last = 0.0;
      while (!done) {
        requests->add(route);
        const std::string text = metrics.render();
        const double now = value(line(text, "quire:generation_tokens_total"));
        EXPECT_GE(now, last);
        last = now;
        EXPECT_EQ(value(lines(text, "quire:inter_token_latency_seconds_bucket").back()),
                  value(line(text, "quire:inter_token_latency_seconds_count")));
      }
    });
  }
  for (int i = 0; i < 20000; ++i) {
    metrics.add(Metric::kGenerationTokens, 0, 1);
    metrics.observe(Metric::kInterTokenLatency, i * 1e-4, 1);
  }
  done = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(line(metrics.render(), "quire:generation_tokens_total").ends_with(" 20000"));
}

TEST(PrometheusFamilyTest, AServersFamiliesAreInTheSameText) {
  PrometheusMetrics metrics({.model_name = "demo"});
  const auto requests =
      metrics.add_family(family("http_requests_total", MetricKind::kCounter, {"route", "status"}));
  const auto streams = metrics.add_family(family("http_streams", MetricKind::kGauge, {}));
  const auto seconds =
      metrics.add_family(family("http_request_seconds", MetricKind::kHistogram, {"route"}, {0.1, 1}));
  requests->add({"/v1/chat", "200"});
  requests->add({"/v1/chat", "200"}, 2);
  requests->add({"/v1/\"chat\"", "400"});
  streams->add({}, 3);
  streams->add({}, -1);
  seconds->observe({"/v1/chat"}, 0.1);
  seconds->observe({"/v1/chat"}, 7);
  const std::string text = metrics.render();
  EXPECT_EQ(lines(text, "http_requests_total{"),
            (std::vector<std::string>{R"(http_requests_total{route="/v1/\"chat\"",status="400"} 1)",
                                      R"(http_requests_total{route="/v1/chat",status="200"} 3)"}));
  EXPECT_EQ(line(text, "http_streams"), "http_streams 2");
  EXPECT_EQ(lines(text, "http_request_seconds"),
            (std::vector<std::string>{R"(http_request_seconds_bucket{route="/v1/chat",le="0.1"} 1)",
                                      R"(http_request_seconds_bucket{route="/v1/chat",le="1.0"} 1)",
                                      R"(http_request_seconds_bucket{route="/v1/chat",le="+Inf"} 2)",
                                      R"(http_request_seconds_sum{route="/v1/chat"} 7.1)",
                                      R"(http_request_seconds_count{route="/v1/chat"} 2)"}));
}

TEST(PrometheusFamilyTest, TooManySeriesAreOne) {
  PrometheusMetrics metrics({.model_name = "demo"});
  PrometheusFamilyOptions options = family("seen_total", MetricKind::kCounter, {"path"});
  options.max_series = 2;
  const auto seen = metrics.add_family(options);
  for (const char* path : {"/a", "/b", "/c", "/d", "/a"}) seen->add({path});
  EXPECT_EQ(lines(metrics.render(), "seen_total{"),
            (std::vector<std::string>{R"(seen_total{path="/a"} 2)", R"(seen_total{path="/b"} 1)",
                                      R"(seen_total{path="other"} 2)"}));
}

TEST(PrometheusFamilyTest, WhatCannotBeIsRefusedByName) {
  PrometheusMetrics metrics({.model_name = "demo"});
  const auto refusal = [&](PrometheusFamilyOptions options) {
    return error_of<InvalidArgument>([&] { metrics.add_family(std::move(options)); });
  };
  using enum MetricKind;
  EXPECT_NE(refusal(family("a-b", kGauge, {})).find("'a-b'"), std::string::npos);
  EXPECT_NE(refusal(family("a", kCounter, {})).find("_total"), std::string::npos);
  EXPECT_NE(refusal(family("a", kGauge, {"__x"})).find("'__x'"), std::string::npos);
  EXPECT_NE(refusal(family("a", kGauge, {"x", "x"})).find("twice"), std::string::npos);
  EXPECT_NE(refusal(family("a", kHistogram, {"le"}, {1})).find("'le'"), std::string::npos);
  EXPECT_NE(refusal(family("a", kHistogram, {})).find("buckets"), std::string::npos);
  EXPECT_NE(refusal(family("a", kHistogram, {}, {1, 1})).find("ascend"), std::string::npos);
  EXPECT_NE(refusal(family("quire:num_preemptions_total", kCounter, {})).find("engine's own"),
            std::string::npos);
  const auto a = metrics.add_family(family("a", kGauge, {"x"}));
  EXPECT_NE(refusal(family("a", kGauge, {})).find("already"), std::string::npos);
  const auto error = [](const auto& call) { return error_of<InvalidArgument>(call); };
  EXPECT_NE(error([&] { a->observe({"1"}, 1); }).find("no observe"), std::string::npos);
  EXPECT_NE(error([&] { a->set({}, 1); }).find("1 labels (x), got 0"), std::string::npos);
  EXPECT_NE(error([&] { a->set({"1"}, std::nan("")); }).find("NaN"), std::string::npos);
  const auto b = metrics.add_family(family("b_total", kCounter, {}));
  EXPECT_NE(error([&] { b->add({}, -1); }).find("at least 0"), std::string::npos);
}

}  // namespace
}  // namespace quire
