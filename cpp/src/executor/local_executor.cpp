#include <algorithm>
#include <condition_variable>
#include <exception>
#include <future>
#include <limits>
#include <map>
#include <mutex>
#include <ranges>
#include <span>
#include <thread>

#include "distributed/peer_communicator.h"
#include "executor/executor.h"
#include "executor/resolved_config.h"
#include "formats/hf_config.h"
#include "models/model_registry.h"
#include "util/check.h"
#include "util/ring_queue.h"
#include "util/thread_name.h"
#include "worker/worker.h"

namespace quire {
namespace {

// A step's way through one rank.
struct Step {
  const SchedulerOutput* scheduler_output = nullptr;
  const GrammarOutput* grammar = nullptr;
  bool sample_requested = false;
};

// One worker and, when threaded, the thread it runs on; else it runs within launch and sample.
class Rank {
 public:
  Rank(std::unique_ptr<Worker> worker, bool threaded) : worker_(std::move(worker)) {
    if (threaded)
      thread_ = std::thread([this] {
        name_this_thread("quire-worker");
        run();
      });
  }
  ~Rank() {
    if (!thread_.joinable()) return;
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  Worker& worker() { return *worker_; }

  void launch(const SchedulerOutput& scheduler_output) {
    if (!thread_.joinable()) {
      QUIRE_CHECK(steps_.empty(), "step ", steps_.front().scheduler_output->step_id, " is not sampled");
      steps_.push() = {&scheduler_output, nullptr, false};
      worker_->execute_model(scheduler_output);
      return;
    }
    const std::lock_guard lock(mutex_);
    steps_.push() = {&scheduler_output, nullptr, false};
    changed_.notify_all();
  }
  void sample(StepId step_id, const GrammarOutput* grammar) {
    if (!thread_.joinable()) {
      QUIRE_CHECK(!steps_.empty() && steps_.front().scheduler_output->step_id == step_id, "step ", step_id,
                  " was not launched");
      outcomes_.push() = worker_->sample_tokens(*steps_.front().scheduler_output, grammar);
      steps_.pop();
      return;
    }
    const std::lock_guard lock(mutex_);
    size_t i = 0;
    while (i < steps_.size() && steps_[i].scheduler_output->step_id != step_id) ++i;
    QUIRE_CHECK(i < steps_.size(), "step ", step_id, " was not launched");
    steps_[i].grammar = grammar;
    steps_[i].sample_requested = true;
    changed_.notify_all();
  }
  void collect(StepId step_id, ModelRunnerOutput& output) {
    std::unique_lock lock(mutex_);
    if (thread_.joinable()) sampled_.wait(lock, [&] { return !outcomes_.empty(); });
    QUIRE_CHECK(!outcomes_.empty() && outcomes_.front().step_id == step_id, "step ", step_id,
                " is not the oldest");
    const StepOutcome outcome = std::move(outcomes_.front());
    outcomes_.pop();
    lock.unlock();
    worker_->finish_step(outcome, output);
  }

 private:
  // Only this thread takes steps from the queue: the front may move while the lock is open, but stays the
  // front.
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return stop_ || !steps_.empty(); });
      // What was launched is finished first: ranks meet inside a step, and all must see the same last one.
      if (steps_.empty()) return;
      const SchedulerOutput& scheduler_output = *steps_.front().scheduler_output;
      lock.unlock();
      worker_->execute_model(scheduler_output);
      lock.lock();
      changed_.wait(lock, [this] { return stop_ || steps_.front().sample_requested; });
      if (!steps_.front().sample_requested) return;
      const GrammarOutput* grammar = steps_.front().grammar;
      lock.unlock();
      StepOutcome outcome = worker_->sample_tokens(scheduler_output, grammar);
      lock.lock();
      steps_.pop();
      outcomes_.push() = std::move(outcome);
      sampled_.notify_all();
    }
  }

  std::unique_ptr<Worker> worker_;
  std::mutex mutex_;
  std::condition_variable changed_, sampled_;
  RingQueue<Step> steps_;
  RingQueue<StepOutcome> outcomes_;
  bool stop_ = false;
  std::thread thread_;
};

