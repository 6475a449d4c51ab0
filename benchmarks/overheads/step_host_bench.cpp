// What the host does for a step. What the device waits for meanwhile is step_kernels.py's.
//
//   step_host_bench [--batches 1,8,32,64,128,256,1024] [--steps 300] [--null STEP_US] [--set field=JSON]...
//
// An engine core of the Llama-3.1-8B shape, with weights made on the device, decodes at each batch size. Its
// executor works on tables that also look at the clock:
//
//   - ahead: part of the steps that the host had enqueued to the end before the device was done with the one
//   before
//   - worker: what a worker makes of a SchedulerOutput, without waits for the device
//   - graph: of that, launching the captured graph; inputs: telling it, or kernels beside it, what to do
//   - schedule: the scheduler
//   - update: taking a step's result in: what the executor makes of it, then the scheduler
//   - host: worker + schedule + update
//
// Medians, and the 99th percentile of host. With --null the device is one that computes nothing in STEP_US
// microseconds a step (null_device.h), of a small model: for profiling, on any machine.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "../llama_shapes.h"
#include "device/runtime_handles.h"
#include "engine/engine_core.h"
#include "executor/executor.h"
#include "null_device.h"
#include "quire/error.h"
#include "quire/fields.h"
#include "quire/kernels/backend_registry.h"
#include "util/check.h"
#include "worker/backend.h"

namespace quire {
namespace {

constexpr int32_t kPromptTokens = 128;
constexpr int kWarmUpSteps = 30;

// Microseconds.
double host_target(int32_t batch) { return batch == 1 ? 30 : batch <= 256 ? 60 : 150; }

double now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// When a thread last selected the device, which is how a worker begins a step; and how long it waited.
struct ThreadTimes {
  double selected = 0;
  double not_ours = 0;  // since then: waits, and what the probe itself took
  double wait_end = 0;  // of the last wait
  double in_graph = 0, in_inputs = 0;
};
thread_local ThreadTimes times;

// What the wrapped tables see. A step begins with what makes its inputs and ends with the event that its
// results are waited for by.
struct Probe {
  const DeviceRuntime* runtime = nullptr;
  const KernelTable* ops = nullptr;
  bool recording = false;
  bool in_step = false;
  std::vector<DeviceEvent> end;
  std::vector<double> worker_us, graph_us, inputs_us;
  std::vector<char> ahead;
  size_t num_steps = 0;

  void start(size_t max_steps) {
    while (end.size() < max_steps) end.push_back(make_event(*runtime, /*timed=*/true));
    for (auto* column : {&worker_us, &graph_us, &inputs_us}) column->assign(max_steps, 0);
    ahead.assign(max_steps, 0);
    num_steps = 0;
    in_step = false;
    recording = true;
  }
  void after_inputs() {
    if (!recording) return;
    if (num_steps == end.size()) {
      recording = false;
      return;
    }
    ++num_steps;
    in_step = true;
  }
  void after_record(void* stream) {
    if (!recording || !in_step) return;
    in_step = false;
    const size_t step = num_steps - 1;
    worker_us[step] = now_us() - times.selected - times.not_ours;
    graph_us[step] = times.in_graph;
    inputs_us[step] = times.in_inputs;
    bool done = true;
    if (step > 0) runtime->query_event(end[step - 1].get(), &done);
    ahead[step] = !done;
    runtime->record_event(end[step].get(), stream);
  }
};
Probe probe;

// The runtime with the probe in it. Functions of a table have no state of their own, so the probe is global.
const DeviceRuntime& probed_runtime() {
  static const DeviceRuntime table = [] {
    DeviceRuntime probed = *probe.runtime;
    probed.select = [](int32_t device) {
      times = {now_us(), 0, times.wait_end, 0, 0};
      return probe.runtime->select(device);
    };
    probed.synchronize_event = [](void* event) {
      const double begin = now_us();
      const int code = probe.runtime->synchronize_event(event);
      times.wait_end = now_us();
      times.not_ours += times.wait_end - begin;
      return code;
    };
    probed.launch_graph = [](void* graph, void* stream) {
      const double begin = now_us();
      const int code = probe.runtime->launch_graph(graph, stream);
      times.in_graph += now_us() - begin;
      return code;
    };
    probed.record_event = [](void* event, void* stream) {
      const int code = probe.runtime->record_event(event, stream);
      probe.after_record(stream);
      return code;
    };
    return probed;
  }();
  return table;
}

const KernelTable& probed_ops() {
  static const BatchOps batch = [] {
    BatchOps probed = *probe.ops->batch;
    probed.prepare_inputs = [](const LaunchContext& ctx, const PrepareInputsArgs& args) {
      const double begin = now_us();
      probe.ops->batch->prepare_inputs(ctx, args);
      times.in_inputs += now_us() - begin;
      probe.after_inputs();
    };
    return probed;
  }();
  static const KernelTable table = [] {
    KernelTable probed = *probe.ops;
    probed.batch = &batch;
    probed.sample = [](const LaunchContext& ctx, const SamplingArgs& args) {
      const double begin = now_us();
      probe.ops->sample(ctx, args);
      times.in_inputs += now_us() - begin;
    };
    return probed;
  }();
  return table;
}

// Notes when the engine core launches a step and when it has a result; both on its own thread.
class TimedExecutor final : public Executor {
 public:
  struct Times {
    double step_begin = 0, schedule_us = 0, result = 0, finish_us = 0;
  };

