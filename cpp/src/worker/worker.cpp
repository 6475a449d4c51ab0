#include "worker/worker.h"

#include <algorithm>
#include <chrono>
#include <optional>

#include "util/check.h"
#include "util/log.h"
#include "util/seconds_since.h"
#include "weights/load_progress.h"
#include "worker/kv_cache_memory.h"
#include "worker/kv_copier.h"
#include "worker/memory_plan.h"

namespace quire {
namespace {

std::vector<NamedLogitsProcessor> logits_processors_of(const EngineConfig& config) {
  std::vector<std::string> entries = config.logits_processors;
  if (!config.think_end_token_ids.empty()) entries.emplace_back("thinking_budget");
  return find_logits_processors(entries, config.own_logits_processors);
}

}  // namespace

Worker::Worker(const EngineConfig& config, const Backend& backend, const HfConfig& hf_config,
               int32_t max_model_len, int32_t num_threads, std::unique_ptr<Communicator> communicator)
    : platform_(make_platform(backend, num_threads)),
      communicator_(std::move(communicator)),
      runner_config_(model_runner_config(config, backend, max_model_len)),
      hf_config_(hf_config),
      builder_(config, hf_config, runner_config_, *platform_, *communicator_),
      is_dummy_(config.load_format == "dummy"),
      reader_{backend.ops->weight_layout, config.dtype, communicator_->rank(), communicator_->world_size(),
              config.load_format != "safetensors"},
      source_(config.model) {
  if (communicator_->rank() == 0) runner_config_.speculation.drafter = backend.speculation.drafter;
  WeightFiles files = open_directory(source_);
  source_stamp_ = files.stamp();
  EngineConfig wanted = config;
  if (files.packed) wanted.dtype = files.packed->header().dtype;
  dtype_ = resolve_dtype(wanted, files.checkpoint, backend);
  reader_.dtype = dtype_name(dtype_);
  std::unique_ptr<DeviceArena> mapped = files.packed ? platform_->map_weights(files.packed) : nullptr;
  // Mapped weights take no memory, and nothing is to be said of the little else.
  std::function<DeviceMemoryPlan()> measure;
  if (!mapped) {
    measure = [&] {
      const DeviceMemoryPlan plan = builder_.measure(dtype_, files.checkpoint).plan;
      set_aside_for_graphs_ = plan.graphs;
      return plan;
    };
  }
  memory_ = platform_->make_memory(config, measure);
  if (mapped) {
    memory_.weights = std::move(mapped);
    mapped_ = files.packed;
  }

  const auto begin = std::chrono::steady_clock::now();
  BuiltModel built;
  {
    std::optional<LoadProgress> progress;
    if (config.use_tqdm_on_load && communicator_->rank() == 0) {
      const Checkpoint& checkpoint = files.checkpoint;
      const int64_t bytes = files.packed ? 0 : checkpoint.total_bytes() / communicator_->world_size();
      progress.emplace(bytes, [&checkpoint] { return checkpoint.bytes_read(); });
    }
    const std::unique_ptr<WeightLoader> loader = make_loader(files, *memory_.weights);
    built = builder_.build(dtype_, files.checkpoint, *memory_.weights, *loader);
    loader->finish();
  }
  files.checkpoint.check_unchanged();
  model_ = std::move(built.model);
  workspace_bytes_ = built.workspace_bytes;
  runner_config_.model_hash = built.hash;
  runner_config_.expert_loads = std::move(built.expert_loads);
  platform_->check();
  log(LogLevel::kInfo, "weights on ", platform_->name(), " after ", seconds_since(begin),
      " s: ", memory_.weights->used(), " bytes");
  platform_->set_workspace(memory_.steps->allocate(workspace_bytes_), workspace_bytes_);
  runner_ = std::make_unique<ModelRunner>(runner_config_, *model_, *platform_, *communicator_);
  if (built.lora_targets) {
    lora_targets_ = std::move(built.lora_targets);
    loras_ = std::make_unique<LoraStore>(*lora_targets_, platform_->ops(), platform_->runtime(), dtype_);
    const size_t before = memory_.steps->used();
    auto lora_memory = platform_->make_lora_memory(*lora_targets_, dtype_, *memory_.steps);
    lora_memory_bytes_ = memory_.steps->used() - before;
    runner_->set_loras(std::make_unique<LoraSlots>(*lora_targets_, *loras_, std::move(lora_memory),
                                                   runner_config_.max_num_batched_tokens));
  }
  if (auto processors = logits_processors_of(config); !processors.empty()) {
    LogitsProcessorConfig made_for;
    made_for.vocab_size = static_cast<int32_t>(model_->vocab_size());
    made_for.think_start_token_ids = config.think_start_token_ids;
    made_for.think_end_token_ids = config.think_end_token_ids;
    made_for.rank = communicator_->rank();
    made_for.world_size = communicator_->world_size();
    for (const auto* ids : {&config.think_start_token_ids, &config.think_end_token_ids})
      for (const int32_t id : *ids)
        if (id < 0 || id >= made_for.vocab_size)
          throw InvalidArgument(str("think_start_token_ids and think_end_token_ids hold ", id,
                                    "; ids go from 0 to ", made_for.vocab_size - 1));
    runner_->set_logits_processors(std::make_unique<LogitsProcessors>(processors, made_for));
  }
  if (!config.kv_connector.empty()) {
    KVConnectorConfig connector;
    connector.config = config.kv_connector_config;
    connector.model = config.model;
    connector.rank = communicator_->rank();
    connector.world_size = communicator_->world_size();
    kv_connector_ = find_kv_connector(config.kv_connector).make_worker(connector);
  }
  kv_copier_ = make_kv_copier(platform_->runtime(), platform_->launch().stream);
}

Worker::~Worker() {
  // What goes now belongs to the platform, whatever thread this is. What it has lost cannot be given back.
  try {
    platform_->select();
  } catch (const std::exception&) {
  }
}

// What reads the files, and writes to the arena.
std::unique_ptr<WeightLoader> Worker::make_loader(const WeightFiles& files, const DeviceArena& arena) const {
  std::unique_ptr<WeightLoader> loader = platform_->make_loader();
  if (files.packed) loader = make_packed_loader(files.packed, arena, is_mapped(files), std::move(loader));
  loader->set_checkpoint(&files.checkpoint);
  return loader;
}

RankMemory Worker::memory() const {
  DeviceMemoryPlan taken;
  taken.weights = memory_.weights->used();
  taken.activations = DeviceArena::rounded(runner_->activation_bytes());
  taken.workspace = DeviceArena::rounded(workspace_bytes_);
  if (!kv_groups_.empty())
    taken.batch = memory_.steps->used() - taken.activations - taken.workspace - lora_memory_bytes_;
  taken.adapters = lora_memory_bytes_;
  taken.graphs = set_aside_for_graphs_;
  taken.exchange = communicator_->device_bytes();
  // A device's memory for it is taken at once, whether blocks use all of it or not.
  const bool is_device = platform_->runtime() != nullptr;
  taken.kv_cache = is_device ? memory_.kv_cache->used() + memory_.kv_cache->remaining() : kv_cache_bytes_;
  return taken.rank_memory();
}

int64_t Worker::available_kv_cache_bytes() const {
  return platform_->available_kv_cache_bytes(memory_, communicator_->world_size());
}

void Worker::initialize_kv_cache(const KVCacheConfig& config) {
  platform_->select();
  const auto specs = model_->kv_cache_specs();
  std::vector<KVCacheView> layers(specs.size());
  kv_cache_bytes_ = static_cast<size_t>(config.memory_bytes(platform_->maps_kv_cache_on_demand()));
  const auto begin = std::chrono::steady_clock::now();
  const auto first_blocks = platform_->allocate_kv_cache(config, memory_);
  for (size_t g = 0; g < config.groups.size(); ++g) {
    const KVCacheGroup& group = config.groups[g];
    kv_groups_.push_back({first_blocks[g], static_cast<size_t>(group.block_bytes())});
    for (size_t i = 0; i < group.layers.size(); ++i) {
      const auto layer = static_cast<size_t>(group.layers[i]);
      QUIRE_CHECK(layer < specs.size() && !layers[layer].data && specs[layer] == group.spec, "layer ", layer);
      layers[layer] = kv_cache_view(group, first_blocks[g], i, dtype_);
    }
  }
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    QUIRE_CHECK(layers[layer].data, "layer ", layer, " is in no group");
  }
  runner_->set_kv_cache(config, std::move(layers), *memory_.steps);
  if (kv_connector_) register_kv_caches(config, first_blocks);
  runner_->warm_up();
  platform_->check();
  log(LogLevel::kInfo, platform_->name(), " ready after ", seconds_since(begin), " s");
}