// Calls task(rank) once for each rank, all at the same time, the first on this thread, and returns when all
// have returned. A rank whose task throws calls give_up(rank), so that the others do not wait for it. Throws
// what the first one threw.
template <typename Task, typename GiveUp>
void on_every_rank(int32_t world_size, const Task& task, const GiveUp& give_up) {
  std::mutex mutex;
  std::exception_ptr error;
  const auto run = [&](int32_t rank) {
    try {
      task(rank);
    } catch (...) {
      {
        const std::lock_guard lock(mutex);
        if (!error) error = std::current_exception();
      }
      give_up(rank);
    }
  };
  std::vector<std::thread> threads;
  for (int32_t rank = 1; rank < world_size; ++rank) threads.emplace_back(run, rank);
  run(0);
  for (std::thread& thread : threads) thread.join();
  if (error) std::rethrow_exception(error);
}

// Requests that every rank has named; the ranks need not do so in the same step.
class Unanimous {
 public:
  void say(std::span<const RequestId> ids) {
    for (const RequestId id : ids) ++num_ranks_[id];
  }
  // Forgets those that it writes to `out`, which is overwritten.
  void take(size_t num_ranks, std::vector<RequestId>& out) {
    out.clear();
    for (auto entry = num_ranks_.begin(); entry != num_ranks_.end();) {
      if (entry->second < num_ranks) {
        ++entry;
        continue;
      }
      out.push_back(entry->first);
      entry = num_ranks_.erase(entry);
    }
  }

 private:
  std::map<RequestId, size_t> num_ranks_;
};

constexpr size_t kMaxHashThreads = 8;

class LocalExecutor final : public Executor, private LoraLoader {
 public:
  LocalExecutor(const EngineConfig& config, const Backend& backend)
      : backend_(with_jump_forward(config, backend)),
        max_in_flight_steps_(uses_async_scheduling(config, backend_) ? 2 : 1),
        has_loras_(config.enable_lora) {
    const HfConfig hf_config = load_model_config(config);
    model_info_.architecture = hf_config.get_strings("architectures").at(0);
    model_info_.max_model_len = resolve_max_model_len(config, hf_config);
    const StepLimits limits = step_limits(config, backend_, model_info_.max_model_len);
    model_info_.max_num_seqs = limits.max_num_seqs;
    model_info_.max_num_batched_tokens = limits.max_num_batched_tokens;
    const int32_t world_size = config.tensor_parallel_size;
    const int32_t num_threads =
        config.num_threads > 0
            ? config.num_threads
            : std::max(static_cast<int32_t>(ThreadPool::available_cpus().size()) / world_size, 1);
    auto communicators = make_communicators(config, hf_config);
    std::vector<std::unique_ptr<Worker>> workers(communicators.size());
    on_every_rank(
        world_size,
        [&](int32_t rank) {
          const auto i = static_cast<size_t>(rank);
          workers[i] =
              std::make_unique<Worker>(config, backend_of_rank(backend_, rank), hf_config,
                                       model_info_.max_model_len, num_threads, std::move(communicators[i]));
        },
        [](int32_t) {});
    for (auto& worker : workers) {
      // Ranks meet inside a step, so all but the caller's need a thread. What computes on a device is only
      // enqueued, which is done sooner here, where the caches are warm, than somebody else is woken.
      const bool threaded = !ranks_.empty() || (max_in_flight_steps_ > 1 && !backend_.is_device());
      ranks_.push_back(std::make_unique<Rank>(std::move(worker), threaded));
    }
    Worker& first = ranks_[0]->worker();
    model_info_.vocab_size = first.model().vocab_size();
    model_info_.dtype = dtype_name(first.dtype());
    model_info_.backend = backend_.name();
    model_info_.activation_bytes = static_cast<int64_t>(first.activation_bytes());
    model_info_.memory = first.memory();
  }

