#include "backend_state.h"

namespace quire::triton {

BackendState::BackendState(TRITONBACKEND_Backend* backend) {
  TRITONSERVER_Message* config = nullptr;  // the server's
  check(server_api().TRITONBACKEND_BackendConfig(backend, &config));
  settings_ = read_backend_settings(json_text(config, /*owned=*/false));
  response_pacer_ = std::make_unique<ResponsePacer>(settings_.response_burst);
}

BackendState::~BackendState() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  if (unloader_.joinable()) unloader_.join();
}

std::shared_ptr<const MetricFamilies> BackendState::metric_families() {
  const std::lock_guard lock(mutex_);
  if (!families_ && !no_metrics_) {
    try {
      families_ = std::make_shared<const MetricFamilies>();
    } catch (const ServerError& error) {
      no_metrics_ = true;
      log(TRITONSERVER_LOG_INFO, std::string("the engine's metrics are not reported: ") + error.what());
    }
  }
  return families_;
}

std::shared_ptr<KVArena> BackendState::kv_arena() {
  const std::lock_guard lock(mutex_);
  if (settings_.kv_arena_bytes == 0) {
    throw InvalidArgument(
        "parameter 'kv_arena' is \"shared\", but the server was started without --backend-config=quire,"
        "kv-arena-bytes=N");
  }
  if (!kv_arena_) kv_arena_ = make_kv_arena(settings_.kv_arena_bytes);
  return kv_arena_;
}

void BackendState::enroll(const std::string& model, uint64_t version, const CurrentFlag& flag) {
  const std::lock_guard lock(mutex_);
  auto& flags = loaded_[{model, version}];
  if (!flags.empty()) *flags.back() = false;
  flags.push_back(flag);
  *flag = true;
}

void BackendState::withdraw(const std::string& model, uint64_t version, const CurrentFlag& flag) {
  const std::lock_guard lock(mutex_);
  const auto found = loaded_.find({model, version});
  if (found == loaded_.end()) return;
  std::erase(found->second, flag);
  if (found->second.empty()) {
    loaded_.erase(found);
  } else {
    *found->second.back() = true;
  }
}

void BackendState::unload_later(TRITONSERVER_Server* server, std::string model, CurrentFlag flag) {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return;
    to_unload_.push_back({server, std::move(model), std::move(flag)});
    if (!unloader_.joinable()) unloader_ = std::thread([this] { unload_loop(); });
  }
  wake_.notify_all();
}

void BackendState::unload_loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stopping_ || !to_unload_.empty(); });
    if (stopping_) return;
    const Failed failed = std::move(to_unload_.front());
    to_unload_.pop_front();
    lock.unlock();
    if (*failed.is_current) {
      // Not inside enter_server: this waits for the model's own threads, and those for the gate.
      log(TRITONSERVER_LOG_ERROR, "the engine of model '" + failed.model + "' has failed; unloading it");
      log_failure(server_api().TRITONSERVER_ServerUnloadModel(failed.server, failed.model.c_str()),
                  "unloading a failed model");
    } else {
      log(TRITONSERVER_LOG_ERROR,
          "the old engine of model '" + failed.model + "', which was reloaded, has failed");
    }
    lock.lock();
  }
}

}  // namespace quire::triton
