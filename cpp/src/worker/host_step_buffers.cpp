// Steps on the host: done when they return.
#include <algorithm>

#include "worker/drafter.h"
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
  void append_sampled_tokens(InputBatch& batch, std::span<const int32_t> rows, int32_t ring_index) override {
    const std::span<const int32_t> tokens = sampler_->token_ids(ring_index);
    size_t i = 0;
    for (int32_t row : rows) {
      CachedRequestState& request = batch.request(row);
      const auto num_drafts = static_cast<size_t>(request.num_drafts);
      int32_t num_accepted = 0;
      if (num_drafts > 0) {
        num_accepted = num_accepted_drafts(tokens.subspan(i, num_drafts), request.draft_token_ids);
        batch.accept_drafts(request, num_accepted);  // their ids lie there already
      }
      const int32_t token = tokens[i + static_cast<size_t>(num_accepted)];
      // Without a token the request ends here.
      if (request.num_tokens < batch.max_model_len()) batch.append_token(request, std::max(token, 0));
      i += 1 + num_drafts;
    }
  }
};

}  // namespace

std::unique_ptr<StepBuffers> make_host_step_buffers(const KernelTable& ops, const StepBuffersConfig& config) {
  return std::make_unique<HostStepBuffers>(ops, config);
}

}  // namespace quire
