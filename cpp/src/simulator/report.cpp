#include "simulator/report.h"

#include <algorithm>
#include <utility>

#include "formats/json.h"

namespace quire {
namespace {

constexpr double kSecond = 1e9;

double ratio(auto part, auto whole) {
  return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
}

OrderedJson distribution(const Histogram& histogram) {
  return {{"count", histogram.count()},
          {"mean", histogram.mean() / kSecond},
          {"p50", histogram.quantile(0.5) / kSecond},
          {"p90", histogram.quantile(0.9) / kSecond},
          {"p99", histogram.quantile(0.99) / kSecond},
          {"max", static_cast<double>(histogram.max()) / kSecond}};
}

OrderedJson cdf(const Histogram& histogram) {
  OrderedJson points = OrderedJson::array();
  constexpr int kNumPoints = 200;
  if (histogram.count() == 0) return points;
  for (int i = 0; i <= kNumPoints; ++i) {
    const double part = static_cast<double>(i) / kNumPoints;
    points.push_back({histogram.quantile(part) / kSecond, part});
  }
  return points;
}

OrderedJson timeline(const Timeline& timeline, int64_t end_ns, double num_blocks) {
  OrderedJson running = OrderedJson::array(), waiting = OrderedJson::array(), used = OrderedJson::array();
  const int64_t num_bins = std::min((end_ns + timeline.bin_ns() - 1) / timeline.bin_ns(), Timeline::kNumBins);
  for (int64_t bin = 0; bin < num_bins; ++bin) {
    running.push_back(timeline.mean(bin, Timeline::kRunning));
    waiting.push_back(timeline.mean(bin, Timeline::kWaiting));
    used.push_back(timeline.mean(bin, Timeline::kUsedBlocks) / num_blocks);
  }
  return {{"bin_seconds", static_cast<double>(timeline.bin_ns()) / kSecond},
          {"running", std::move(running)},
          {"waiting", std::move(waiting)},
          {"kv_utilization", std::move(used)}};
}

OrderedJson kv_cache(const SimulatorOptions& options, const Metrics& metrics) {
  const int64_t num_blocks = options.engine.num_blocks - 1;
  const auto engine_ns = static_cast<double>(metrics.end_ns) * options.num_engines;
  const auto empty_slots = metrics.contiguous_slots - metrics.contiguous_tokens;
  return {{"num_blocks", num_blocks},
          {"mean_utilization", ratio(metrics.used_blocks, engine_ns * static_cast<double>(num_blocks))},
          {"peak_utilization", ratio(metrics.peak_used_blocks, num_blocks)},
          {"waste", ratio(metrics.wasted_slots, metrics.used_slots)},
          {"mean_running_reqs", ratio(metrics.running_reqs, engine_ns)},
          {"peak_running_reqs", metrics.peak_running_reqs},
          {"contiguous",
           {{"waste", ratio(empty_slots, metrics.contiguous_slots)},
            {"max_running_reqs",
             num_blocks * options.engine.block_size / options.engine.scheduler.max_model_len}}}};
}

OrderedJson cost_model(const Calibration& calibration) {
  const StepCostModel& model = calibration.cost_model;
  return {{"seconds_per_step", model.seconds_per_step},
          {"seconds_per_token", model.seconds_per_token},
          {"seconds_per_request", model.seconds_per_request},
          {"seconds_per_context_token", model.seconds_per_context_token},
          {"host_seconds_per_step", model.host_seconds_per_step},
          {"source", calibration.source},
          {"mean_relative_error", calibration.mean_relative_error}};
}

}  // namespace

std::string make_report(const SimulatorOptions& options, const Metrics& metrics) {
  const double seconds = static_cast<double>(metrics.end_ns) / kSecond;
  const double engine_ns = static_cast<double>(metrics.end_ns) * options.num_engines;
  OrderedJson report;
  report["num_requests"] = options.trace.requests.size();
  report["num_finished"] = metrics.num_finished;
  report["num_refused"] = metrics.num_refused;
  report["num_expired"] = metrics.num_expired;
  report["simulated_seconds"] = seconds;
  report["requests_per_second"] = ratio(metrics.num_finished, seconds);
  report["prompt_tokens_per_second"] = ratio(metrics.num_prompt_tokens, seconds);
  report["output_tokens_per_second"] = ratio(metrics.num_output_tokens, seconds);
  report["num_prompt_tokens"] = metrics.num_prompt_tokens;
  report["num_output_tokens"] = metrics.num_output_tokens;
  report["ttft"] = distribution(metrics.ttft);
  report["itl"] = distribution(metrics.itl);
  report["e2e"] = distribution(metrics.e2e);
  report["queue_time"] = distribution(metrics.queue_time);
  report["num_steps"] = metrics.num_steps;
  report["num_scheduled_tokens"] = metrics.num_scheduled_tokens;
  report["busy_fraction"] = ratio(metrics.busy_ns, engine_ns);
  report["num_preemptions"] = metrics.num_preemptions;
  report["prefix_cache_hit_rate"] = ratio(metrics.prefix_cache_hits, metrics.prefix_cache_queries);
  report["prefix_cache_hits"] = metrics.prefix_cache_hits;
  report["kv_cache"] = kv_cache(options, metrics);
  report["engines"] = {{"num_engines", options.num_engines},
                       {"most_requests", metrics.most_requests},
                       {"fewest_requests", metrics.fewest_requests},
                       {"most_tokens", metrics.most_tokens},
                       {"fewest_tokens", metrics.fewest_tokens}};
  report["cost_model"] = cost_model(options.calibration);
  report["timeline"] = timeline(metrics.timeline, metrics.end_ns,
                                static_cast<double>(options.engine.num_blocks - 1) * options.num_engines);
  report["cdf"] = {{"ttft", cdf(metrics.ttft)}, {"itl", cdf(metrics.itl)}};
  return report.dump();
}

}  // namespace quire
