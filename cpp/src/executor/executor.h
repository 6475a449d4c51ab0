// Runs steps on the workers. Not a blocking call: steps are launched, sampled and collected, several in
// flight.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "executor/lora_loader.h"
#include "messages/kv_cache_spec.h"
#include "messages/model_info.h"
#include "messages/model_runner_output.h"
#include "messages/scheduler_output.h"
#include "messages/weight_source.h"
#include "quire/engine_config.h"
#include "quire/expert_load.h"
#include "quire/memory_plan.h"

namespace quire {

struct Backend;

// Called from one thread. For each step: launch, then sample, then collect; steps in order. A SchedulerOutput
// must stay where it is until its step is collected.
class Executor {
 public:
  virtual ~Executor() = default;

  virtual const ModelInfo& model_info() const = 0;
  // What each layer asks of the KV cache on one rank, in layer order.
  virtual std::vector<KVCacheSpec> kv_cache_specs() const = 0;
  // Memory that the KV cache may take on one rank.
  virtual int64_t available_kv_cache_bytes() const = 0;
  // Whether blocks take memory only when they are used, so that groups may share it; else each group has its
  // part for good.
  virtual bool maps_kv_cache_on_demand() const { return true; }
  // Once, before the first step.
  virtual void initialize_kv_cache(const KVCacheConfig& config) = 0;

  // Between steps, with none in flight. All ranks give the memory of weights and KV cache back, and take it
  // again: see Worker. Throw what one of them throws; they may then be called again.
  virtual void sleep(int32_t level);
  virtual void wake_up(bool weights, bool kv_cache);
  // The same for new weights: of all ranks, first whether each can load its share of them, then they do.
  virtual void check_weights(const WeightSource& source);
  virtual void load_weights(const WeightSource& source);
  // Whether all ranks have theirs: no step may be launched otherwise.
  virtual bool has_weights() const { return true; }

  // How many steps may be launched and not yet collected.
  virtual int32_t max_in_flight_steps() const = 0;

  // A step without requests is one like any other: its changes are made, and its result is empty.
  virtual void launch(const SchedulerOutput& scheduler_output) = 0;
  // Masks depend on the tokens of the step before, so they come apart. They must stay where they are until
  // the step is collected. Null: no request has a grammar.
  virtual void sample(StepId step_id, const GrammarOutput* grammar) = 0;
  // Waits for the oldest step. What failed in it is in `output.error`. Takes the buffers of `output` for
  // steps to come: hand the same one back and nothing is allocated.
  virtual void collect(StepId step_id, ModelRunnerOutput& output) = 0;

  // Whether adapters are copied to where they are computed with, which a step may have to wait for.
  virtual bool copies_loras() const { return false; }
  // Null without enable_lora. As long as the executor.
  virtual LoraLoader* lora_loader() { return nullptr; }

  // One for each layer with experts; at any time after initialize_kv_cache, and complete when no step is in
  // flight. Throws InternalError when the device has failed.
  virtual std::vector<ExpertLoad> expert_loads() { return {}; }
};

// Throws InvalidArgument for a model that make_local_executor would refuse for what it is: an architecture
// that is not known, quantized weights. Reads config.json, and what lies beside it to say how weights are
// quantized.
void check_model(const EngineConfig& config);

// What a rank would be, found without memory or a device.
struct PlannedRank {
  ModelInfo model_info;  // with the memory of all but the KV cache
  std::vector<KVCacheSpec> kv_cache_specs;
  int32_t max_in_flight_steps = 1;
  bool maps_kv_cache_on_demand = true;
  int64_t budget_bytes = 0;
  int64_t available_kv_cache_bytes = 0;
  std::string refusal;  // of the memory; empty: there is enough for all but the KV cache
};
// Throws as make_local_executor for what has nothing to do with memory.
PlannedRank plan_rank(const EngineConfig& config, const PlannedDevice& device);

// Writes the packed weights of all ranks to a directory; returns the files' paths. Throws as
// make_local_executor for the model and the device, ResourceExhausted for a file that cannot be written.
std::vector<std::string> pack_ranks(const EngineConfig& config, const std::string& directory);

// Ranks as threads of this process, but for rank 0, which runs on the caller's thread, inside launch and
// sample. With async_scheduling two steps may be in flight; on the host rank 0 has a thread then, too. Throws
// InvalidArgument for anything wrong with the model's directory.
std::unique_ptr<Executor> make_local_executor(const EngineConfig& config);
// On a backend of the caller's (worker/backend.h), whatever config.device says: a measurement puts functions
// of its own into the tables.
std::unique_ptr<Executor> make_local_executor(const EngineConfig& config, const Backend& backend);

}  // namespace quire
