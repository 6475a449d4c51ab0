#include "engine/engine_core_client.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <future>
#include <iterator>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "util/check.h"
#include "util/log.h"
#include "util/ring_queue.h"
#include "util/thread_name.h"

namespace quire {
namespace {

constexpr const char* kShutDown = "it was shut down";

// Since when a thread has been at one thing, for others to ask.
class Watch {
 public:
  void begin() { since_.store(now(), std::memory_order_relaxed); }
  void end() { since_.store(kIdle, std::memory_order_relaxed); }
  double seconds() const {
    const int64_t since = since_.load(std::memory_order_relaxed);
    return since == kIdle ? 0.0 : static_cast<double>(std::max<int64_t>(now() - since, 0)) * 1e-9;
  }

 private:
  static constexpr int64_t kIdle = 0;
  static int64_t now() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
  std::atomic<int64_t> since_{kIdle};
};

// Ends with its scope.
class Watched {
 public:
  explicit Watched(Watch& watch) : watch_(watch) { watch_.begin(); }
  ~Watched() { watch_.end(); }
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;

 private:
  Watch& watch_;
};

// Workers may have threads of their own: when this returns, none of them computes a step any more.
void finish_steps(EngineCore& core) {
  EngineCoreOutputs outputs;
  core.hold_launches(true);
  while (core.has_steps_in_flight()) core.step_once(outputs);
}

// One caller at a time: whoever comes during a step waits for its end.
class InlineClient final : public EngineCoreClient {
 public:
  explicit InlineClient(std::unique_ptr<EngineCore> core) : core_(std::move(core)) {}

  void add_requests(std::vector<EngineCoreRequest>&& requests) override {
    const std::lock_guard lock(mutex_);
    check_alive();
    for (EngineCoreRequest& request : requests) core_->add_request(std::move(request));
  }
  // What has failed is left alone.
  void abort_requests(std::vector<RequestId> request_ids) override {
    const std::lock_guard lock(mutex_);
    if (error_.empty()) core_->abort_requests(request_ids);
  }
  bool reset_prefix_cache() override {
    const std::lock_guard lock(mutex_);
    return error_.empty() && core_->reset_prefix_cache();
  }
  void set_pause_state(PauseState state) override {
    const std::lock_guard lock(mutex_);
    if (error_.empty()) core_->set_pause_state(state);
  }
  SchedulerStats stats() override {
    const std::lock_guard lock(mutex_);
    return core_->stats();
  }
  void call(const std::function<void(EngineCore&)>& task) override {
    const std::lock_guard lock(mutex_);
    check_alive();
    core_->hold_launches(true);
    while (core_->has_steps_in_flight() && error_.empty()) step_once(left_.push());
    core_->hold_launches(false);
    check_alive();
    task(*core_);
  }
  double seconds_since_progress() const override { return watch_.seconds(); }
  bool get_outputs(EngineCoreOutputs& outputs) override {
    const std::lock_guard lock(mutex_);
    if (!left_.empty()) {
      std::swap(outputs, left_.front());
      left_.pop();
      return true;
    }
    check_alive();
    return step_once(outputs);
  }
  bool try_get_outputs(EngineCoreOutputs&) override { return false; }
  void dump_flight_recorder(const std::string& path) override { core_->dump_flight_recorder(path); }
  void close() override {
    const std::lock_guard lock(mutex_);
    if (!error_.empty()) return;
    error_ = kShutDown;
    try {
      finish_steps(*core_);
    } catch (const std::exception&) {  // nobody waits for them
    }
  }
  const ModelInfo& model_info() const override { return core_->model_info(); }

 private:
  void check_alive() const {
    if (!error_.empty()) throw ResourceExhausted("the engine has ended: " + error_);
  }
  bool step_once(EngineCoreOutputs& outputs) {
    const Watched watched(watch_);
    try {
      return core_->step_once(outputs);
    } catch (const std::exception& error) {
      core_->dump_after_failure();
      outputs.clear();
      outputs.engine_error = error_ = error.what();
      return true;
    }
  }

  std::mutex mutex_;
  std::unique_ptr<EngineCore> core_;
  std::string error_;
  RingQueue<EngineCoreOutputs> left_;  // of steps that a call had to wait for
  Watch watch_;
};

// Requests that wait for something outside the engine (remote keys and values, a grammar) are looked after
// this often when no step can be scheduled.
constexpr auto kStalledPoll = std::chrono::milliseconds(1);

// What changes only when a step, or the end of a request, has changed something.
bool shows_change(const SchedulerStats& before, const SchedulerStats& now) {
  return before.num_running_reqs != now.num_running_reqs || before.num_waiting_reqs != now.num_waiting_reqs ||
         before.num_used_blocks != now.num_used_blocks ||
         before.prefix_cache_queries != now.prefix_cache_queries ||
         before.num_preemptions != now.num_preemptions ||
         before.num_full_graph_steps != now.num_full_graph_steps ||
         before.num_piecewise_graph_steps != now.num_piecewise_graph_steps ||
         before.num_eager_steps != now.num_eager_steps;
}

// The engine core on its own thread. Messages in and results out go through two queues.
class ThreadedClient final : public EngineCoreClient {
 public:
  ThreadedClient(const EngineCoreFactory& make_core, bool reports_stats)
      : reports_stats_(reports_stats),
        core_(make_core([this] { wake(); })),
        model_info_(core_->model_info()),
        stats_(core_->stats()),
        thread_([this] {
          name_this_thread("quire-core");
          run();
        }) {}
  ~ThreadedClient() override { close(); }