void Worker::meet_other_ranks() {
  platform_->select();
  runner_->run_padding();
  platform_->check();
  communicator_->check();
}

void Worker::register_kv_caches(const KVCacheConfig& config, const std::vector<std::byte*>& first_blocks) {
  std::vector<KVCachePages> groups;
  for (size_t i = 0; i < config.groups.size(); ++i) {
    const KVCacheGroup& group = config.groups[i];
    groups.push_back({first_blocks[i], group.block_bytes(), group.spec.page_bytes, group.num_blocks,
                      group.spec.block_size, group.layers});
  }
  kv_connector_->register_kv_caches(groups, *kv_copier_);
  if (kv_connector_->has_layer_hooks()) runner_->set_layer_hooks(kv_connector_.get());
}

void Worker::execute_model(const SchedulerOutput& scheduler_output) {
  error_.clear();
  kv_connector_result_.clear();
  try {
    platform_->select();
    platform_->begin_step();
    runner_->load_loras(scheduler_output.lora_loads);  // first: nobody says so again
    memory_.weights->check();
    platform_->apply(scheduler_output.kv_extents);
    copy_blocks(scheduler_output.kv_copies);
    if (kv_connector_) kv_connector_->start_load_kv(scheduler_output.kv_connector_metadata);
    runner_->execute_model(scheduler_output);
    if (kv_connector_) {
      kv_connector_->wait_for_save();
      kv_connector_->get_finished(kv_connector_result_);
    }
    platform_->check();
  } catch (const std::exception& error) {
    error_ = error.what();
    communicator_->abort();
  }
}

