#include "process_exit.h"

#include <semaphore.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <mutex>
#include <string_view>
#include <system_error>
#include <thread>

namespace quire::triton {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

// From the end of the grace to the end of a program that waits for its clients only.
constexpr auto kExitSlack = 5s;
// For answering what is under way when the process exits; after as long again, and a second for the server's
// own end, it ends in any case.
constexpr auto kAnswerTime = 2s;
// A signal may be sent to a process and to its process group: what comes so soon is the same one.
constexpr auto kSameSignal = 500ms;
constexpr auto kPollInterval = 100ms;

constexpr int kSignals[] = {SIGTERM, SIGINT};

// Never destroyed: threads, and handlers of signals, may look at it at the very end.
struct State {
  std::shared_timed_mutex gate;
  std::atomic<bool> exiting{false};
  std::atomic<Clock::rep> told{0};  // when, in the clock's ticks; 0: not yet
  std::atomic<std::chrono::seconds::rep> grace_secs{0};
  sem_t wake;
  struct sigaction previous[NSIG] = {};
  std::mutex mutex;  // guards what follows
  std::map<const void*, EndRequests> models;
};

State& state() {
  static auto* const made = [] {
    auto* const fresh = new State;
    sem_init(&fresh->wake, /*pshared=*/0, 0);
    return fresh;
  }();
  return *made;
}

bool is_tritonserver() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).filename() == "tritonserver";
}

[[noreturn]] void end_process(int status) {
  constexpr std::string_view kWhy = "quire: ending the process: clients keep their connections open\n";
  (void)!write(STDERR_FILENO, kWhy.data(), kWhy.size());
  _exit(status);
}

void on_signal(int number, siginfo_t* info, void* context) {
  State& s = state();
  const Clock::rep now = Clock::now().time_since_epoch().count();
  Clock::rep told = 0;
  if (!s.told.compare_exchange_strong(told, now)) {
    if (Clock::duration(now - told) < kSameSignal) return;
    std::signal(number, SIG_DFL);
    raise(number);  // delivered when this returns
    return;
  }
  sem_post(&s.wake);
  const struct sigaction& previous = s.previous[number];
  if (previous.sa_flags & SA_SIGINFO) {
    previous.sa_sigaction(number, info, context);
  } else {
    previous.sa_handler(number);
  }
}

// The server's handlers come when its first models are loaded. True when ours stand before them.
bool stand_before_handler(int number) {
  struct sigaction& previous = state().previous[number];
  if (sigaction(number, nullptr, &previous) != 0) return true;
  if (!(previous.sa_flags & SA_SIGINFO) &&
      (previous.sa_handler == SIG_DFL || previous.sa_handler == SIG_IGN)) {
    return false;
  }
  struct sigaction ours = {};
  ours.sa_sigaction = on_signal;
  ours.sa_flags = SA_SIGINFO | SA_RESTART;
  sigemptyset(&ours.sa_mask);
  for (const int other : kSignals) sigaddset(&ours.sa_mask, other);
  return sigaction(number, &ours, nullptr) == 0;
}

size_t num_models() {
  const std::lock_guard lock(state().mutex);
  return state().models.size();
}

// The program's end, from its start.
void watch_over_end() {
  for (const int number : kSignals) {
    while (!stand_before_handler(number)) std::this_thread::sleep_for(kPollInterval);
  }
  State& s = state();
  while (sem_wait(&s.wake) != 0) continue;  // interrupted
  if (num_models() == 0) return;            // others may serve here
  const SteadyTime latest = *told_to_end() + std::chrono::seconds(s.grace_secs) + kExitSlack;
  // While there are models the server counts its own timeout, and exits.
  while (num_models() > 0) std::this_thread::sleep_for(kPollInterval);
  std::this_thread::sleep_until(std::max<SteadyTime>(latest, Clock::now() + kAnswerTime));
  end_process(0);
}

template <typename Function>
void on_own_thread(Function&& function) {
  try {
    std::thread(std::forward<Function>(function)).detach();
  } catch (const std::system_error&) {
    // No thread can be made: the server ends as it would without us.
  }
}

void answer_what_is_open() {
  State& s = state();
  for (const SteadyTime until = Clock::now() + kAnswerTime; Clock::now() < until;) {
    size_t num_left = 0;
    if (std::unique_lock lock(s.mutex, std::try_to_lock); lock) {
      for (const auto& [model, end_requests] : s.models) num_left += end_requests();
      if (num_left == 0) return;
    }
    std::this_thread::sleep_for(1ms);
  }
}

void on_process_exit(int status, void*) {
  State& s = state();
  s.exiting = true;
  if (is_tritonserver()) {
    on_own_thread([status] {
      std::this_thread::sleep_for(2 * kAnswerTime + 1s);
      end_process(status);
    });
  }
  try {
    answer_what_is_open();
  } catch (const std::exception&) {
    // Out of memory, say: what is open ends with its connection.
  }
  // Stays locked. A thread that is in the server for longer than this is stuck there, and does no harm.
  (void)s.gate.try_lock_for(1s);
}

}  // namespace

void guard_process_exit(std::chrono::seconds grace) {
  state().grace_secs = grace.count();
  static std::once_flag once;
  std::call_once(once, [] {
    on_exit(on_process_exit, nullptr);
    if (is_tritonserver()) on_own_thread(watch_over_end);
  });
}

std::optional<SteadyTime> told_to_end() {
  const Clock::rep told = state().told;
  return told == 0 ? std::nullopt : std::optional(SteadyTime(Clock::duration(told)));
}

bool process_is_exiting() { return state().exiting; }

std::shared_lock<std::shared_timed_mutex> enter_server() { return std::shared_lock(state().gate); }

void enlist_for_exit(const void* model, EndRequests end_requests) {
  const std::lock_guard lock(state().mutex);
  state().models[model] = std::move(end_requests);
}

void withdraw_from_exit(const void* model) {
  const std::lock_guard lock(state().mutex);
  state().models.erase(model);
}

}  // namespace quire::triton
