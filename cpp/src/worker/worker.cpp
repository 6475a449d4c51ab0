#include "worker/worker.h"

#include <algorithm>
#include <chrono>

#include "layers/quantization.h"
#include "models/model_registry.h"
#include "util/check.h"
#include "util/log.h"
#include "util/seconds_since.h"
#include "worker/memory_plan.h"

namespace quire {
namespace {

// How often a device's memory is asked for anew when a neighbour was quicker.
constexpr int kMaxTries = 8;
// What is never asked for: the driver needs room for a kernel's local memory, and for modules loaded later.
constexpr size_t kDriverBytes = size_t{256} << 20;

std::unique_ptr<WeightLoader> make_loader(const Backend& backend, const HostParallel* host) {
  return backend.is_device() ? make_device_loader(*backend.runtime, backend.device, *backend.ops)
                             : make_host_loader(host);
}

}  // namespace

Worker::Worker(const EngineConfig& config, const Backend& backend, const HfConfig& hf_config,
               int32_t max_model_len, int32_t num_threads, std::unique_ptr<Communicator> communicator)
    : backend_(backend),
      // A device computes by itself.
      thread_pool_(std::make_unique<ThreadPool>(backend.is_device() ? 1 : num_threads)),
      communicator_(std::move(communicator)),
      max_model_len_(max_model_len) {
  launch_.host = thread_pool_->host_parallel();
  if (backend_.is_device()) start_device();
  Checkpoint checkpoint =
      config.load_format == "dummy" ? Checkpoint::dummy(config.model) : Checkpoint::open(config.model);
  dtype_ = resolve_dtype(config, checkpoint, backend_);
  arena_ = backend_.is_device() ? take_device_memory(config, hf_config, checkpoint) : make_host_arena();

  const auto begin = std::chrono::steady_clock::now();
  const std::unique_ptr<WeightLoader> loader = make_loader(backend_, launch_.host);
  loader->set_checkpoint(&checkpoint);
  model_ = build_model(config, hf_config, checkpoint, *arena_, *loader);
  loader->finish();
  check_launches(launch_error_);
  if (backend_.is_device()) {
    log(LogLevel::kInfo, "weights on ", backend_.name(), " after ", seconds_since(begin),
        " s: ", arena_->used(), " bytes");
  }
  launch_.workspace = arena_->allocate(workspace_bytes_);
  launch_.workspace_bytes = workspace_bytes_;
  ModelRunnerConfig runner;
  runner.max_num_seqs = config.max_num_seqs;
  runner.max_num_batched_tokens = config.max_num_batched_tokens;
  runner.max_model_len = max_model_len;
  runner.max_in_flight_steps = uses_async_scheduling(config, backend_) ? 2 : 1;
  runner.use_graphs = !config.enforce_eager;
  runner.model_hash = model_hash_;
  runner_ = std::make_unique<ModelRunner>(runner, *model_, *backend_.ops, launch_, *communicator_,
                                          backend_.runtime);
}

Worker::~Worker() {
  // What goes now belongs to the device, whatever thread this is.
  if (backend_.is_device()) backend_.runtime->select(backend_.device);
}

void Worker::start_device() {
  select_device();
  stream_ = make_stream(*backend_.runtime);
  launch_.stream = stream_.get();
  launch_.error = &launch_error_;
  void* state = backend_.ops->create_state(&launch_error_);
  if (state == nullptr)
    throw InvalidArgument(str("device '", backend_.name(), "' cannot be used: ", launch_error_.text));
  backend_state_ = {state, backend_.ops->destroy_state};
  launch_.state = state;
}

std::unique_ptr<Model> Worker::build_model(const EngineConfig& config, const HfConfig& hf_config,
                                           Checkpoint& checkpoint, DeviceArena& arena, WeightLoader& loader) {
  BuildContext build{*backend_.ops, launch_, checkpoint, arena, loader, dtype_};
  build.rank = communicator_->rank();
  build.world_size = communicator_->world_size();
  build.max_model_len = max_model_len_;
  build.max_num_tokens = config.max_num_batched_tokens;
  build.max_num_seqs = config.max_num_seqs;
  build.block_size = config.block_size;
  build.quantization = read_quantization(hf_config, config.model);
  auto model = find_model(hf_config)(build, hf_config);
  const auto* ops = backend_.ops;
  if (ops->sampling_workspace_bytes != nullptr) {
    build.workspace_bytes = std::max(build.workspace_bytes,
                                     ops->sampling_workspace_bytes(config.max_num_seqs, model->vocab_size()));
  }
  workspace_bytes_ = build.workspace_bytes;
  model_hash_ = build.compute_hash.value();
  return model;
}

std::unique_ptr<DeviceArena> Worker::take_device_memory(const EngineConfig& config, const HfConfig& hf_config,
                                                        Checkpoint& checkpoint) {
  DeviceMemoryPlan plan;
  {
    const auto counter = make_measuring_arena();
    const auto nothing = make_measuring_loader();
    const auto model = build_model(config, hf_config, checkpoint, *counter, *nothing);
    plan.weights = counter->used();
    plan.workspace = DeviceArena::rounded(workspace_bytes_);
    ModelRunnerConfig shape{config.max_num_seqs, config.max_num_batched_tokens, max_model_len_,
                            uses_async_scheduling(config, backend_) ? 2 : 1, false};
    const ModelRunner runner(shape, *model, *backend_.ops, launch_, *communicator_, backend_.runtime);
    plan.activations = DeviceArena::rounded(runner.activation_bytes());
    plan.batch = runner.batch_bytes(group_block_sizes(model->kv_cache_specs()));
  }
  plan.graphs = config.enforce_eager ? 0 : kGraphBytes;
  const DeviceRuntime& runtime = *backend_.runtime;
  for (int attempt = 1;; ++attempt) {
    size_t free = 0, total = 0;
    check_device(runtime, runtime.memory_info(&free, &total), "asking for the free memory");
    plan.set_budget(config, free > kDriverBytes ? free - kDriverBytes : 0, total);
    try {
      auto arena = make_device_arena(runtime, plan.arena_bytes());
      log(LogLevel::kInfo, backend_.name(), ": ", plan.text());
      return arena;
    } catch (const ResourceExhausted&) {
      // A neighbour took some between the question and this.
      if (attempt == kMaxTries) throw;
    }
  }
}

int64_t Worker::available_kv_cache_bytes() const {
  if (!backend_.is_device()) return static_cast<int64_t>(available_host_memory() / 2);
  const size_t taken = DeviceArena::rounded(runner_->activation_bytes()) +
                       runner_->batch_bytes(group_block_sizes(model_->kv_cache_specs()));
  const size_t left = arena_->remaining();
  return left > taken ? static_cast<int64_t>(left - taken) : 0;
}

void Worker::initialize_kv_cache(const KVCacheConfig& config) {
  select_device();
  const auto specs = model_->kv_cache_specs();
  std::vector<KVCacheView> layers(specs.size());
  const auto begin = std::chrono::steady_clock::now();
  int64_t bytes = 0;
  for (const KVCacheGroup& group : config.groups) bytes += group.block_bytes() * group.num_blocks;
  if (backend_.is_device() && bytes > available_kv_cache_bytes()) {
    throw InvalidArgument(str("kv_cache_memory_bytes ", bytes, " is more than the ",
                              available_kv_cache_bytes(), " bytes that are left for it on ", backend_.name(),
                              ": lower it or num_gpu_blocks_override, or raise gpu_memory_utilization"));
  }
  for (const KVCacheGroup& group : config.groups) {
    std::byte* first_block = nullptr;
    if (backend_.is_device()) {
      first_block =
          arena_->allocate(static_cast<size_t>(group.block_bytes()) * static_cast<size_t>(group.num_blocks));
    } else {
      first_block = kv_cache_.emplace_back(group, /*may_all_be_mapped=*/!config.shared).first_block();
    }
    for (size_t i = 0; i < group.layers.size(); ++i) {
      const auto layer = static_cast<size_t>(group.layers[i]);
      QUIRE_CHECK(layer < specs.size() && !layers[layer].data && specs[layer] == group.spec, "layer ", layer);
      layers[layer] = kv_cache_view(group, first_block, i, dtype_);
    }
  }
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    QUIRE_CHECK(layers[layer].data, "layer ", layer, " is in no group");
  }
  runner_->set_kv_cache(config, std::move(layers), *arena_);
  runner_->warm_up();
  check_launches(launch_error_);
  communicator_->check();
  if (backend_.is_device())
    log(LogLevel::kInfo, backend_.name(), " ready after ", seconds_since(begin), " s");
}

