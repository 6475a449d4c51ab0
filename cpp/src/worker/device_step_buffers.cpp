// Steps on a device: enqueued, and done when their event is.
#include "worker/step_buffers.h"

namespace quire {
namespace {

// All that steps have of the device's memory besides activations: placed, or with a measuring arena measured,
// by the same lines.
struct DeviceStepMemory {
  DeviceStepMemory(const StepBuffersConfig& config, DeviceArena& arena)
      : staging_bytes_per_step(device_inputs_staging_bytes(config.inputs) +
                               device_sampler_staging_bytes(config.sampler)),
        staging(arena.allocate(StagingRing::device_bytes(staging_bytes_per_step, config.sampler.ring_size))),
        sampler(config.sampler, arena),
        inputs(config.inputs, arena) {}

  size_t staging_bytes_per_step;
  std::byte* staging;
  DeviceSamplerMemory sampler;
  DeviceInputsMemory inputs;
};

class DeviceStepBuffers final : public StepBuffers {
 public:
  DeviceStepBuffers(const KernelTable& ops, const DeviceRuntime& runtime, const LaunchContext& launch,
                    const StepBuffersConfig& config, const DeviceStepMemory& memory)
      : runtime_(runtime),
        launch_(launch),
        staging_(runtime, memory.staging, memory.staging_bytes_per_step, config.sampler.ring_size) {
    // Steps of padding come first, and have none: no segments, and no row has a slot.
    if (memory.inputs.loras != nullptr) {
      check_device(runtime,
                   runtime.fill(memory.inputs.loras, 0xFF, lora_inputs_bytes(config.inputs), launch.stream),
                   "clearing the adapters' rows");
      check_device(runtime, runtime.fill(memory.inputs.loras, 0, 2 * sizeof(int32_t), launch.stream),
                   "clearing the adapters' rows");
    }
    inputs_ = make_device_inputs(config.inputs, *ops.batch, memory.inputs, staging_);
    sampler_ = make_device_sampler(ops, config.sampler, memory.sampler, staging_, launch.stream);
    for (int32_t i = 0; i < config.sampler.ring_size; ++i) done_.push_back(make_event(runtime));
  }
  // Nothing may still use what goes now. Not the whole device: another engine may be capturing a graph.
  ~DeviceStepBuffers() override { runtime_.synchronize_stream(launch_.stream); }

  bool can_repeat() const override { return sampler_->can_repeat(); }
  void begin_step() override { staging_.begin_step(); }
  void end_step(int32_t ring_index) override {
    check_device(runtime_, runtime_.record_event(done(ring_index), launch_.stream), "recording an event");
  }
  void wait_for_step(int32_t ring_index) override {
    check_device(runtime_, runtime_.synchronize_event(done(ring_index)), "computing a step");
  }
  void append_sampled_tokens(InputBatch& batch, std::span<const int32_t> rows, int32_t) override {
    for (int32_t row : rows) {
      CachedRequestState& request = batch.request(row);
      if (request.num_tokens < batch.max_model_len()) batch.append_unknown_token(request);
    }
  }

 private:
  void* done(int32_t ring_index) const { return done_[static_cast<size_t>(ring_index)].get(); }

  const DeviceRuntime& runtime_;
  const LaunchContext& launch_;
  StagingRing staging_;
  std::vector<DeviceEvent> done_;
};

}  // namespace

size_t device_step_buffers_bytes(const StepBuffersConfig& config) {
  const auto counter = make_measuring_arena();
  const DeviceStepMemory measured(config, *counter);
  return counter->used();
}

std::unique_ptr<StepBuffers> make_device_step_buffers(const KernelTable& ops, const DeviceRuntime& runtime,
                                                      const LaunchContext& launch,
                                                      const StepBuffersConfig& config, DeviceArena& arena) {
  return std::make_unique<DeviceStepBuffers>(ops, runtime, launch, config, DeviceStepMemory(config, arena));
}

}  // namespace quire
