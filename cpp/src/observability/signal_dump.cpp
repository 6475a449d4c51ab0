#include "observability/signal_dump.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "util/check.h"
#include "util/log.h"
#include "util/thread_name.h"

namespace quire {
namespace {

std::atomic<int> pipe_to_watcher{-1};

void on_signal(int) {
  const int saved = errno;
  const char byte = 1;
  if (const int fd = pipe_to_watcher.load(); fd >= 0) (void)!write(fd, &byte, 1);
  errno = saved;
}

std::mutex registry_mutex;

}  // namespace

// One for the process, while anybody is registered.
struct SignalDump::Registry {
  explicit Registry(int signal_number) : signal(signal_number) {
    if (pipe2(fds, O_CLOEXEC) != 0) throw InvalidArgument("cannot make a pipe for flight_recorder_signal");
    pipe_to_watcher = fds[1];
    struct sigaction action{};
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    if (sigaction(signal, &action, &previous) != 0) {
      pipe_to_watcher = -1;
      close(fds[0]);
      close(fds[1]);
      throw InvalidArgument(str("flight_recorder_signal ", signal, " cannot be caught"));
    }
    // Signals go to the process's own threads, not to this one.
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    watcher = std::thread([this] {
      name_this_thread("quire-signal");
      watch();
    });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  ~Registry() {
    sigaction(signal, &previous, nullptr);
    pipe_to_watcher = -1;
    const char stop = 0;
    (void)!write(fds[1], &stop, 1);
    watcher.join();
    close(fds[0]);
    close(fds[1]);
  }

  void watch() {
    while (true) {
      char byte = 0;
      const ssize_t num_read = read(fds[0], &byte, 1);
      if (num_read < 0 && errno == EINTR) continue;
      if (num_read != 1 || byte != 1) return;
      const std::lock_guard lock(mutex);
      for (const SignalDump* dump : dumps) dump->dump_();
    }
  }

  const int signal;
  int fds[2] = {-1, -1};
  struct sigaction previous{};
  std::mutex mutex;
  std::vector<const SignalDump*> dumps;
  std::thread watcher;
};

SignalDump::SignalDump(int signal, std::function<void()> dump) : dump_(std::move(dump)) {
  static std::weak_ptr<Registry> current;
  const std::lock_guard lock(registry_mutex);
  registry_ = current.lock();
  if (registry_ && registry_->signal != signal) {
    throw InvalidArgument(str("flight_recorder_signal is ", registry_->signal,
                              " in another engine of this process; give the same, got ", signal));
  }
  if (!registry_) current = registry_ = std::make_shared<Registry>(signal);
  const std::lock_guard dumps_lock(registry_->mutex);
  registry_->dumps.push_back(this);
}

SignalDump::~SignalDump() {
  const std::lock_guard lock(registry_mutex);
  {
    const std::lock_guard dumps_lock(registry_->mutex);
    std::erase(registry_->dumps, this);
  }
  registry_.reset();
}

}  // namespace quire