// The pages of a block in all layers lie next to each other.
void Worker::copy_blocks(std::span<const KVBlockCopy> copies) {
  for (const KVBlockCopy& copy : copies) {
    const GroupMemory& group = kv_groups_.at(static_cast<size_t>(copy.group));
    const auto address_of = [&](BlockId id) {
      return group.first_block + static_cast<size_t>(id) * group.block_bytes;
    };
    kv_copier_->copy(address_of(copy.to), address_of(copy.from), group.block_bytes);
  }
}

StepOutcome Worker::sample_tokens(const SchedulerOutput& scheduler_output, const GrammarOutput* grammar) {
  StepOutcome outcome = {scheduler_output.step_id, {}, false, {}};
  if (error_.empty()) {
    try {
      runner_->sample_tokens(scheduler_output, grammar);
      platform_->check();
      memory_.weights->check();  // nobody gets a token of what a file lost meanwhile
    } catch (const std::exception& error) {
      communicator_->abort();
      error_ = error.what();
    }
  }
  if (!error_.empty()) outcome = failed(error_, scheduler_output.step_id);
  // What was moved has been, whatever became of the rest.
  outcome.kv_connector = std::move(kv_connector_result_);
  return outcome;
}

StepOutcome Worker::failed(const std::string& what, StepId step_id) {
  try {
    memory_.weights->check();
  } catch (const std::exception& error) {
    return {step_id, error.what(), true, {}};
  }
  const std::string loss = platform_->loss();
  if (loss.empty()) return {step_id, what, false, {}};
  return {step_id, str(what, " (", platform_->name(), " is lost: ", loss, ")"), true, {}};
}

std::vector<ExpertLoad> Worker::expert_loads() {
  platform_->select();
  return runner_->expert_loads();
}

void Worker::finish_step(const StepOutcome& outcome, ModelRunnerOutput& output) {
  std::string error = outcome.error;
  bool lost = outcome.worker_lost;
  if (error.empty()) {
    try {
      platform_->select();
      runner_->finish_step(output);
      communicator_->check();
    } catch (const std::exception& failure) {
      const StepOutcome after = failed(failure.what(), outcome.step_id);
      error = after.error;
      lost = after.worker_lost;
      if (lost) communicator_->abort();
    }
  }
  if (!error.empty()) {
    output.reset(outcome.step_id);
    output.error = error;
    output.worker_lost = lost;
  }
  output.finished_sending = outcome.kv_connector.finished_sending;
  output.finished_recving = outcome.kv_connector.finished_recving;
  output.invalid_block_ids = outcome.kv_connector.invalid_block_ids;
}

}  // namespace quire