  const ModelInfo& model_info() const override { return model_info_; }
  std::vector<KVCacheSpec> kv_cache_specs() const override {
    return ranks_[0]->worker().model().kv_cache_specs();
  }
  int64_t available_kv_cache_bytes() const override {
    // Every rank has as many blocks, so the one with the least memory says how many.
    int64_t available = std::numeric_limits<int64_t>::max();
    for (const auto& rank : ranks_)
      available = std::min(available, rank->worker().available_kv_cache_bytes());
    return available;
  }
  bool copies_loras() const override { return has_loras_ && backend_.is_device(); }
  bool maps_kv_cache_on_demand() const override { return ranks_[0]->worker().maps_kv_cache_on_demand(); }
  void initialize_kv_cache(const KVCacheConfig& config) override {
    const auto worker = [this](int32_t rank) -> Worker& {
      return ranks_[static_cast<size_t>(rank)]->worker();
    };
    const auto world_size = static_cast<int32_t>(ranks_.size());
    const auto give_up = [&](int32_t rank) { worker(rank).communicator().abort(); };
    on_every_rank(world_size, [&](int32_t rank) { worker(rank).initialize_kv_cache(config); }, give_up);
    model_info_.memory = ranks_[0]->worker().memory();
    if (world_size == 1) return;
    on_every_rank(world_size, [&](int32_t rank) { worker(rank).meet_other_ranks(); }, give_up);
  }
  void sleep(int32_t level) override {
    on_every_worker([level](Worker& worker) { worker.sleep(level); });
  }
  void wake_up(bool weights, bool kv_cache) override {
    on_every_worker([=](Worker& worker) { worker.wake_up(weights, kv_cache); });
  }
  void check_weights(const WeightSource& source) override {
    on_every_worker([&source](Worker& worker) { worker.check_weights(source); });
  }
  void load_weights(const WeightSource& source) override {
    on_every_worker([&source](Worker& worker) { worker.load_weights(source); });
  }
  bool has_weights() const override {
    return std::ranges::all_of(ranks_, [](const auto& rank) { return rank->worker().has_weights(); });
  }
  int32_t max_in_flight_steps() const override { return max_in_flight_steps_; }

  void launch(const SchedulerOutput& scheduler_output) override {
    ++num_in_flight_;
    // The first may compute within the call, and waits for the others then.
    for (const auto& rank : std::views::reverse(ranks_)) rank->launch(scheduler_output);
  }
  void sample(StepId step_id, const GrammarOutput* grammar) override {
    for (const auto& rank : std::views::reverse(ranks_)) rank->sample(step_id, grammar);
  }
  void collect(StepId step_id, ModelRunnerOutput& output) override {
    ranks_[0]->collect(step_id, output);
    if (ranks_.size() > 1) {
      sending_.say(output.finished_sending);
      recving_.say(output.finished_recving);
    }
    // The other ranks have the same tokens, from the same logits or chosen together; the SchedulerOutput may
    // go once they are done with it.
    for (size_t rank = 1; rank < ranks_.size(); ++rank) {
      ranks_[rank]->collect(step_id, other_output_);
      sending_.say(other_output_.finished_sending);
      recving_.say(other_output_.finished_recving);
      output.invalid_block_ids.insert(output.invalid_block_ids.end(), other_output_.invalid_block_ids.begin(),
                                      other_output_.invalid_block_ids.end());
      output.worker_lost |= other_output_.worker_lost;
      if (other_output_.error.empty() || other_output_.error == output.error) continue;
      // A rank can only speak of itself: who failed first shows in what they all say.
      if (!output.error.empty()) output.error += "; ";
      output.error += str("rank ", rank, ": ", other_output_.error);
    }
    if (ranks_.size() > 1) {
      sending_.take(ranks_.size(), output.finished_sending);
      recving_.take(ranks_.size(), output.finished_recving);
    }
    if (!output.error.empty()) has_failed_ = true;
    if (--num_in_flight_ > 0 || !has_failed_) return;
    // The ranks are through with what they were given: the next step finds them together again.
    for (auto& rank : ranks_) rank->worker().communicator().reset();
    has_failed_ = false;
  }
  LoraLoader* lora_loader() override { return has_loras_ ? this : nullptr; }
  std::vector<ExpertLoad> expert_loads() override { return ranks_[0]->worker().expert_loads(); }

