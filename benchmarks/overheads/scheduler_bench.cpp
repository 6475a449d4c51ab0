// What deciding costs: scheduling a step and taking its results, by the number of running requests; a prefix
// lookup; adding a request; a long queue; the flight recorder. Each row's `p50_us` is the median over many
// steps.
//
//   build/default/benchmarks/overheads/scheduler_bench
//
// benchmarks/overheads/vllm_scheduler_bench.py measures the same of vLLM's scheduler.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "engine/scheduler_recorder.h"
#include "kv_cache/kv_cache_planner.h"
#include "scheduler/scheduler.h"

namespace quire {
namespace {

constexpr int32_t kBlockSize = 16;
constexpr int32_t kPromptTokens = 128;
constexpr int32_t kMaxModelLen = 16384;

KVCacheConfig kv_cache(int32_t num_blocks) {
  KVCacheSpec spec;
  spec.block_size = kBlockSize;
  spec.page_bytes = 4096;
  KVCacheDemand demand;
  demand.num_blocks = num_blocks;
  demand.max_model_len = kMaxModelLen;
  return plan_kv_cache({spec}, demand);
}

SchedulerConfig scheduler_config(int32_t max_num_seqs) {
  SchedulerConfig config;
  config.max_num_seqs = max_num_seqs;
  config.max_num_batched_tokens = 8192;
  config.max_model_len = kMaxModelLen;
  return config;
}

EngineCoreRequest make_request(RequestId id, int32_t num_prompt_tokens) {
  EngineCoreRequest request;
  request.request_id = id;
  std::vector<int32_t>& prompt = request.prompt_token_ids.edit();
  prompt.resize(static_cast<size_t>(num_prompt_tokens));
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>(id * 7919 + i) % 128000;
  request.sampling_params.edit().max_tokens = kMaxModelLen - num_prompt_tokens;
  static const Shared<std::vector<int32_t>> eos_token_ids = {128001};  // one for all, as in an engine
  request.eos_token_ids = eos_token_ids;
  return request;
}

double microseconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double>& samples) {
  const auto middle = samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 2);
  std::nth_element(samples.begin(), middle, samples.end());
  return *middle;
}

// A scheduler whose requests all decode, and the model that answers it.
struct Decoding {
  Decoding(const SchedulerConfig& config, int32_t num_blocks)
      : kv_cache_config(kv_cache(num_blocks)), scheduler(config, kv_cache_config) {}
  Decoding(int32_t num_running, int32_t num_waiting, int32_t max_num_seqs)
      : Decoding(scheduler_config(max_num_seqs), 1 << 17) {
    for (int32_t i = 0; i < num_running + num_waiting; ++i)
      scheduler.add_request(make_request(static_cast<RequestId>(i + 1), kPromptTokens));
    while (scheduler.stats().num_running_reqs < num_running || scheduler.stats().num_prefill_tokens > 0)
      step();
    step();
  }
  void step() {
    schedule_step();
    update();
  }
  void schedule_step() {
    scheduler.advance(now += 1e-3, outputs);
    scheduler.schedule(scheduler_output);
    result.reset(scheduler_output.step_id);
    const int32_t token = 5;
    for (const ScheduledRequest& s : scheduler_output.scheduled_reqs)
      result.add(s.request_id, std::span(&token, s.samples ? 1U : 0U));
  }
  void update() {
    outputs.clear();
    scheduler.update_from_output(scheduler_output, result, outputs);
  }

  KVCacheConfig kv_cache_config;
  Scheduler scheduler;
  SchedulerOutput scheduler_output;
  ModelRunnerOutput result;
  EngineCoreOutputs outputs;
  double now = 1.0;
};

// Steps long enough to see requests enter new blocks, which one in sixteen does.
void measure_steps(benchmark::State& state, Decoding& decoding) {
  std::vector<double> schedule_us, update_us;
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    decoding.scheduler.advance(decoding.now += 1e-3, decoding.outputs);
    decoding.scheduler.schedule(decoding.scheduler_output);
    schedule_us.push_back(microseconds_since(start));
    decoding.result.reset(decoding.scheduler_output.step_id);
    const int32_t token = 5;
    for (const ScheduledRequest& s : decoding.scheduler_output.scheduled_reqs)
      decoding.result.add(s.request_id, std::span(&token, 1));
    const auto middle = std::chrono::steady_clock::now();
    decoding.update();
    update_us.push_back(microseconds_since(middle));
    state.SetIterationTime((schedule_us.back() + update_us.back()) * 1e-6);
  }
  state.counters["schedule_p50_us"] = median(schedule_us);
  state.counters["update_p50_us"] = median(update_us);
}

void decode_step(benchmark::State& state) {
  const auto num_running = static_cast<int32_t>(state.range(0));
  Decoding decoding(num_running, 0, std::max(num_running, 1));
  measure_steps(state, decoding);
}
BENCHMARK(decode_step)->RangeMultiplier(2)->Range(1, 4096)->UseManualTime()->Iterations(2000);

// 64 requests run, and so many wait.
void decode_step_with_queue(benchmark::State& state) {
  Decoding decoding(64, static_cast<int32_t>(state.range(0)), 64);
  measure_steps(state, decoding);
}
BENCHMARK(decode_step_with_queue)->Arg(0)->Arg(100)->Arg(100000)->UseManualTime()->Iterations(2000);