  void add_requests(std::vector<EngineCoreRequest>&& requests) override {
    const std::lock_guard lock(mutex_);
    if (!error_.empty()) throw ResourceExhausted("the engine has ended: " + error_);
    std::ranges::move(requests, std::back_inserter(new_requests_));
    arrived_.notify_one();
  }
  void abort_requests(std::vector<RequestId> request_ids) override {
    const std::lock_guard lock(mutex_);
    aborted_.insert(aborted_.end(), request_ids.begin(), request_ids.end());
    arrived_.notify_one();
    push_outputs();
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
  void set_pause_state(PauseState state) override {
    const std::lock_guard lock(mutex_);
    pause_state_ = state;
    arrived_.notify_one();
  }
  SchedulerStats stats() override {
    const std::lock_guard lock(mutex_);
    return stats_;
  }
  void call(const std::function<void(EngineCore&)>& task) override {
    std::future<std::exception_ptr> done;
    {
      const std::lock_guard lock(mutex_);
      if (closed_ || !error_.empty()) throw ResourceExhausted(has_ended());
      done = calls_.emplace_back(task, std::promise<std::exception_ptr>()).second.get_future();
      arrived_.notify_one();
    }
    if (std::exception_ptr error = done.get()) std::rethrow_exception(std::move(error));
  }
  double seconds_since_progress() const override { return watch_.seconds(); }
  bool get_outputs(EngineCoreOutputs& outputs) override {
    std::unique_lock lock(mutex_);
    produced_.wait(lock, [this] { return closed_ || !outputs_.empty(); });
    if (closed_) return false;
    pop_outputs(outputs);
    return true;
  }
  bool try_get_outputs(EngineCoreOutputs& outputs) override {
    const std::lock_guard lock(mutex_);
    if (closed_ || outputs_.empty()) return false;
    pop_outputs(outputs);
    return true;
  }
  void dump_flight_recorder(const std::string& path) override { core_->dump_flight_recorder(path); }
  void close() override {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
      arrived_.notify_one();
      produced_.notify_all();
    }
    const std::lock_guard lock(join_mutex_);
    if (thread_.joinable()) thread_.join();
  }
  const ModelInfo& model_info() const override { return model_info_; }

 private:
  void run() {
    EngineCoreOutputs outputs;
    try {
      while (take_messages()) {
        stalled_ = !core_->step_once(outputs);
        const std::lock_guard lock(mutex_);
        const bool changed = reports_stats_ && shows_change(stats_, outputs.scheduler_stats);
        stats_ = outputs.scheduler_stats;
        running_loras_ = outputs.running_loras;
        if (changed || !outputs.outputs.empty() || !outputs.kv_events.empty())
          std::swap(push_outputs(), outputs);
      }
      finish_steps(*core_);
    } catch (const std::exception& error) {
      report_failure(error);
      watch_.end();  // before anyone hears of the end
      const std::lock_guard lock(mutex_);
      error_ = error.what();
      push_outputs().engine_error = error_;
    }
    const std::lock_guard lock(mutex_);
    watch_.end();
    for (auto* left : {&taken_resets_, &resets_}) {
      for (auto& reset : *left) reset.set_value(false);
      left->clear();
    }
    if (error_.empty()) error_ = kShutDown;
    for (auto* left : {&taken_calls_, &calls_}) {
      for (auto& [task, done] : *left)
        done.set_value(std::make_exception_ptr(ResourceExhausted(has_ended())));
      left->clear();
    }
  }

  // Called with the mutex held.
  std::string has_ended() const {
    return "the engine has ended: " + (error_.empty() ? std::string(kShutDown) : error_);
  }

  // What can be told; an engine that ends for want of memory may have none for this either.
  void report_failure(const std::exception& failure) noexcept {
    try {
      log(LogLevel::kError, "the engine has ended: ", failure.what());
      core_->dump_after_failure();
    } catch (const std::exception&) {  // whoever waits for outputs is told next, and that is what matters
    }
  }

