#include "simulator/fleet.h"

#include <atomic>
#include <exception>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "simulator/min_tree.h"

namespace quire {
namespace {

class Fleet {
 public:
  explicit Fleet(const SimulatorOptions& options)
      : options_(options),
        num_engines_(static_cast<size_t>(options.num_engines)),
        last_token_ns_(options.trace.requests.size(), -1),
        router_(make_router(options.router, num_engines_)),
        load_(num_engines_) {}

  Metrics run() {
    if (router_->depends_on_load()) {
      Metrics metrics;
      run_side_by_side(metrics);
      return metrics;
    }
    return run_one_by_one();
  }

 private:
  std::unique_ptr<SimulatedEngine> make_engine(Metrics& metrics) {
    return std::make_unique<SimulatedEngine>(options_.engine, options_.trace, last_token_ns_, metrics);
  }
  std::vector<int32_t> make_prompt(size_t index) const {
    return options_.trace.make_prompt(index, options_.seed);
  }
  int64_t arrival_ns(size_t index) const { return options_.trace.requests[index].arrival_ns; }

  void run_side_by_side(Metrics& metrics) {
    std::vector<std::unique_ptr<SimulatedEngine>> engines;
    for (size_t i = 0; i < num_engines_; ++i) engines.push_back(make_engine(metrics));
    MinTree events(num_engines_);
    const auto changed = [&](size_t engine) {
      events.set(engine, engines[engine]->next_event_ns());
      load_.set(engine, engines[engine]->num_tokens_to_do());
    };
    const auto process_until = [&](int64_t time_ns) {
      while (events.min() < time_ns) {
        const size_t engine = events.min_index();
        engines[engine]->process_event();
        changed(engine);
      }
    };
    for (size_t i = 0; i < options_.trace.requests.size(); ++i) {
      process_until(arrival_ns(i));
      std::vector<int32_t> prompt = make_prompt(i);
      const size_t engine = router_->route(prompt, load_);
      engines[engine]->add_request(i, std::move(prompt));
      changed(engine);
    }
    process_until(SimulatedEngine::kNever);
    for (const auto& engine : engines) engine->finish();
  }

  Metrics run_one_by_one() {
    std::vector<std::vector<uint32_t>> requests(num_engines_);
    for (size_t i = 0; i < options_.trace.requests.size(); ++i)
      requests[router_->route({}, load_)].push_back(static_cast<uint32_t>(i));
    const size_t num_threads = std::min(static_cast<size_t>(options_.num_threads), num_engines_);
    std::vector<Metrics> metrics(num_threads);
    std::vector<std::exception_ptr> errors(num_threads);
    std::atomic<size_t> next_engine = 0;
    const auto work = [&](size_t thread) {
      try {
        for (size_t engine; (engine = next_engine++) < num_engines_;)
          run_alone(requests[engine], metrics[thread]);
      } catch (...) {
        errors[thread] = std::current_exception();
      }
    };
    std::vector<std::thread> threads;
    for (size_t thread = 1; thread < num_threads; ++thread) threads.emplace_back(work, thread);
    work(0);
    for (std::thread& thread : threads) thread.join();
    for (const std::exception_ptr& error : errors) {
      if (error) std::rethrow_exception(error);
    }
    for (size_t thread = 1; thread < num_threads; ++thread) metrics[0].merge(metrics[thread]);
    return std::move(metrics[0]);
  }

  void run_alone(const std::vector<uint32_t>& requests, Metrics& metrics) {
    const std::unique_ptr<SimulatedEngine> engine = make_engine(metrics);
    for (const uint32_t index : requests) {
      while (engine->next_event_ns() < arrival_ns(index)) engine->process_event();
      engine->add_request(index, make_prompt(index));
    }
    while (engine->next_event_ns() != SimulatedEngine::kNever) engine->process_event();
    engine->finish();
  }

  const SimulatorOptions& options_;
  size_t num_engines_;
  std::vector<int64_t> last_token_ns_;
  std::unique_ptr<Router> router_;
  FleetLoad load_;
};

}  // namespace

Metrics simulate_fleet(const SimulatorOptions& options) { return Fleet(options).run(); }

}  // namespace quire
