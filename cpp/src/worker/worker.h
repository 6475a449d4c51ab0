// One rank: its share of the model, its KV cache, its device or threads.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "device/buffer.h"
#include "device/device_arena.h"
#include "distributed/communicator.h"
#include "formats/hf_config.h"
#include "messages/kv_cache_spec.h"
#include "messages/weight_source.h"
#include "models/model.h"
#include "quire/engine_config.h"
#include "quire/kv_connector.h"
#include "weights/weight_files.h"
#include "worker/backend.h"
#include "worker/lora_store.h"
#include "worker/model_builder.h"
#include "worker/model_runner.h"
#include "worker/platform.h"

namespace quire {

// A step that was sampled, or what went wrong before that.
struct StepOutcome {
  StepId step_id = 0;
  std::string error;
  bool worker_lost = false;  // it will compute no more
  KVConnectorResult kv_connector;
};

class Worker {
 public:
  // Loads the model. `max_model_len` is resolved. Throws InvalidArgument for anything wrong with the
  // directory or the device, ResourceExhausted when the model does not fit.
  Worker(const EngineConfig& config, const Backend& backend, const HfConfig& hf_config, int32_t max_model_len,
         int32_t num_threads, std::unique_ptr<Communicator> communicator);
  ~Worker();

  const Model& model() const { return *model_; }
  Communicator& communicator() { return *communicator_; }
  DType dtype() const { return dtype_; }
  // Bytes that a step takes besides weights and KV cache.
  size_t activation_bytes() const { return runner_->activation_bytes() + workspace_bytes_; }
  // What it has taken, or set aside; the KV cache's once that is initialized.
  RankMemory memory() const;
  // What is left for the KV cache on a device. On the host, which is shared with everyone, a part of what is
  // free.
  int64_t available_kv_cache_bytes() const;
  bool maps_kv_cache_on_demand() const { return platform_->maps_kv_cache_on_demand(); }

  // Takes the memory, or on the host the address space, of every group, and prepares all steps to come.
  // Called once, before the first step.
  void initialize_kv_cache(const KVCacheConfig& config);
  // Between steps, with none in flight. Gives the KV cache's memory back, and the weights': at level 1 as
  // they are (a device's are copied to the host; the host's are dropped if the files that they came from are
  // there unchanged, and stay if not), at level 2 for good. May follow a sleep of the other level.
  void sleep(int32_t level);
  // Takes back what is gone of those that are asked for; what this throws may be tried again. Weights come
  // back as they were, or after level 2 from the directory that they came from last. Throws InvalidArgument
  // when there is none, or when files have changed that must not have, and ResourceExhausted for want of
  // memory.
  void wake_up(bool weights, bool kv_cache);
  // Throws InvalidArgument when load_weights would, for what can be known before; changes nothing.
  void check_weights(const WeightSource& source);
  // Between steps, with none in flight. Loads other weights to where these are, or were. When it throws, they
  // are gone, as after a sleep of level 2.
  void load_weights(const WeightSource& source);
  bool has_weights() const { return weights_state_ == WeightsState::kThere; }

  // By all ranks at the same time, after that: on devices, whether their exchanges work. Throws InternalError
  // when they do not.
  void meet_other_ranks();

  // An adapter comes to the host's memory, or goes; from any thread, while steps run. Throw as LoraWeights.
  void load_lora(LoraId id, const LoraAdapter& adapter) {
    platform_->select();
    loras_->load(id, adapter);
  }
  void unload_lora(LoraId id) { loras_->unload(id); }

  // The three parts of a step; see ModelRunner. They never throw: an exception becomes output.error.
  void execute_model(const SchedulerOutput& scheduler_output);
  StepOutcome sample_tokens(const SchedulerOutput& scheduler_output, const GrammarOutput* grammar);
  // Takes the outcomes in order; may be called on another thread than the others.
  void finish_step(const StepOutcome& outcome, ModelRunnerOutput& output);

  // Of the routers of this rank, which choose as those of all others. On the thread of finish_step, after
  // initialize_kv_cache: see ExpertCounters::read. Throws InternalError when the device has failed.
  std::vector<ExpertLoad> expert_loads();

 private:
  // Where the weights are.
  enum class WeightsState : uint8_t { kThere, kSaved, kGone };

  // Whether the weights' arena maps that file.
  bool is_mapped(const WeightFiles& files) const {
    return mapped_ && files.packed && files.packed->stamp() == mapped_->stamp();
  }
  std::unique_ptr<WeightLoader> make_loader(const WeightFiles& files, const DeviceArena& arena) const;
  // Loads the weights to where they were. When it throws, they are gone.
  void reload(WeightFiles& files);
  WeightFiles open_directory(const std::string& directory) const;
  WeightFiles open_source(const WeightSource& source) const;
  bool can_read_again() const;
  // Throws InternalError when the device has failed.
  void wait_for_device();
  void register_kv_caches(const KVCacheConfig& config, const std::vector<std::byte*>& first_blocks);
  void copy_blocks(std::span<const KVBlockCopy> copies);
  StepOutcome failed(const std::string& what, StepId step_id);

  std::unique_ptr<Platform> platform_;
  std::unique_ptr<Communicator> communicator_;
  ModelRunnerConfig runner_config_;
  HfConfig hf_config_;
  ModelBuilder builder_;
  bool is_dummy_;
  WeightReader reader_;
  DType dtype_ = DType::kFloat32;
  WorkerMemory memory_;
  size_t set_aside_for_graphs_ = 0;
  // The directory that the weights came from, and what its files were then; empty: from nowhere else.
  std::string source_;
  std::string source_stamp_;
  // What the weights' arena maps; null: it has memory of its own.
  std::shared_ptr<const PackedFile> mapped_;
  WeightsState weights_state_ = WeightsState::kThere;
  bool kv_cache_is_gone_ = false;
  Buffer saved_weights_;
  size_t workspace_bytes_ = 0;
  std::unique_ptr<LoraTargets> lora_targets_;  // null: there are no adapters
  std::unique_ptr<LoraStore> loras_;           // null: likewise
  size_t lora_memory_bytes_ = 0;
  std::unique_ptr<Model> model_;
  std::unique_ptr<KVCopier> kv_copier_;
  struct GroupMemory {
    std::byte* first_block;
    size_t block_bytes;
  };
  std::vector<GroupMemory> kv_groups_;
  size_t kv_cache_bytes_ = 0;
  std::unique_ptr<KVConnectorWorker> kv_connector_;  // null: none
  std::unique_ptr<ModelRunner> runner_;              // goes first: it waits for what is enqueued

  // The step at hand.
  std::string error_;
  KVConnectorResult kv_connector_result_;
};

}  // namespace quire