void Worker::select_device() {
  if (!backend_.is_device()) return;
  check_device(*backend_.runtime, backend_.runtime->select(backend_.device), "selecting the device");
}

void Worker::execute_model(const SchedulerOutput& plan) {
  error_.clear();
  launch_error_ = {};
  try {
    select_device();
    // A device's blocks have their memory for good.
    for (size_t i = 0; i < plan.kv_extents.size() && !backend_.is_device(); ++i) {
      kv_cache_.at(static_cast<size_t>(plan.kv_extents[i].group)).apply(plan.kv_extents[i]);
    }
    runner_->execute_model(plan);
    check_launches(launch_error_);
  } catch (const std::exception& error) {
    error_ = error.what();
    communicator_->abort();
  }
}

StepOutcome Worker::sample_tokens(const SchedulerOutput& plan, const GrammarOutput* grammar) {
  if (!error_.empty()) return failed(error_, plan.step_id);
  try {
    runner_->sample_tokens(plan, grammar);
    check_launches(launch_error_);
    return {plan.step_id, {}, false};
  } catch (const std::exception& error) {
    communicator_->abort();
    return failed(error.what(), plan.step_id);
  }
}

// On a device that has failed nothing works any more; a launch that was refused is over.
StepOutcome Worker::failed(const std::string& what, StepId step_id) {
  // Not the whole device: another engine may be capturing a graph.
  const int code = backend_.is_device() ? backend_.runtime->synchronize_stream(launch_.stream) : 0;
  if (code == 0) return {step_id, what, false};
  return {step_id, str(what, " (", backend_.name(), " is lost: ", backend_.runtime->error_text(code), ")"),
          true};
}

void Worker::finish_step(const StepOutcome& outcome, ModelRunnerOutput& output) {
  StepOutcome result = outcome;
  if (result.error.empty()) {
    try {
      select_device();
      runner_->finish_step(output);
      communicator_->check();
      return;
    } catch (const std::exception& error) {
      result = failed(error.what(), outcome.step_id);
    }
  }
  output.reset(result.step_id);
  output.error = result.error;
  output.worker_lost = result.worker_lost;
}

}  // namespace quire