 private:
  LoadedLora load(LoraId id, const std::string& directory, bool with_fingerprint) override {
    const LoraAdapter adapter = LoraAdapter::open(directory);
    LoadedLora loaded{adapter.max_rank(), adapter.stamp(), ""};
    // Beside the packing. A device's host has little else to do.
    std::future<std::string> fingerprint;
    if (with_fingerprint) {
      const size_t num_threads = backend_.is_device() ? kMaxHashThreads : 1;
      fingerprint = std::async(std::launch::async | std::launch::deferred,
                               [&adapter, num_threads] { return adapter.fingerprint(num_threads); });
    }
    try {
      for (auto& rank : ranks_) rank->worker().load_lora(id, adapter);
      if (with_fingerprint) loaded.fingerprint = fingerprint.get();
      adapter.checkpoint().check_unchanged();  // or it may be some of this and some of that
    } catch (...) {
      unload(id);
      throw;
    }
    return loaded;
  }
  void unload(LoraId id) override {
    for (auto& rank : ranks_) rank->worker().unload_lora(id);
  }

  // What the ranks do without meeting.
  template <typename Task>
  void on_every_worker(const Task& task) {
    on_every_rank(
        static_cast<int32_t>(ranks_.size()),
        [&](int32_t rank) { task(ranks_[static_cast<size_t>(rank)]->worker()); }, [](int32_t) {});
  }

  std::vector<std::unique_ptr<Communicator>> make_communicators(const EngineConfig& config,
                                                                const HfConfig& hf_config) const {
    const int32_t world_size = config.tensor_parallel_size;
    if (world_size == 1) {
      std::vector<std::unique_ptr<Communicator>> one;
      one.push_back(make_single_communicator());
      return one;
    }
    if (backend_.is_device()) {
      std::vector<int32_t> devices;
      for (int32_t rank = 0; rank < world_size; ++rank) {
        devices.push_back(backend_of_rank(backend_, rank).device);
      }
      return make_peer_communicators(*backend_.runtime, *backend_.ops, devices);
    }
    // The largest exchange: all hidden states, or a rank's part of the logits of every row.
    const int64_t hidden = hf_config.get_int("hidden_size", 1, 1 << 24);
    const int64_t vocab = hf_config.get_int("vocab_size", 1, 1 << 24);
    const int64_t num_logits =
        backend_.speculation.max_num_logits(model_info_.max_num_seqs, model_info_.max_num_batched_tokens);
    const int64_t floats =
        std::max(hidden * model_info_.max_num_batched_tokens, (vocab / world_size + 1) * num_logits);
    return make_shared_memory_communicators(world_size, static_cast<size_t>(floats) * sizeof(float));
  }

  Backend backend_;
  int32_t max_in_flight_steps_;
  bool has_loras_;
  ModelInfo model_info_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  ModelRunnerOutput other_output_;
  Unanimous sending_, recving_;  // of a KV connector
  int32_t num_in_flight_ = 0;
  bool has_failed_ = false;  // a step that was collected since the ranks were last known to be together
};

}  // namespace

void Executor::sleep(int32_t) { throw InternalError("this executor has no memory to give back"); }
void Executor::wake_up(bool, bool) { throw InternalError("this executor has no memory to take"); }

void Executor::check_weights(const WeightSource&) { throw InternalError("this executor has no weights"); }
void Executor::load_weights(const WeightSource&) { throw InternalError("this executor has no weights"); }

void check_model(const EngineConfig& config) { load_model_config(config); }

std::unique_ptr<Executor> make_local_executor(const EngineConfig& config) {
  return make_local_executor(config, find_backend(config));
}
std::unique_ptr<Executor> make_local_executor(const EngineConfig& config, const Backend& backend) {
  return std::make_unique<LocalExecutor>(config, backend);
}

}  // namespace quire
