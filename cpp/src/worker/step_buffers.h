// What the steps in flight read and leave behind, on the host or on a device: their inputs, the sampler, and
// when they are done.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "sampler/sampler.h"
#include "worker/step_inputs.h"

namespace quire {

struct StepBuffersConfig {
  StepInputsConfig inputs;
  SamplerConfig sampler;
};

// One per worker, on its thread but for wait_for_step. A step's ring index is the sampler's.
class StepBuffers {
 public:
  virtual ~StepBuffers() = default;

  StepInputs& inputs() { return *inputs_; }
  Sampler& sampler() { return *sampler_; }

  // Whether stage_repeat of the inputs and of the sampler may take the place of stage after the step that was
  // staged last, once that has sampled.
  virtual bool can_repeat() const { return false; }
  // Before anything of a step is staged.
  virtual void begin_step() = 0;
  // When all of it was enqueued.
  virtual void end_step(int32_t ring_index) = 0;
  // Returns when the step that ended last with this index is done. On any thread.
  virtual void wait_for_step(int32_t ring_index) = 0;
  // Each of these rows of the batch gets what a step sampled for it, in the order of the rows: one token, or
  // with drafts those of them that were right and one more. Where the host cannot know that, the request gets
  // one and keeps its drafts. A row that is full gets none.
  virtual void append_sampled_tokens(InputBatch& batch, std::span<const int32_t> rows,
                                     int32_t ring_index) = 0;

 protected:
  std::unique_ptr<StepInputs> inputs_;
  std::unique_ptr<Sampler> sampler_;
};

std::unique_ptr<StepBuffers> make_host_step_buffers(const KernelTable& ops, const StepBuffersConfig& config);

// What make_device_step_buffers takes of its arena.
size_t device_step_buffers_bytes(const StepBuffersConfig& config);
// `launch.stream` is where every step runs.
std::unique_ptr<StepBuffers> make_device_step_buffers(const KernelTable& ops, const DeviceRuntime& runtime,
                                                      const LaunchContext& launch,
                                                      const StepBuffersConfig& config, DeviceArena& arena);

}  // namespace quire
