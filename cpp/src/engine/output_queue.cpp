#include <condition_variable>
#include <deque>
#include <iterator>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "quire/engine.h"
#include "util/owner_process.h"

namespace quire {
namespace {

// What is new of one completion, behind what already waits.
void append_delta(CompletionOutput& waiting, CompletionOutput&& delta) {
  waiting.text += delta.text;
  waiting.token_ids.insert(waiting.token_ids.end(), delta.token_ids.begin(), delta.token_ids.end());
  waiting.logprobs.insert(waiting.logprobs.end(), std::make_move_iterator(delta.logprobs.begin()),
                          std::make_move_iterator(delta.logprobs.end()));
  waiting.cumulative_logprob = delta.cumulative_logprob;
  waiting.num_reasoning_tokens = delta.num_reasoning_tokens;
  waiting.finish_reason = delta.finish_reason;
  waiting.stop_reason = std::move(delta.stop_reason);
  waiting.error = std::move(delta.error);
}

}  // namespace

struct OutputQueue::State {
  explicit State(std::function<void()> listener) : on_arrival(std::move(listener)) {}

  const OwnerProcess owner;
  const std::function<void()> on_arrival;
  std::mutex mutex;
  std::condition_variable arrived;
  std::vector<RequestOutput> waiting;
  std::unordered_map<std::string, size_t> position;  // of a request in `waiting`

  void push(RequestOutput&& output, bool is_delta) {
    if (add(std::move(output), is_delta) && on_arrival) on_arrival();
  }

 private:
  // Whether it is the first that waits.
  bool add(RequestOutput&& output, bool is_delta) {
    const std::lock_guard lock(mutex);
    const bool is_first = waiting.empty();
    const auto [found, inserted] = position.try_emplace(output.request_id, waiting.size());
    if (inserted) {
      waiting.push_back(std::move(output));
    } else if (!is_delta) {
      waiting[found->second] = std::move(output);
    } else {
      RequestOutput& before = waiting[found->second];
      before.finished = output.finished;
      before.num_cached_tokens = output.num_cached_tokens;
      before.metrics = output.metrics;
      before.usage = output.usage;
      if (output.prompt_logprobs) before.prompt_logprobs = std::move(output.prompt_logprobs);
      for (CompletionOutput& delta : output.outputs) {
        auto same = before.outputs.begin();
        while (same != before.outputs.end() && same->index != delta.index) ++same;
        if (same == before.outputs.end()) {
          before.outputs.push_back(std::move(delta));
        } else {
          append_delta(*same, std::move(delta));
        }
      }
    }
    arrived.notify_all();
    return is_first;
  }
};

OutputQueue::OutputQueue(std::function<void()> on_arrival)
    : state_(std::make_shared<State>(std::move(on_arrival))) {}
OutputQueue::~OutputQueue() = default;

OutputCallback OutputQueue::callback(RequestOutputKind kind) {
  return [state = state_, is_delta = kind == RequestOutputKind::kDelta](RequestOutput&& output) {
    state->push(std::move(output), is_delta);
  };
}

std::vector<RequestOutput> OutputQueue::take(std::chrono::milliseconds timeout) {
  state_->owner.check();  // in a child nothing would ever come
  std::unique_lock lock(state_->mutex);
  // Waiting for no time is a call of the system's, too.
  if (timeout > std::chrono::milliseconds::zero())
    state_->arrived.wait_for(lock, timeout, [this] { return !state_->waiting.empty(); });
  state_->position.clear();
  return std::exchange(state_->waiting, {});
}

}  // namespace quire
