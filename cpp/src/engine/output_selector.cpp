#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <mutex>
#include <system_error>

#include "quire/engine.h"

namespace quire {

struct OutputSelector::State {
  State() : descriptor(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    if (descriptor < 0)
      throw Error("no descriptor for the outputs: " + std::generic_category().message(errno));
  }
  ~State() { close(descriptor); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  void arrive(uint64_t key) {
    const std::lock_guard lock(mutex);
    ready.push_back(key);
  }
  void signal() {
    const std::lock_guard lock(mutex);
    if (ready.empty() || is_signalled) return;
    is_signalled = true;
    eventfd_write(descriptor, 1);
  }

  const int descriptor;
  std::mutex mutex;
  std::vector<uint64_t> ready;
  bool is_signalled = false;
};

OutputSelector::OutputSelector(Engine& engine) : state_(std::make_shared<State>()) {
  engine.set_delivery_listener([state = state_] { state->signal(); });
}
OutputSelector::~OutputSelector() = default;

int OutputSelector::fileno() const { return state_->descriptor; }

std::shared_ptr<OutputQueue> OutputSelector::open(uint64_t key) {
  return std::make_shared<OutputQueue>([state = state_, key] { state->arrive(key); });
}

std::vector<uint64_t> OutputSelector::take() {
  const std::lock_guard lock(state_->mutex);
  if (state_->is_signalled) {
    eventfd_t count = 0;
    eventfd_read(state_->descriptor, &count);
    state_->is_signalled = false;
  }
  return std::exchange(state_->ready, {});
}

}  // namespace quire