// 2,000 requests of 256 + 128 tokens that are there from the beginning, with so many adapters by Zipf's law,
// of which 64 have slots: how many requests compute at a time, and what deciding costs.
void many_adapters(benchmark::State& state) {
  constexpr int32_t kRequests = 2000, kPrompt = 256, kAnswer = 128, kSeats = 256, kSlots = 64;
  SchedulerConfig config = scheduler_config(kSeats);
  config.max_loras = kSlots;
  std::vector<double> weights, schedule_us;
  for (int i = 1; i <= state.range(0); ++i) weights.push_back(1.0 / i);
  int64_t num_steps = 0, num_scheduled = 0;
  for (auto _ : state) {
    std::discrete_distribution<int> draw(weights.begin(), weights.end());
    std::mt19937 random(1);
    Decoding decoding(config, 1 << 17);
    for (int32_t i = 0; i < kRequests; ++i) {
      EngineCoreRequest request = make_request(static_cast<RequestId>(i + 1), kPrompt);
      request.sampling_params.edit().max_tokens = kAnswer;
      request.lora_id = draw(random) + 1;
      request.lora_name = "adapter" + std::to_string(request.lora_id);
      decoding.scheduler.add_request(std::move(request));
    }
    while (decoding.scheduler.stats().num_running_reqs + decoding.scheduler.stats().num_waiting_reqs > 0) {
      const auto start = std::chrono::steady_clock::now();
      decoding.schedule_step();
      schedule_us.push_back(microseconds_since(start));
      ++num_steps;
      num_scheduled += static_cast<int64_t>(decoding.scheduler_output.scheduled_reqs.size());
      decoding.update();
    }
  }
  std::ranges::sort(schedule_us);
  state.counters["requests_a_step"] = static_cast<double>(num_scheduled) / static_cast<double>(num_steps);
  state.counters["schedule_p50_us"] = schedule_us[schedule_us.size() / 2];
  state.counters["schedule_p99_us"] = schedule_us[schedule_us.size() * 99 / 100];
}
BENCHMARK(many_adapters)->Arg(1)->Arg(1000)->Iterations(3);

// All blocks of the prompt are cached; the pool is large, and most of it was touched long ago.
void prefix_lookup(benchmark::State& state) {
  const auto num_tokens = static_cast<int32_t>(state.range(0));
  KVCacheManager manager(kv_cache(1 << 17), {});
  ComputedBlocks computed;
  std::vector<std::unique_ptr<Request>> others;
  for (RequestId id = 1; id <= 100; ++id) {
    auto& other = others.emplace_back(std::make_unique<Request>(make_request(id, 8193), kBlockSize));
    manager.find_computed_blocks(*other, computed);
    manager.allocate_slots(*other, other->num_tokens() - computed.num_tokens, &computed);
    manager.cache_blocks(*other, other->num_tokens());
  }
  Request first(make_request(1000, num_tokens + 1), kBlockSize);
  manager.find_computed_blocks(first, computed);
  manager.allocate_slots(first, num_tokens + 1, &computed);
  manager.cache_blocks(first, num_tokens);
  EngineCoreRequest same = make_request(1000, num_tokens + 1);
  Request second(std::move(same), kBlockSize);
  std::vector<double> samples;
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    manager.find_computed_blocks(second, computed);
    samples.push_back(microseconds_since(start));
    state.SetIterationTime(samples.back() * 1e-6);
  }
  if (computed.num_tokens != num_tokens) state.SkipWithError("not a full hit");
  state.counters["p50_us"] = median(samples);
}
BENCHMARK(prefix_lookup)->Arg(2048)->Arg(8192)->UseManualTime()->Iterations(2000);

void add_request(benchmark::State& state) {
  Scheduler scheduler(scheduler_config(64), kv_cache(1 << 17));
  std::vector<double> samples;
  RequestId id = 0;
  for (auto _ : state) {
    EngineCoreRequest request = make_request(++id, static_cast<int32_t>(state.range(0)));
    const auto start = std::chrono::steady_clock::now();
    scheduler.add_request(std::move(request));
    samples.push_back(microseconds_since(start));
    state.SetIterationTime(samples.back() * 1e-6);
  }
  state.counters["p50_us"] = median(samples);
}
BENCHMARK(add_request)->Arg(128)->Arg(512)->Arg(2048)->UseManualTime()->Iterations(5000);

// What recording adds to a step: the output's hash, and both events.
void flight_recorder(benchmark::State& state) {
  const auto num_running = static_cast<int32_t>(state.range(0));
  Decoding decoding(num_running, 0, num_running);
  RecordingHeader header;
  header.scheduler = decoding.scheduler.config();
  header.kv_cache = decoding.kv_cache_config;
  EngineConfig config;
  SchedulerRecorder recorder(config, header, decoding.scheduler,
                             [&](size_t) -> const SchedulerOutput& { return decoding.scheduler_output; });
  recorder.begin_step(decoding.now);
  std::vector<double> samples;
  for (auto _ : state) {
    decoding.schedule_step();
    const auto start = std::chrono::steady_clock::now();
    recorder.begin_step(decoding.now);
    recorder.scheduled(decoding.now, decoding.scheduler_output, true);
    const double schedule_us = microseconds_since(start);
    decoding.update();
    const auto middle = std::chrono::steady_clock::now();
    recorder.collected(decoding.now, decoding.scheduler_output, decoding.result, decoding.outputs, 0);
    samples.push_back(schedule_us + microseconds_since(middle));
    state.SetIterationTime(samples.back() * 1e-6);
  }
  state.counters["p50_us"] = median(samples);
}
BENCHMARK(flight_recorder)->Arg(1)->Arg(8)->Arg(64)->Arg(256)->Arg(1024)->UseManualTime()->Iterations(2000);

}  // namespace
}  // namespace quire

BENCHMARK_MAIN();