  // An empty one at the end of the queue, in used buffers. The caller holds the mutex.
  EngineCoreOutputs& push_outputs() {
    EngineCoreOutputs& outputs = outputs_.push();
    outputs.clear();
    outputs.scheduler_stats = stats_;
    outputs.running_loras = running_loras_;
    produced_.notify_all();
    return outputs;
  }

  // The oldest; the caller holds the mutex, and there is one.
  void pop_outputs(EngineCoreOutputs& outputs) {
    std::swap(outputs, outputs_.front());
    outputs_.pop();
  }

  // Called by other engines, which hold locks of what they share with this one.
  void wake() {
    const std::lock_guard lock(mutex_);
    woken_ = true;
    arrived_.notify_one();
  }

  // Applies what has arrived; sleeps while there is nothing to do, and for a moment when nothing can be done
  // yet. Returns false when closed.
  bool take_messages() {
    // Not with the mutex held: the core may take a lock that another engine holds while it calls wake().
    const bool has_work = core_->has_unfinished_requests() || core_->has_background_work();
    {
      std::unique_lock lock(mutex_);
      const auto has_messages = [this] {
        return closed_ || woken_ || pause_state_ || !new_requests_.empty() || !aborted_.empty() ||
               !resets_.empty() || !calls_.empty();
      };
      if (!taken_calls_.empty()) {
        // The steps that they wait for come back now.
      } else if (!has_work) {
        watch_.end();
        arrived_.wait(lock, has_messages);
      } else if (stalled_) {
        arrived_.wait_for(lock, kStalledPoll, has_messages);
      }
      if (closed_) return false;
      woken_ = false;
      taken_pause_state_ = std::exchange(pause_state_, std::nullopt);
      taken_requests_.swap(new_requests_);
      taken_aborts_.swap(aborted_);
      taken_resets_.swap(resets_);
      std::ranges::move(calls_, std::back_inserter(taken_calls_));
      calls_.clear();
    }
    watch_.begin();
    if (taken_pause_state_) core_->set_pause_state(*taken_pause_state_);
    for (EngineCoreRequest& request : taken_requests_) core_->add_request(std::move(request));
    if (!taken_aborts_.empty()) core_->abort_requests(taken_aborts_);
    taken_requests_.clear();
    taken_aborts_.clear();
    for (; !taken_resets_.empty(); taken_resets_.pop_back()) {
      taken_resets_.back().set_value(core_->reset_prefix_cache());
    }
    if (!taken_calls_.empty()) run_calls();
    return true;
  }

  // As soon as no step is in flight.
  void run_calls() {
    core_->hold_launches(core_->has_steps_in_flight());
    if (core_->has_steps_in_flight()) return;
    watch_.end();
    for (auto& [task, done] : taken_calls_) {
      // Handed over as a value, when this thread has let go of it: who called has it alone.
      std::exception_ptr error;
      try {
        task(*core_);
      } catch (...) {
        error = std::current_exception();
      }
      done.set_value(std::move(error));
    }
    taken_calls_.clear();
    watch_.begin();
  }

  std::mutex mutex_;  // outlives the core, which may still be called to wake
  std::condition_variable arrived_, produced_;
  std::vector<EngineCoreRequest> new_requests_;
  std::vector<RequestId> aborted_;
  std::vector<std::promise<bool>> resets_;
  using Call = std::pair<std::function<void(EngineCore&)>, std::promise<std::exception_ptr>>;
  std::vector<Call> calls_;
  RingQueue<EngineCoreOutputs> outputs_;
  std::optional<PauseState> pause_state_;
  std::string error_;
  bool closed_ = false;
  bool woken_ = false;
  const bool reports_stats_;

  std::unique_ptr<EngineCore> core_;  // the thread's, once it runs
  const ModelInfo model_info_;
  SchedulerStats stats_;  // guarded by the mutex, like the next
  std::vector<RunningLora> running_loras_;

  std::vector<EngineCoreRequest> taken_requests_;  // the thread's, like what follows
  std::vector<RequestId> taken_aborts_;
  std::optional<PauseState> taken_pause_state_;
  std::vector<std::promise<bool>> taken_resets_;
  std::vector<Call> taken_calls_;
  bool stalled_ = false;  // the last step had nothing to do
  Watch watch_;
  std::mutex join_mutex_;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<EngineCoreClient> make_inline_client(std::unique_ptr<EngineCore> core) {
  return std::make_unique<InlineClient>(std::move(core));
}

std::unique_ptr<EngineCoreClient> make_threaded_client(std::unique_ptr<EngineCore> core) {
  return make_threaded_client([&core](const auto&) { return std::move(core); });
}

std::unique_ptr<EngineCoreClient> make_threaded_client(const EngineCoreFactory& make_core,
                                                       bool reports_stats) {
  return std::make_unique<ThreadedClient>(make_core, reports_stats);
}

}  // namespace quire
