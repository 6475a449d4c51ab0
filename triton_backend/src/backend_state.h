// What all models of this backend share.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "metric_reporter.h"
#include "model_config.h"
#include "quire/engine.h"
#include "response_pacer.h"

namespace quire::triton {

// One for the process, from TRITONBACKEND_Initialize to TRITONBACKEND_Finalize. Thread-safe.
class BackendState {
 public:
  // Reads the command line's --backend-config=quire,... Throws InvalidArgument.
  explicit BackendState(TRITONBACKEND_Backend* backend);
  ~BackendState();
  BackendState(const BackendState&) = delete;
  BackendState& operator=(const BackendState&) = delete;

  // Null when the server reports no metrics.
  std::shared_ptr<const MetricFamilies> metric_families();
  // The memory that models with kv_arena "shared" share. Throws InvalidArgument without kv-arena-bytes.
  std::shared_ptr<KVArena> kv_arena();
  std::chrono::seconds exit_grace() const { return std::chrono::seconds(settings_.exit_grace_secs); }
  ResponsePacer& response_pacer() { return *response_pacer_; }
  // A model has been loaded. During a reload there are two of a name and version; the newest is the current
  // one, whose flag is set.
  using CurrentFlag = std::shared_ptr<std::atomic<bool>>;
  void enroll(const std::string& model, uint64_t version, const CurrentFlag& flag);
  void withdraw(const std::string& model, uint64_t version, const CurrentFlag& flag);
  // Makes the model not ready, so that health checks see it and a reload revives it, unless it has been
  // replaced by then. On a thread that outlives the model: unloading it waits for the model's own.
  void unload_later(TRITONSERVER_Server* server, std::string model, CurrentFlag flag);

 private:
  void unload_loop();

  BackendSettings settings_;
  std::unique_ptr<ResponsePacer> response_pacer_;
  std::mutex mutex_;
  std::shared_ptr<const MetricFamilies> families_;
  bool no_metrics_ = false;
  std::shared_ptr<KVArena> kv_arena_;
  std::condition_variable wake_;
  struct Failed {
    TRITONSERVER_Server* server;
    std::string model;
    CurrentFlag is_current;
  };
  std::deque<Failed> to_unload_;
  std::map<std::pair<std::string, uint64_t>, std::vector<CurrentFlag>> loaded_;  // oldest first
  bool stopping_ = false;
  std::thread unloader_;  // started by the first model that fails
};

}  // namespace quire::triton
