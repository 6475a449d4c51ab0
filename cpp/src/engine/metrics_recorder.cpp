#include "engine/metrics_recorder.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "util/log.h"

namespace quire {
namespace {

// label_values of request_success_total, by FinishReason.
size_t finish_label(size_t reason) { return reason - static_cast<size_t>(FinishReason::kStop); }

double since(uint64_t before, uint64_t now) { return static_cast<double>(now - before); }

}  // namespace

void MetricsRecorder::record_output(RequestMetrics& metrics, const EngineCoreOutput& output,
                                    int32_t num_tokens, int32_t num_prompt_tokens, double now) {
  if (metrics.first_scheduled_time == 0.0) metrics.first_scheduled_time = output.first_scheduled_time;
  if (num_tokens == 0) return;
  const bool is_first = metrics.num_generation_tokens == 0;
  if (sink_) {
    value(Metric::kGenerationTokens) += num_tokens;
    if (is_first) {
      const int32_t num_cached = std::max(output.num_cached_tokens, 0);
      value(Metric::kPromptTokens) += num_prompt_tokens;
      value(Metric::kPromptTokensCached) += num_cached;
      observe(Metric::kRequestPrefillKVComputedTokens, num_prompt_tokens - num_cached);
      observe(Metric::kTimeToFirstToken, now - metrics.arrival_time);
    } else {
      observe(Metric::kInterTokenLatency, now - metrics.last_token_time);
    }
  }
  if (is_first) metrics.first_token_time = now;
  metrics.last_token_time = now;
  metrics.num_generation_tokens += num_tokens;
}

void MetricsRecorder::record_finish(const RequestMetrics& metrics, FinishReason reason,
                                    int32_t num_prompt_tokens, const SamplingParams& params, double now) {
  if (!sink_) return;
  ++recorded_.num_finished[static_cast<size_t>(reason)];
  observe(Metric::kE2ERequestLatency, now - metrics.arrival_time);
  observe(Metric::kRequestPromptTokens, num_prompt_tokens);
  observe(Metric::kRequestGenerationTokens, metrics.num_generation_tokens);
  observe(Metric::kRequestParamsMaxTokens, params.max_tokens);
  if (metrics.first_scheduled_time == 0.0) return;
  observe(Metric::kRequestQueueTime, metrics.first_scheduled_time - metrics.arrival_time);
  if (metrics.first_token_time == 0.0) return;
  observe(Metric::kRequestPrefillTime, metrics.first_token_time - metrics.first_scheduled_time);
  observe(Metric::kRequestDecodeTime, metrics.last_token_time - metrics.first_token_time);
  observe(Metric::kRequestInferenceTime, metrics.last_token_time - metrics.first_scheduled_time);
  if (metrics.num_generation_tokens < 2) return;
  observe(Metric::kRequestTimePerOutputToken,
          (metrics.last_token_time - metrics.first_token_time) / (metrics.num_generation_tokens - 1));
}

void MetricsRecorder::record_request_end(const SamplingParams& params, int32_t max_num_generation_tokens) {
  if (!sink_) return;
  observe(Metric::kRequestParamsN, params.n);
  observe(Metric::kRequestMaxNumGenerationTokens, max_num_generation_tokens);
}

void MetricsRecorder::record_stats(const SchedulerStats& stats) {
  if (!sink_ || has_ended_) return;
  value(Metric::kNumRequestsRunning) = stats.num_running_reqs;
  value(Metric::kNumRequestsWaiting) = stats.num_waiting_reqs + num_waiting_for_lora_;
  value(Metric::kKVCacheUsage) =
      static_cast<double>(stats.num_used_blocks) / std::max(stats.num_total_blocks, 1);
  value(Metric::kNumKVCacheBlocks) = stats.num_total_blocks;
  value(Metric::kNumKVCacheBlocksUsed) = stats.num_used_blocks;
  value(Metric::kExpertLoadImbalance) = stats.expert_load_imbalance;
  value(Metric::kExpertTokens) += since(stats_.num_expert_tokens, stats.num_expert_tokens);
  value(Metric::kPrefixCacheQueries) += since(stats_.prefix_cache_queries, stats.prefix_cache_queries);
  value(Metric::kPrefixCacheHits) += since(stats_.prefix_cache_hits, stats.prefix_cache_hits);
  value(Metric::kExternalPrefixCacheHits) +=
      since(stats_.external_prefix_cache_hits, stats.external_prefix_cache_hits);
  value(Metric::kSpecDecodeNumDraftTokens) += since(stats_.num_spec_tokens, stats.num_spec_tokens);
  value(Metric::kSpecDecodeNumAcceptedTokens) +=
      since(stats_.num_accepted_spec_tokens, stats.num_accepted_spec_tokens);
  value(Metric::kNumPreemptions) += since(stats_.num_preemptions, stats.num_preemptions);
  if (stats.num_scheduled_tokens > stats_.num_scheduled_tokens)
    observe(Metric::kIterationTokens, since(stats_.num_scheduled_tokens, stats.num_scheduled_tokens));
  recorded_.num_graph_steps[0] += since(stats_.num_full_graph_steps, stats.num_full_graph_steps);
  recorded_.num_graph_steps[1] += since(stats_.num_piecewise_graph_steps, stats.num_piecewise_graph_steps);
  recorded_.num_graph_steps[2] += since(stats_.num_eager_steps, stats.num_eager_steps);
  stats_ = stats;
}

void MetricsRecorder::record_waiting_for_lora(int32_t num_reqs) {
  num_waiting_for_lora_ = num_reqs;
  if (sink_ && !has_ended_) value(Metric::kNumRequestsWaiting) = stats_.num_waiting_reqs + num_reqs;
}

void MetricsRecorder::record_lora_requests(LoraRequestsInfo&& info) {
  if (sink_) recorded_.lora_requests = std::move(info);
}

void MetricsRecorder::record_end() {
  has_ended_ = true;
  for (const Metric gauge :
       {Metric::kNumRequestsRunning, Metric::kNumRequestsWaiting, Metric::kKVCacheUsage,
        Metric::kNumKVCacheBlocks, Metric::kNumKVCacheBlocksUsed, Metric::kExpertLoadImbalance}) {
    value(gauge) = 0.0;
  }
}

// Requests that decode in the same steps wait equally long: one observation serves them all.
void MetricsRecorder::observe(Metric metric, double value) {
  auto& observations = recorded_.observations;
  if (!observations.empty() && observations.back().metric == metric && observations.back().value == value) {
    ++observations.back().count;
  } else {
    observations.push_back({metric, value, 1});
  }
}

void MetricsRecorder::begin_report() {
  if (!sink_) return;
  // One by one: of a swap of all, GCC 12 believes that adapters that are not there are read.
  reported_.values = recorded_.values;
  reported_.num_finished = recorded_.num_finished;
  reported_.num_graph_steps = recorded_.num_graph_steps;
  reported_.observations.swap(recorded_.observations);
  reported_.lora_requests.swap(recorded_.lora_requests);
  recorded_.observations.clear();
  recorded_.num_finished.fill(0.0);
  recorded_.num_graph_steps.fill(0.0);
  recorded_.lora_requests.reset();
  for (const MetricFamily& family : metric_families()) {
    const auto i = static_cast<size_t>(family.metric);
    recorded_.values[i] = family.kind == MetricKind::kGauge ? reported_.values[i] : 0.0;
  }
}

void MetricsRecorder::report() {
  if (!sink_) return;
  for (const MetricFamily& family : metric_families()) {
    const auto i = static_cast<size_t>(family.metric);
    const double value = reported_.values[i];
    if (family.kind == MetricKind::kGauge) {
      if (value == gauges_[i]) continue;
      gauges_[i] = value;
      tell([&] { sink_->set(family.metric, value); });
    } else if (value > 0.0) {
      tell([&] { sink_->add(family.metric, 0, value); });
    }
  }
  if (reported_.lora_requests) tell([&] { sink_->set_lora_requests(*reported_.lora_requests); });
  for (size_t i = 0; i < reported_.num_finished.size(); ++i) {
    const double num_finished = reported_.num_finished[i];
    if (num_finished > 0.0) tell([&] { sink_->add(Metric::kRequestSuccess, finish_label(i), num_finished); });
  }
  for (size_t label = 0; label < reported_.num_graph_steps.size(); ++label) {
    const double num_steps = reported_.num_graph_steps[label];
    if (num_steps > 0.0) tell([&] { sink_->add(Metric::kCudagraphSteps, label, num_steps); });
  }
  for (const Observation& o : reported_.observations) {
    tell([&] { sink_->observe(o.metric, o.value, o.count); });
    if (o.metric == Metric::kInterTokenLatency)
      tell([&] { sink_->observe(Metric::kTimePerOutputToken, o.value, o.count); });
  }
}

template <class Call>
void MetricsRecorder::tell(const Call& call) {
  try {
    call();
  } catch (const std::exception& error) {
    if (!std::exchange(has_thrown_, true)) log(LogLevel::kError, "the metric sink threw: ", error.what());
  } catch (...) {
    if (!std::exchange(has_thrown_, true)) log(LogLevel::kError, "the metric sink threw no std::exception");
  }
}

}  // namespace quire
