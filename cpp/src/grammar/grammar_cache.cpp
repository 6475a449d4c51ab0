#include "grammar/grammar_cache.h"

#include <sys/resource.h>

#include <algorithm>

#include "quire/error.h"
#include "util/thread_name.h"

namespace quire {

GrammarCache::GrammarCache(std::shared_ptr<GrammarCompiler> compiler, int32_t num_threads, int64_t max_bytes)
    : compiler_(std::move(compiler)),
      num_threads_(static_cast<size_t>(std::max(num_threads, 1))),
      max_bytes_(max_bytes) {}

GrammarCache::~GrammarCache() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  compiler_->cancel();
  for (std::thread& thread : threads_) thread.join();
}

std::shared_ptr<const GrammarEntry> GrammarCache::find_or_compile(GrammarKey key) {
  const std::lock_guard lock(mutex_);
  const auto [found, inserted] = slots_.try_emplace(std::move(key));
  Slot& slot = found->second;
  if (!inserted) {
    used_.splice(used_.begin(), used_, slot.place);
    return slot.entry;
  }
  slot.entry = std::make_shared<GrammarEntry>();
  used_.push_front(&found->first);
  slot.place = used_.begin();
  queue_.push_back(&found->first);
  // One grammar that takes long does not hold up the others.
  if (queue_.size() > num_idle_ && threads_.size() < num_threads_) threads_.emplace_back([this] { work(); });
  changed_.notify_one();
  return slot.entry;
}

int64_t GrammarCache::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

void GrammarCache::work() {
  name_this_thread("quire-grammar");
  // On Linux it is the thread's own. What it computes can wait, and steps cannot.
  setpriority(PRIO_PROCESS, 0, 10);
  std::unique_lock lock(mutex_);
  while (true) {
    ++num_idle_;
    changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    --num_idle_;
    if (stopping_) return;
    const GrammarKey& key = *queue_.front();
    queue_.pop_front();
    Slot& slot = slots_.find(key)->second;
    if (slot.entry.use_count() == 1) {
      used_.erase(slot.place);
      slots_.erase(slots_.find(key));
      continue;
    }
    const std::shared_ptr<GrammarEntry> entry = slot.entry;
    lock.unlock();
    auto state = GrammarEntry::State::kReady;
    int64_t bytes = static_cast<int64_t>(key.text.size());
    try {
      entry->grammar = compiler_->compile(key);
      bytes += static_cast<int64_t>(entry->grammar->memory_bytes());
    } catch (const std::exception& error) {
      // Kept, too: who sends it again is refused at once.
      entry->error = error.what();
      state = GrammarEntry::State::kFailed;
    }
    ++num_compiled_;
    entry->state.store(state, std::memory_order_release);
    lock.lock();
    slot.bytes = bytes;
    bytes_ += bytes;
    make_room();
  }
}

// The caller holds the mutex.
void GrammarCache::make_room() {
  for (auto place = used_.end(); bytes_ > max_bytes_ && place != used_.begin();) {
    --place;
    const auto found = slots_.find(**place);
    Slot& slot = found->second;
    if (slot.bytes == 0 || slot.entry.use_count() > 1) continue;
    bytes_ -= slot.bytes;
    place = used_.erase(place);
    slots_.erase(found);
  }
}

}  // namespace quire
