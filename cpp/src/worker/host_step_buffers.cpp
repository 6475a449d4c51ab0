// Steps on the host: done when they return.
#include <algorithm>

#include "worker/step_buffers.h"

namespace quire {
namespace {

class HostStepBuffers final : public StepBuffers {
 public:
  HostStepBuffers(const KernelTable& ops, const StepBuffersConfig& config) {
    inputs_ = make_host_inputs(config.inputs);
    sampler_ = make_host_sampler(ops, config.sampler);
  }

  void begin_step() override {}
  void end_step(int32_t) override {}
  void wait_for_step(int32_t) override {}
  void append_sampled_token(InputBatch& batch, CachedRequestState& request, int32_t ring_index,
                            size_t index) override {
    // Without a token the request ends here.
    batch.append_token(request, std::max(sampler_->token_ids(ring_index)[index], 0));
  }
};

}  // namespace

std::unique_ptr<StepBuffers> make_host_step_buffers(const KernelTable& ops, const StepBuffersConfig& config) {
  return std::make_unique<HostStepBuffers>(ops, config);
}

}  // namespace quire
