// Who waits for an adapter to be in memory, and the threads that see to it.
#include <algorithm>
#include <iterator>
#include <limits>
#include <optional>
#include <system_error>
#include <utility>

#include "engine/lora_registry.h"
#include "quire/error.h"
#include "util/str.h"
#include "util/thread_name.h"

namespace quire {

int32_t& LoraRegistry::num_passed_over() const {
  const Adapter* first = to_read_.empty() ? nullptr : to_read_.front().get();
  if (first != passed_over_) {
    passed_over_ = first;
    num_passed_over_ = 0;
  }
  return num_passed_over_;
}

// Of one that is in memory. What is pinned has no room to give.
bool LoraRegistry::is_kept_waiting(const Adapter& adapter) const {
  return !to_read_.empty() && to_read_.front()->place != Place::kInMemory && !adapter.info.is_pinned &&
         num_passed_over() >= kMostPassedOver;
}

bool LoraRegistry::has_not_to_wait(const Use& use) const {
  const std::lock_guard lock(mutex_);
  return use.adapter_->place == Place::kInMemory && !is_kept_waiting(*use.adapter_);
}

bool LoraRegistry::is_loaded(const Use& use, std::function<void(const std::string& error)> then,
                             Clock::time_point until) {
  const std::lock_guard lock(mutex_);
  Adapter& adapter = *use.adapter_;
  if (adapter.place == Place::kInMemory && (is_closed_ || !is_kept_waiting(adapter))) {
    if (!to_read_.empty()) ++num_passed_over();
    return true;
  }
  if (is_closed_) throw ResourceExhausted("the engine has ended");
  start_threads();
  adapter.waiting.push_back({&use, std::move(then), until});
  if (use.num_waiters_++ == 0) ++adapter.num_waiting_uses;
  if (adapter.waiting.size() == 1) to_read_.push_back(use.adapter_);
  changed_.notify_all();
  return false;
}

void LoraRegistry::end_wait(const Waiter& waiter) {
  if (--waiter.use->num_waiters_ == 0) --waiter.use->adapter_->num_waiting_uses;
}

void LoraRegistry::stop_waiting(const Use& use) {
  std::vector<Waiter> gone;  // what they hold goes without the lock
  const std::lock_guard lock(mutex_);
  std::erase_if(use.adapter_->waiting, [&](Waiter& waiter) {
    if (waiter.use != &use) return false;
    end_wait(waiter);
    gone.push_back(std::move(waiter));
    return true;
  });
  if (use.adapter_->waiting.empty()) std::erase(to_read_, use.adapter_);
  changed_.notify_all();
}

void LoraRegistry::start_threads() {
  const auto start = [](std::thread& thread, const char* name, auto run) {
    if (!thread.joinable())
      thread = std::thread([name, run] {
        name_this_thread(name);
        run();
      });
  };
  try {
    start(reader_, "quire-lora", [this] { run_reader(); });
    start(clock_, "quire-lora-time", [this] { run_clock(); });
  } catch (const std::system_error& error) {
    throw ResourceExhausted(str("no thread can be started that reads adapters again: ", error.what()));
  }
}

// Room comes with the end of requests, but for what stays pinned.
bool LoraRegistry::can_go_on(const Adapter& adapter) const {
  if (adapter.place != Place::kOnDisk) return false;  // somebody reads it
  return has_room() || std::ranges::count_if(adapters_, [](const auto& each) {
                         return each->place == Place::kInMemory && each->info.is_pinned && !each->is_removed;
                       }) >= max_cpu_loras_;
}

// Whose adapter is in memory, as somebody else has read it or it never went, goes on first, unless it has to
// wait: the first in the queue may need its room.
std::shared_ptr<LoraRegistry::Adapter> LoraRegistry::next_to_read() {
  const auto found = std::ranges::find_if(to_read_, [&](const auto& adapter) {
    return adapter->place == Place::kInMemory && !is_kept_waiting(*adapter);
  });
  if (found != to_read_.end()) return *found;
  return !to_read_.empty() && can_go_on(*to_read_.front()) ? to_read_.front() : nullptr;
}

std::vector<LoraRegistry::Waiter> LoraRegistry::take_waiters(Adapter& adapter, size_t most) {
  const auto end =
      adapter.waiting.begin() + static_cast<std::ptrdiff_t>(std::min(most, adapter.waiting.size()));
  std::vector<Waiter> taken(std::move_iterator(adapter.waiting.begin()), std::move_iterator(end));
  adapter.waiting.erase(adapter.waiting.begin(), end);
  for (const Waiter& waiter : taken) end_wait(waiter);
  if (adapter.waiting.empty())
    std::erase_if(to_read_, [&](const auto& each) { return each.get() == &adapter; });
  return taken;
}

void LoraRegistry::run_reader() {
  std::unique_lock lock(mutex_);
  while (!is_closed_) {
    const std::shared_ptr<Adapter> adapter = next_to_read();
    if (!adapter) {
      changed_.wait(lock);
      continue;
    }
    std::string error;
    std::optional<Use> held;  // those who wait may all have gone when it has been read
    size_t most = std::numeric_limits<size_t>::max();
    if (adapter->place == Place::kOnDisk) {
      held.emplace(*this, adapter);
      try {
        take_room();
        adapter->place = Place::kComing;
        lock.unlock();
        read(*adapter);
      } catch (const std::exception& failure) {
        error = failure.what();
      }
      if (!lock.owns_lock()) lock.lock();
    } else if (adapter != to_read_.front() && !adapter->info.is_pinned) {
      most = static_cast<size_t>(kMostPassedOver - num_passed_over());
      num_passed_over() += static_cast<int32_t>(std::min(most, adapter->waiting.size()));
    }
    std::vector<Waiter> told = take_waiters(*adapter, most);
    lock.unlock();
    for (const Waiter& waiter : told) waiter.then(error);
    told.clear();  // and with them what they hold
    held.reset();
    lock.lock();
  }
}

std::vector<LoraRegistry::Waiter> LoraRegistry::take_late(Clock::time_point now, Clock::time_point& next) {
  std::vector<Waiter> late;
  next = Clock::time_point::max();
  for (const auto& adapter : to_read_) {
    std::erase_if(adapter->waiting, [&](Waiter& waiter) {
      const bool is_late = waiter.until <= now;
      if (is_late) {
        end_wait(waiter);
        late.push_back(std::move(waiter));
      } else {
        next = std::min(next, waiter.until);
      }
      return is_late;
    });
  }
  std::erase_if(to_read_, [](const auto& adapter) { return adapter->waiting.empty(); });
  return late;
}

void LoraRegistry::run_clock() {
  std::unique_lock lock(mutex_);
  while (!is_closed_) {
    Clock::time_point wake;
    if (auto late = take_late(Clock::now(), wake); !late.empty()) {
      changed_.notify_all();  // another may be first
      lock.unlock();
      for (const Waiter& waiter : late) waiter.then(kTimeIsOver);
      late.clear();
      lock.lock();
    } else if (wake == Clock::time_point::max()) {
      changed_.wait(lock);
    } else {
      changed_.wait_until(lock, wake);
    }
  }
}

void LoraRegistry::load_now(const Use& use) {
  Adapter& adapter = *use.adapter_;
  const std::lock_guard adds(adding_);
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return is_closed_ || adapter.place != Place::kComing; });
    if (is_closed_) throw ResourceExhausted("the engine has ended");
    if (adapter.place == Place::kInMemory) return;
    take_room();
    adapter.place = Place::kComing;
  }
  read(adapter);
}

}  // namespace quire
