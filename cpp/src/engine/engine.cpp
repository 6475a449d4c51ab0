#include "quire/engine.h"

#include <signal.h>
#include <unistd.h>

#include "engine/engine_impl.h"
#include "util/log.h"
#include "util/thread_name.h"

namespace quire {

// Results of this many steps that wait together become one delivery.
constexpr int kMaxMergedSteps = 64;

Engine::Engine(const EngineConfig& config) : EngineBase(config, /*threaded=*/true) {
  impl_->output_thread = std::thread([impl = impl_.get()] {
    name_this_thread("quire-output");
    EngineCoreOutputs outputs;
    std::vector<OutputProcessor::Delivery> deliveries;
    while (impl->client->get_outputs(outputs)) {
      impl->process(outputs);
      // What waits already is told together; bounded, so that a fast engine does not keep it waiting.
      for (int i = 1; i < kMaxMergedSteps && impl->client->try_get_outputs(outputs); ++i)
        impl->process(outputs);
      const bool has_died = impl->deliver(deliveries);
      for (auto& delivery : deliveries) {
        // A callback that throws loses its own output, not the engine.
        try {
          if (delivery.callback) delivery.callback(std::move(delivery.output));
        } catch (const std::exception& error) {
          log(LogLevel::kError, "an output callback threw: ", error.what());
        }
      }
      deliveries.clear();  // what callbacks hold on to goes when their request has ended
      impl->finish_delivery();
      if (!has_died || !impl->config.exit_on_dead) continue;
      log(LogLevel::kError, "exit_on_dead: ending the process");
      kill(getpid(), SIGTERM);
    }
  });
}

Engine::~Engine() { shutdown(); }

std::string Engine::add_request(EngineRequest request, OutputCallback callback) {
  std::vector<EngineRequest> requests;
  std::vector<OutputCallback> callbacks;
  requests.push_back(std::move(request));
  callbacks.push_back(std::move(callback));
  return add_requests(std::move(requests), std::move(callbacks)).front();
}

std::vector<std::string> Engine::add_requests(std::vector<EngineRequest> requests,
                                              std::vector<OutputCallback> callbacks) {
  if (callbacks.size() != requests.size()) {
    throw InvalidArgument(
        str("callbacks has ", callbacks.size(), " entries for ", requests.size(), " requests"));
  }
  std::vector<Impl::Prepared> batch;
  std::vector<std::string> ids;
  for (size_t i = 0; i < requests.size(); ++i) {
    try {
      batch.push_back(impl_->prepare(std::move(requests[i]), std::move(callbacks[i])));
    } catch (const InvalidArgument& error) {
      if (requests.size() == 1) throw;
      throw InvalidRequest(i, error.what());
    }
    ids.push_back(batch.back().request.request_id);
  }
  impl_->submit(std::move(batch));
  return ids;
}

bool Engine::drain(std::chrono::milliseconds timeout) {
  impl_->owner.check();
  std::unique_lock lock(impl_->mutex);
  impl_->admission.draining = true;
  return impl_->drained.wait_for(lock, timeout, [this] {
    return impl_->output_processor->num_unfinished_requests() == 0 && impl_->undelivered.empty() &&
           !impl_->delivering;
  });
}

bool Engine::is_draining() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->admission.draining;
}

void Engine::set_delivery_listener(std::function<void()> listener) {
  const std::lock_guard lock(impl_->listener_mutex);
  impl_->delivery_listener = std::move(listener);
}

bool Engine::abort_request(const std::string& request_id) { return impl_->abort(request_id); }

void Engine::abort_all_requests() {
  std::vector<std::string> ids;
  {
    const std::lock_guard lock(impl_->mutex);
    ids = impl_->output_processor->request_ids();
  }
  for (const std::string& id : ids) impl_->abort(id);
}

std::vector<RequestOutput> Engine::generate(std::vector<EngineRequest> requests) {
  struct Wait {
    std::mutex mutex;
    std::condition_variable all_done;
    std::vector<RequestOutput> outputs;
    size_t num_left = 0;
  };
  const auto wait = std::make_shared<Wait>();
  wait->outputs.resize(requests.size());
  wait->num_left = requests.size();
  std::vector<OutputCallback> callbacks;
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].sampling_params.output_kind = RequestOutputKind::kFinalOnly;
    callbacks.push_back([wait, i](RequestOutput&& output) {
      const std::lock_guard lock(wait->mutex);
      wait->outputs[i] = std::move(output);
      if (--wait->num_left == 0) wait->all_done.notify_all();
    });
  }
  add_requests(std::move(requests), std::move(callbacks));
  std::unique_lock lock(wait->mutex);
  wait->all_done.wait(lock, [&] { return wait->num_left == 0; });
  return std::move(wait->outputs);
}

}  // namespace quire
