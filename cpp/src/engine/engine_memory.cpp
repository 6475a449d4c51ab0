// How an engine falls asleep, wakes up and takes new weights.
#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>

#include "engine/engine_impl.h"
#include "quire/engine.h"

namespace quire {
namespace {

constexpr auto kPoll = std::chrono::milliseconds(50);
// Requests that have ended at the front end leave the core with its next messages.
constexpr auto kSettleTime = std::chrono::seconds(30);

}  // namespace

EngineBase::Impl::Closed::Closed(Impl& impl, std::string why, UnfinishedRequests unfinished) : impl_(impl) {
  if (unfinished == UnfinishedRequests::kWait && !impl.is_threaded) {
    throw InvalidArgument(
        "an LLMEngine cannot wait for its requests, which finish in step(): call that until none is "
        "unfinished");
  }
  std::vector<RequestId> to_abort;
  {
    std::unique_lock lock(impl.mutex);
    const auto num_unfinished = [&impl] { return impl.output_processor->num_unfinished_requests(); };
    if (unfinished == UnfinishedRequests::kRefuse && num_unfinished() > 0) {
      throw InvalidArgument(str(why, ", and ", num_unfinished(),
                                " requests are unfinished: wait for them, or say that they may be aborted"));
    }
    impl.admission.closed = std::move(why) + "; try again later";
    if (unfinished == UnfinishedRequests::kAbort) {
      for (const std::string& id : impl.output_processor->request_ids())
        impl.output_processor->finish_request(id, FinishReason::kAbort, "", impl.undelivered, to_abort);
    }
    while (num_unfinished() > 0 && !impl.is_shut_down) impl.drained.wait_for(lock, kPoll);
  }
  if (!to_abort.empty()) impl.client->abort_requests(std::move(to_abort));
}

EngineBase::Impl::Closed::~Closed() {
  const std::lock_guard lock(impl_.mutex);
  impl_.update_closed();
}

void EngineBase::Impl::update_closed() {
  if (weights_are_gone && !kv_cache_is_gone) {
    admission.closed = "the engine has no weights: give them to update_weights, or call wake_up()";
  } else if (weights_are_gone || kv_cache_is_gone) {
    admission.closed = "the engine is asleep: wake_up() accepts requests again";
  } else {
    admission.closed.clear();
  }
}

void EngineBase::Impl::call_idle(const std::function<void(EngineCore&)>& task) {
  const auto begin = std::chrono::steady_clock::now();
  for (bool done = false; !done;) {
    client->call([&](EngineCore& core) {
      if (core.has_unfinished_requests()) return;
      done = true;
      task(core);
    });
    if (done) return;
    if (std::chrono::steady_clock::now() - begin > kSettleTime)
      throw InternalError("requests that have ended are still in the engine core");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void EngineBase::sleep(int32_t level, UnfinishedRequests unfinished) {
  impl_->owner.check();
  if (level != 1 && level != 2) {
    throw InvalidArgument(str("level must be 1 (weights are kept) or 2 (weights are dropped), got ", level));
  }
  if (unfinished == UnfinishedRequests::kKeep) {
    throw InvalidArgument(
        "a sleeping engine keeps no requests: their keys and values go with the KV cache; wait for them or "
        "abort "
        "them");
  }
  const std::lock_guard changes_memory(impl_->memory_mutex);
  const Impl::Closed closed(*impl_, "the engine is to sleep", unfinished);
  const auto is_asleep = [this] {
    const std::lock_guard lock(impl_->mutex);
    impl_->weights_are_gone = impl_->kv_cache_is_gone = true;
  };
  try {
    impl_->call_idle([level](EngineCore& core) { core.sleep(level); });
  } catch (const InvalidArgument&) {  // nothing has changed
    throw;
  } catch (...) {  // of some ranks something may be gone
    is_asleep();
    throw;
  }
  is_asleep();
}

void EngineBase::wake_up(const std::vector<std::string>& tags) {
  impl_->owner.check();
  bool weights = tags.empty(), kv_cache = tags.empty();
  for (const std::string& tag : tags) {
    if (tag != "weights" && tag != "kv_cache")
      throw InvalidArgument(str("tags must be \"weights\" or \"kv_cache\", got \"", tag, "\""));
    (tag == "weights" ? weights : kv_cache) = true;
  }
  const std::lock_guard changes_memory(impl_->memory_mutex);
  const auto take_back = [this](bool& is_gone, bool of_weights) {
    if (!is_gone) return;
    impl_->client->call([of_weights](EngineCore& core) { core.wake_up(of_weights, !of_weights); });
    const std::lock_guard lock(impl_->mutex);
    is_gone = false;
    impl_->update_closed();
  };
  if (weights) take_back(impl_->weights_are_gone, true);
  if (kv_cache) take_back(impl_->kv_cache_is_gone, false);
}

void EngineBase::Impl::update_weights(const WeightSource& source, const UpdateWeightsOptions& options) {
  owner.check();
  if (!config.kv_connector.empty()) {
    throw InvalidArgument(str("kv_connector '", config.kv_connector,
                              "': its store has keys and values of the old weights; make a new engine"));
  }
  const std::lock_guard changes_memory(memory_mutex);
  std::optional<Closed> closed;
  if (options.unfinished != UnfinishedRequests::kKeep)
    closed.emplace(*this, "the engine is to take new weights", options.unfinished);
  bool has_weights = !weights_are_gone;
  const auto update = [&](EngineCore& core) {
    try {
      core.update_weights(source);
    } catch (...) {
      has_weights = has_weights && core.has_weights();
      throw;
    }
    has_weights = true;
  };
  const auto note = [&] {
    const std::lock_guard lock(mutex);
    weights_are_gone = !has_weights;
    update_closed();
  };
  try {
    if (closed) {
      call_idle(update);
    } else {
      client->call(update);
    }
  } catch (...) {
    note();
    throw;
  }
  note();
}

void EngineBase::update_weights(const std::string& directory, const UpdateWeightsOptions& options) {
  if (directory.empty()) throw InvalidArgument("directory must be one with *.safetensors, got ''");
  impl_->update_weights({directory, {}, options.partial}, options);
}

void EngineBase::update_weights(const std::vector<WeightTensor>& tensors,
                                const UpdateWeightsOptions& options) {
  if (tensors.empty()) throw InvalidArgument("tensors must hold at least one");
  impl_->update_weights({{}, tensors, options.partial}, options);
}

bool EngineBase::is_sleeping() const {
  impl_->owner.check();
  const std::lock_guard lock(impl_->mutex);
  return impl_->weights_are_gone || impl_->kv_cache_is_gone;
}

}  // namespace quire
