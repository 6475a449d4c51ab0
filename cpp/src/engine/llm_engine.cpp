#include "engine/engine_impl.h"
#include "quire/engine.h"

namespace quire {

LLMEngine::LLMEngine(const EngineConfig& config) : EngineBase(config, /*threaded=*/false) {}
LLMEngine::~LLMEngine() = default;

std::string LLMEngine::add_request(EngineRequest request) {
  std::vector<Impl::Prepared> batch;
  batch.push_back(impl_->prepare(std::move(request), {}));
  std::string id = batch[0].request.request_id;
  impl_->submit(std::move(batch));
  return id;
}

bool LLMEngine::abort_request(const std::string& request_id) { return impl_->abort(request_id); }

bool LLMEngine::has_unfinished_requests() const {
  impl_->owner.check();
  const std::lock_guard lock(impl_->mutex);
  return impl_->output_processor->num_unfinished_requests() > 0 || !impl_->undelivered.empty();
}

std::vector<RequestOutput> LLMEngine::step() {
  impl_->owner.check();
  const std::lock_guard lock(impl_->step_mutex);
  std::vector<OutputProcessor::Delivery> deliveries;
  impl_->client->get_outputs(impl_->outputs);
  impl_->process(impl_->outputs);
  impl_->deliver(deliveries);
  std::vector<RequestOutput> result;
  for (auto& delivery : deliveries) result.push_back(std::move(delivery.output));
  return result;
}

}  // namespace quire