  TimedExecutor(std::unique_ptr<Executor> executor, Times& noted)
      : executor_(std::move(executor)), noted_(noted) {}

  const ModelInfo& model_info() const override { return executor_->model_info(); }
  std::vector<KVCacheSpec> kv_cache_specs() const override { return executor_->kv_cache_specs(); }
  int64_t available_kv_cache_bytes() const override { return executor_->available_kv_cache_bytes(); }
  bool maps_kv_cache_on_demand() const override { return executor_->maps_kv_cache_on_demand(); }
  void initialize_kv_cache(const KVCacheConfig& config) override { executor_->initialize_kv_cache(config); }
  int32_t max_in_flight_steps() const override { return executor_->max_in_flight_steps(); }
  void launch(const SchedulerOutput& scheduler_output) override {
    noted_.schedule_us = now_us() - noted_.step_begin;
    executor_->launch(scheduler_output);
  }
  void sample(StepId step_id, const GrammarOutput* grammar) override { executor_->sample(step_id, grammar); }
  void collect(StepId step_id, ModelRunnerOutput& output) override {
    executor_->collect(step_id, output);
    noted_.result = now_us();
    noted_.finish_us = noted_.result - times.wait_end;
  }

 private:
  std::unique_ptr<Executor> executor_;
  Times& noted_;
};

double percentile(std::vector<double> values, double part) {
  QUIRE_CHECK(!values.empty(), "nothing was measured");
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(part * static_cast<double>(values.size() - 1))];
}
double median(const std::vector<double>& values) { return percentile(values, 0.5); }

class Bench {
 public:
  Bench(const EngineConfig& config, const Backend& backend, int num_steps) : num_steps_(num_steps) {
    core_ = std::make_unique<EngineCore>(
        config, std::make_unique<TimedExecutor>(make_local_executor(config, backend), noted_));
  }

  void run(int32_t batch) {
    std::vector<RequestId> ids;
    for (int32_t i = 0; i < batch; ++i) ids.push_back(add_request());
    const auto all_decode = [&] {
      const SchedulerStats& stats = outputs_.scheduler_stats;
      return stats.num_running_reqs == batch && stats.num_prefill_tokens == 0;
    };
    do step();
    while (!all_decode());
    for (int i = 0; i < kWarmUpSteps; ++i) step();

    // No step is under way when recording begins or ends.
    std::vector<double> schedule, update;
    drain();
    probe.start(static_cast<size_t>(num_steps_));
    while (schedule.size() < static_cast<size_t>(num_steps_)) {
      step();
      if (outputs_.outputs.empty()) continue;  // the pipeline is being filled
      schedule.push_back(noted_.schedule_us);
      update.push_back(noted_.finish_us + (step_end_ - noted_.result));
    }
    drain();
    probe.recording = false;
    check_device(*probe.runtime, probe.runtime->synchronize(), "waiting for the device");
    report(batch, schedule, update);

    core_->abort_requests(ids);
    while (core_->step_once(outputs_)) {
    }
  }

 private:
  RequestId add_request() {
    EngineCoreRequest request;
    request.request_id = ++last_id_;
    for (int32_t i = 0; i < kPromptTokens; ++i) {
      request.prompt_token_ids.edit().push_back(static_cast<int32_t>(random_() % 128000));
    }
    SamplingParams params;
    params.temperature = 0;
    params.ignore_eos = true;
    params.max_tokens = num_steps_ + 10 * kWarmUpSteps;
    request.sampling_params = std::move(params);
    request.seed = 1;
    request.arrival_time = EngineCore::steady_seconds();
    core_->add_request(std::move(request));
    return last_id_;
  }
  void step() {
    noted_.step_begin = now_us();
    const bool did_something = core_->step_once(outputs_);
    step_end_ = now_us();
    QUIRE_CHECK(did_something, "a step is missing");
    for (const EngineCoreOutput& output : outputs_.outputs) QUIRE_CHECK(output.error.empty(), *output.error);
  }
  // Nothing new is scheduled while the scheduler is paused.
  void drain() {
    core_->set_pause_state(PauseState::kPausedAll);
    while (core_->step_once(outputs_)) {
    }
    core_->set_pause_state(PauseState::kUnpaused);
  }
  void report(int32_t batch, const std::vector<double>& schedule, const std::vector<double>& update) const {
    const auto elapsed_us = [](const DeviceEvent& from, const DeviceEvent& to) {
      float ms = 0;
      check_device(*probe.runtime, probe.runtime->elapsed_ms(&ms, from.get(), to.get()), "reading a time");
      return static_cast<double>(ms) * 1e3;
    };
    std::vector<double> periods, host, worker, graph, inputs;
    size_t num_ahead = 0;
    for (size_t i = 1; i < probe.num_steps; ++i) {
      periods.push_back(elapsed_us(probe.end[i - 1], probe.end[i]));
      worker.push_back(probe.worker_us[i]);
      graph.push_back(probe.graph_us[i]);
      inputs.push_back(probe.inputs_us[i]);
      host.push_back(probe.worker_us[i] + schedule[std::min(i, schedule.size() - 1)] +
                     update[std::min(i, update.size() - 1)]);
      num_ahead += probe.ahead[i] != 0;
    }
    std::printf("%5d %9.3f %7.0f %% %9.1f %9.1f %9.1f %9.1f %9.1f %9.1f %9.1f   %s\n", batch,
                median(periods) / 1e3,
                100.0 * static_cast<double>(num_ahead) / static_cast<double>(periods.size()), median(worker),
                median(graph), median(inputs), median(schedule), median(update), median(host),
                percentile(host, 0.99), median(host) <= host_target(batch) ? "met" : "missed");
    std::fflush(stdout);
  }

