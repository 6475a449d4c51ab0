#include "engine/engine_core_client.h"

#include <condition_variable>
#include <deque>
#include <future>
#include <mutex>
#include <thread>

#include "util/check.h"
#include "util/log.h"

namespace quire {
namespace {

class InlineClient final : public EngineCoreClient {
 public:
  explicit InlineClient(std::unique_ptr<EngineCore> core) : core_(std::move(core)) {}

  void add_request(EngineCoreRequest&& request) override {
    check_alive();
    core_->add_request(std::move(request));
  }
  void abort_requests(std::vector<RequestId> request_ids) override { core_->abort_requests(request_ids); }
  bool reset_prefix_cache() override { return core_->reset_prefix_cache(); }
  SchedulerStats stats() override { return core_->scheduler().stats(); }
  bool get_outputs(EngineCoreOutputs& outputs) override {
    check_alive();
    try {
      return core_->step_once(outputs);
    } catch (const std::exception& error) {
      outputs.outputs.clear();
      outputs.engine_error = error_ = error.what();
      return true;
    }
  }
  void close() override {}
  const ModelInfo& model_info() const override { return core_->model_info(); }

 private:
  void check_alive() const {
    if (!error_.empty()) throw ResourceExhausted("the engine has ended: " + error_);
  }

  std::unique_ptr<EngineCore> core_;
  std::string error_;
};

// The engine core on its own thread. Messages in and results out go through two queues.
class ThreadedClient final : public EngineCoreClient {
 public:
  explicit ThreadedClient(std::unique_ptr<EngineCore> core)
      : core_(std::move(core)),
        model_info_(core_->model_info()),
        stats_(core_->scheduler().stats()),
        thread_([this] { run(); }) {}
  ~ThreadedClient() override {
    close();
    thread_.join();
  }

  void add_request(EngineCoreRequest&& request) override {
    const std::lock_guard lock(mutex_);
    if (!error_.empty()) throw ResourceExhausted("the engine has ended: " + error_);
    new_requests_.push_back(std::move(request));
    arrived_.notify_one();
  }
  void abort_requests(std::vector<RequestId> request_ids) override {
    const std::lock_guard lock(mutex_);
    aborted_.insert(aborted_.end(), request_ids.begin(), request_ids.end());
    arrived_.notify_one();
    outputs_.emplace_back();
    produced_.notify_all();
  }
  bool reset_prefix_cache() override {
    std::future<bool> done;
    {
      const std::lock_guard lock(mutex_);
      if (closed_ || !error_.empty()) return false;
      done = resets_.emplace_back().get_future();
      arrived_.notify_one();
    }
    return done.get();
  }
  SchedulerStats stats() override {
    const std::lock_guard lock(mutex_);
    return stats_;
  }
  bool get_outputs(EngineCoreOutputs& outputs) override {
    std::unique_lock lock(mutex_);
    produced_.wait(lock, [this] { return closed_ || !outputs_.empty(); });
    if (closed_) return false;
    outputs = std::move(outputs_.front());
    outputs_.pop_front();
    return true;
  }
  void close() override {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    arrived_.notify_one();
    produced_.notify_all();
  }
  const ModelInfo& model_info() const override { return model_info_; }

 private:
  void run() {
    EngineCoreOutputs outputs;
    try {
      while (take_messages()) {
        outputs = {};
        const bool stepped = core_->step_once(outputs);
        const std::lock_guard lock(mutex_);
        stats_ = core_->scheduler().stats();
        if (stepped && !outputs.outputs.empty()) {
          outputs_.push_back(std::move(outputs));
          produced_.notify_all();
        }
      }
    } catch (const std::exception& error) {
      log(LogLevel::kError, "the engine has ended: ", error.what());
      const std::lock_guard lock(mutex_);
      error_ = error.what();
      outputs_.push_back({{}, stats_, error_});
      produced_.notify_all();
    }
    const std::lock_guard lock(mutex_);
    for (auto& reset : resets_) reset.set_value(false);
    resets_.clear();
    if (error_.empty()) error_ = "it was shut down";
  }

  // Applies what has arrived; sleeps while there is nothing to do. Returns false when closed.
  bool take_messages() {
    std::vector<std::promise<bool>> resets;
    {
      std::unique_lock lock(mutex_);
      arrived_.wait(lock, [this] {
        return closed_ || core_->has_unfinished_requests() || !new_requests_.empty() || !aborted_.empty() ||
               !resets_.empty();
      });
      if (closed_) return false;
      taken_requests_.swap(new_requests_);
      taken_aborts_.swap(aborted_);
      resets.swap(resets_);
    }
    for (EngineCoreRequest& request : taken_requests_) core_->add_request(std::move(request));
    core_->abort_requests(taken_aborts_);
    taken_requests_.clear();
    taken_aborts_.clear();
    for (auto& reset : resets) reset.set_value(core_->reset_prefix_cache());
    return true;
  }

  std::unique_ptr<EngineCore> core_;  // the thread's, once it runs
  const ModelInfo model_info_;

  std::mutex mutex_;
  std::condition_variable arrived_, produced_;
  std::vector<EngineCoreRequest> new_requests_;
  std::vector<RequestId> aborted_;
  std::vector<std::promise<bool>> resets_;
  std::deque<EngineCoreOutputs> outputs_;
  SchedulerStats stats_;
  std::string error_;
  bool closed_ = false;

  std::vector<EngineCoreRequest> taken_requests_;  // the thread's scratch
  std::vector<RequestId> taken_aborts_;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<EngineCoreClient> make_inline_client(std::unique_ptr<EngineCore> core) {
  return std::make_unique<InlineClient>(std::move(core));
}

std::unique_ptr<EngineCoreClient> make_threaded_client(std::unique_ptr<EngineCore> core) {
  return std::make_unique<ThreadedClient>(std::move(core));
}

}  // namespace quire
