#include "quire/metrics.h"

#include <chrono>

namespace quire {
namespace {

std::vector<double> token_latency_buckets() {
  return {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2,  0.3,  0.4, 0.5,
          0.75, 1.0,   2.5,  5.0,   7.5, 10.0, 20.0, 40.0, 80.0};
}

std::vector<double> latency_buckets() {
  return {0.3,  0.5,  0.8,  1.0,  1.5,   2.0,   2.5,   5.0,   10.0,   15.0,  20.0,
          30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0};
}

// 1, 2, 5, 10, ... Bounds must be there before the model is, so they go to a length that is long for all.
std::vector<double> token_buckets() {
  std::vector<double> buckets;
  for (double power = 1; power <= 1e6; power *= 10) {
    for (const double factor : {1.0, 2.0, 5.0}) {
      if (power * factor <= 1e6) buckets.push_back(power * factor);
    }
  }
  return buckets;
}

std::vector<MetricFamily> make_families() {
  using enum MetricKind;
  return {
      {Metric::kTimeToFirstToken,
       "quire:time_to_first_token_seconds",
       "Seconds from a request's arrival to its first token",
       kHistogram,
       {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,  0.25,  0.5,   0.75,
        1.0,   2.5,   5.0,  7.5,  10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0},
       "",
       {}},
      {Metric::kInterTokenLatency,
       "quire:inter_token_latency_seconds",
       "Seconds from one output of a request to its next",
       kHistogram,
       token_latency_buckets(),
       "",
       {}},
      {Metric::kTimePerOutputToken,
       "quire:time_per_output_token_seconds",
       "Seconds from one output of a request to its next",
       kHistogram,
       token_latency_buckets(),
       "",
       {}},
      {Metric::kE2ERequestLatency,
       "quire:e2e_request_latency_seconds",
       "Seconds from a request's arrival to its end",
       kHistogram,
       latency_buckets(),
       "",
       {}},
      {Metric::kRequestQueueTime,
       "quire:request_queue_time_seconds",
       "Seconds that a request waited before its first step",
       kHistogram,
       latency_buckets(),
       "",
       {}},
      {Metric::kRequestPrefillTime,
       "quire:request_prefill_time_seconds",
       "Seconds from a request's first step to its first token",
       kHistogram,
       latency_buckets(),
       "",
       {}},
      {Metric::kRequestDecodeTime,
       "quire:request_decode_time_seconds",
       "Seconds from a request's first token to its last",
       kHistogram,
       latency_buckets(),
       "",
       {}},
      {Metric::kRequestInferenceTime,
       "quire:request_inference_time_seconds",
       "Seconds from a request's first step to its last token",
       kHistogram,
       latency_buckets(),
       "",
       {}},
      {Metric::kRequestTimePerOutputToken,
       "quire:request_time_per_output_token_seconds",
       "Seconds from one token of a finished request to its next, on average",
       kHistogram,
       token_latency_buckets(),
       "",
       {}},
      {Metric::kRequestPromptTokens,
       "quire:request_prompt_tokens",
       "Prompt tokens of a finished request",
       kHistogram,
       token_buckets(),
       "",
       {}},
      {Metric::kRequestGenerationTokens,
       "quire:request_generation_tokens",
       "Tokens generated for a finished request",
       kHistogram,
       token_buckets(),
       "",
       {}},
      {Metric::kRequestPrefillKVComputedTokens,
       "quire:request_prefill_kv_computed_tokens",
       "Prompt tokens of a request that were computed, not found in the cache",
       kHistogram,
       token_buckets(),
       "",
       {}},
      {Metric::kRequestParamsMaxTokens,
       "quire:request_params_max_tokens",
       "The parameter max_tokens of a finished request",
       kHistogram,
       token_buckets(),
       "",
       {}},
      {Metric::kRequestParamsN,
       "quire:request_params_n",
       "The parameter n of a finished request",
       kHistogram,
       {1, 2, 5, 10, 20},
       "",
       {}},
      {Metric::kRequestMaxNumGenerationTokens,
       "quire:request_max_num_generation_tokens",
       "Tokens of the longest completion of a finished request",
       kHistogram,
       token_buckets(),
       "",
       {}},
      {Metric::kIterationTokens,
       "quire:iteration_tokens_total",
       "Tokens of a step, of prompts and generated",
       kHistogram,
       {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384},
       "",
       {}},
      {Metric::kNumRequestsRunning, "quire:num_requests_running", "Requests that run", kGauge, {}, "", {}},
      {Metric::kNumRequestsWaiting,
       "quire:num_requests_waiting",
       "Requests that wait to run",
       kGauge,
       {},
       "",
       {}},
      {Metric::kKVCacheUsage,
       "quire:kv_cache_usage_perc",
       "Part of the KV cache's blocks in use: 1 is all of them",
       kGauge,
       {},
       "",
       {}},
      {Metric::kNumKVCacheBlocks, "quire:num_kv_cache_blocks", "Blocks of the KV cache", kGauge, {}, "", {}},
      {Metric::kNumKVCacheBlocksUsed,
       "quire:num_kv_cache_blocks_used",
       "Blocks of the KV cache in use",
       kGauge,
       {},
       "",
       {}},
      {Metric::kExpertLoadImbalance,
       "quire:expert_load_imbalance",
       "Tokens of a layer's busiest expert over those of the mean one, in about the last second; 1: none is "
       "busier",
       kGauge,
       {},
       "",
       {}},
      {Metric::kPrefixCacheQueries,
       "quire:prefix_cache_queries_total",
       "Prompt tokens looked up in the prefix cache",
       kCounter,
       {},
       "",
       {}},
      {Metric::kPrefixCacheHits,
       "quire:prefix_cache_hits_total",
       "Prompt tokens found in the prefix cache",
       kCounter,
       {},
       "",
       {}},
      {Metric::kExternalPrefixCacheHits,
       "quire:external_prefix_cache_hits_total",
       "Prompt tokens that a KV connector had besides the prefix cache",
       kCounter,
       {},
       "",
       {}},
      {Metric::kNumPreemptions,
       "quire:num_preemptions_total",
       "Times that a running request had to give its blocks back",
       kCounter,
       {},
       "",
       {}},
      {Metric::kPromptTokens, "quire:prompt_tokens_total", "Prompt tokens processed", kCounter, {}, "", {}},
      {Metric::kPromptTokensCached,
       "quire:prompt_tokens_cached_total",
       "Prompt tokens whose keys and values were already there",
       kCounter,
       {},
       "",
       {}},
      {Metric::kGenerationTokens, "quire:generation_tokens_total", "Tokens generated", kCounter, {}, "", {}},
      {Metric::kSpecDecodeNumDraftTokens,
       "quire:spec_decode_num_draft_tokens_total",
       "Draft tokens verified",
       kCounter,
       {},
       "",
       {}},
      {Metric::kSpecDecodeNumAcceptedTokens,
       "quire:spec_decode_num_accepted_tokens_total",
       "Draft tokens accepted",
       kCounter,
       {},
       "",
       {}},
      {Metric::kExpertTokens,
       "quire:expert_tokens_total",
       "Tokens that experts were given, in all layers that have experts",
       kCounter,
       {},
       "",
       {}},
      {Metric::kRequestSuccess,
       "quire:request_success_total",
       "Requests that ended, by reason",
       kCounter,
       {},
       "finished_reason",
       {"stop", "length", "abort", "error"}},
      {Metric::kCudagraphSteps,
       "quire:cudagraph_steps_total",
       "Steps by how they were launched: as one CUDA graph, as pieces, or kernel by kernel",
       kCounter,
       {},
       "mode",
       {"full", "piecewise", "none"}},
  };
}

}  // namespace

std::vector<std::pair<std::string, std::string>> LoraRequestsInfo::labels() const {
  const auto joined = [](const std::vector<std::string>& names) {
    std::string text;
    for (const std::string& name : names) text.append(text.empty() ? "" : ",").append(name);
    return text;
  };
  return {{"max_lora", std::to_string(max_lora)},
          {"waiting_lora_adapters", joined(waiting_lora_adapters)},
          {"running_lora_adapters", joined(running_lora_adapters)}};
}

double LoraRequestsInfo::time_of_day() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

MetricSink::~MetricSink() = default;
void MetricSink::attach() {}
void MetricSink::detach() noexcept {}
void MetricSink::set_cache_config(const CacheConfigInfo& /*info*/) {}
void MetricSink::set_lora_requests(const LoraRequestsInfo& /*info*/) {}

const std::vector<MetricFamily>& metric_families() {
  // Never destroyed: an engine that is still running when the process exits may look at it.
  static const auto* const families = new std::vector<MetricFamily>(make_families());
  return *families;
}

}  // namespace quire