  TimedExecutor::Times noted_;  // before core_, which writes to it
  int num_steps_;
  std::unique_ptr<EngineCore> core_;
  EngineCoreOutputs outputs_;
  double step_end_ = 0;
  RequestId last_id_ = 0;
  std::mt19937 random_{7};
};

// A model whose size does not matter.
std::string make_small_directory() {
  const auto directory = std::filesystem::temp_directory_path() / "quire-llama-small";
  std::filesystem::create_directories(directory);
  std::ofstream(directory / "config.json")
      << R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
"intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1,
"vocab_size": 128256, "max_position_embeddings": 131072, "dtype": "float32", "eos_token_id": 128001})";
  return directory.string();
}

int run(EngineConfig config, bool is_null, const std::string& numbers, int num_steps) {
  std::vector<int32_t> batches;
  std::istringstream list(numbers);
  for (std::string number; std::getline(list, number, ',');) batches.push_back(std::atoi(number.c_str()));
  for (const int32_t batch : batches) config.max_num_seqs = std::max(config.max_num_seqs.value_or(64), batch);
  config.validate();
  Backend backend =
      is_null ? Backend{&null_device::ops(), &null_device::runtime(), 0, {}} : find_backend(config);
  probe.runtime = backend.runtime;
  probe.ops = backend.ops;
  backend.runtime = &probed_runtime();
  backend.ops = &probed_ops();
  check_device(*probe.runtime, probe.runtime->select(backend.device), "selecting the device");
  Bench bench(config, backend, num_steps);
  std::printf("%5s %9s %9s %9s %9s %9s %9s %9s %9s %9s\n", "", "step", "ahead", "worker", "graph", "inputs",
              "schedule", "update", "host", "host");
  std::printf(
      "%5s %9s %9s %9s %9s %9s %9s %9s %9s %9s   targets: %.0f, %.0f and %.0f us of 1, 256 and 1,024\n",
      "batch", "ms", "", "us", "us", "us", "us", "us", "us", "p99 us", host_target(1), host_target(256),
      host_target(1024));
  for (const int32_t batch : batches) bench.run(batch);
  probe.end.clear();  // while there is a driver to give them back to
  return 0;
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  using namespace quire;
  EngineConfig config;
  config.device = "cuda";
  config.dtype = "bfloat16";
  config.load_format = "dummy";
  config.skip_tokenizer_init = true;
  config.max_num_seqs = 256;
  config.max_num_batched_tokens = 8192;
  config.max_model_len = 4096;
  std::string batches = "1,8,32,64,128,256,1024";
  int num_steps = 300;
  bool is_null = false;
  try {
    for (int i = 1; i < argc; i += 2) {
      const std::string option = argv[i], value = i + 1 < argc ? argv[i + 1] : "";
      if (option == "--batches") {
        batches = value;
      } else if (option == "--steps") {
        num_steps = std::max(2, std::atoi(value.c_str()));
      } else if (option == "--null") {
        is_null = true;
        null_device::step_us = std::atof(value.c_str());
        config.dtype = "float32";
        config.kv_cache_memory_bytes = int64_t{256} << 20;  // as many blocks as Llama 3.1 8B has
      } else if (option == "--set") {
        const size_t equals = value.find('=');
        set_field(config, value.substr(0, equals), value.substr(equals + 1));
      } else {
        std::fprintf(stderr, "unknown option %s\n", option.c_str());
        return 2;
      }
    }
    if (!is_null && cuda_kernel_table(0) == nullptr) {
      std::printf("no CUDA device\n");
      return 0;
    }
    if (config.model.empty()) config.model = is_null ? make_small_directory() : make_llama_8b_directory();
    return run(config, is_null, batches, num_steps);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
