// The adapters that an engine knows, by name, and which of them are in the host's memory.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "executor/lora_loader.h"
#include "quire/lora.h"

namespace quire {

// On the client's side of the engine core. Thread-safe; reading files stalls nobody but who asked for it.
class LoraRegistry {
  struct Adapter;

 public:
  // At most `max_cpu_loras` are in memory. `loader` lives until `close`. With `takes_fingerprints` adapters
  // are known by what they compute, which other processes know too.
  LoraRegistry(LoraLoader& loader, int32_t max_cpu_loras, bool takes_fingerprints = false);
  ~LoraRegistry();

  // Reads an adapter, which has the name from now on. Returns false, and does nothing, when it has it
  // already. With load_inplace it takes the place of the one that has the name, when it has been read: that
  // one goes as `remove` says, and what it has of a number and of being pinned is the new one's. Where no
  // other gives room one more than max_cpu_loras are in memory meanwhile. Throws InvalidArgument for a name
  // or a number that another one has and for what is wrong with the directory, ResourceExhausted when all
  // adapters in memory are in use or pinned, or there is no memory for it.
  bool add(const LoraRequest& request);
  // Nobody can name it any more; it goes when the last request that has it is over. False when there is none.
  bool remove(const std::string& name);
  // It stays in memory until it is removed; it is read first where it is not there. False when there is none.
  // Throws as `add`.
  bool pin(const std::string& name);
  std::vector<LoraInfo> list() const;
  bool has(const std::string& name) const;

  // What a request holds while it is unfinished: the adapter stays in memory, once it is there. The registry
  // lives longer.
  class Use {
   public:
    Use(LoraRegistry& registry, std::shared_ptr<Adapter> adapter);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

    LoraId id() const;
    int32_t lora_int_id() const;
    // Tells what has the name from what had it: its fingerprint, or else a number of this engine's, where the
    // first to have a name has none.
    const std::string& fingerprint() const;

   private:
    friend LoraRegistry;
    LoraRegistry& registry_;
    std::shared_ptr<Adapter> adapter_;
    mutable int32_t num_waiters_ = 0;  // with the registry's mutex_ held
  };
  // Throws InvalidArgument for a name that nobody has.
  std::shared_ptr<const Use> use(const std::string& name);

  // Whether is_loaded would say so.
  bool has_not_to_wait(const Use& use) const;
  // Whether it is in memory, and nobody waits for room that has been passed over by kMostPassedOver. If not
  // it is read, as soon as there is room, and `then` is called on another thread: with what went wrong, or
  // nothing. It must return soon, close nothing, and hold the use. Adapters are read in the order of their
  // first calls; while somebody waits, a use does not keep its adapter in memory. Throws ResourceExhausted
  // when it is not there, and never will be: the registry was closed.
  using Clock = std::chrono::steady_clock;
  bool is_loaded(const Use& use, std::function<void(const std::string& error)> then,
                 Clock::time_point until = Clock::time_point::max());
  // Of whoever is first to wait for room: by so many uses of what is in memory. Then these wait, too, until
  // it has got it.
  static constexpr int32_t kMostPassedOver = 128;
  // Who waits with this use is not told any more, but who is being told.
  void stop_waiting(const Use& use);
  // Names whose versions are remembered, where there are no fingerprints.
  static constexpr size_t kMaxNames = size_t{1} << 14;
  // What went wrong where it is not there at `until`; said then.
  static constexpr const char* kTimeIsOver = "its time was over before its adapter was there";
  // Reads it on this thread where it is not in memory. Throws as `add`.
  void load_now(const Use& use);

  // Nothing is read, the loader not used, and nobody called, any more; whoever reads is waited for. Before
  // the loader goes.
  void close();

 private:
  struct Waiter {
    const Use* use;
    std::function<void(const std::string&)> then;
    Clock::time_point until;
  };
  enum class Place : uint8_t { kOnDisk, kComing, kInMemory };
  struct Adapter {
    LoraInfo info;
    std::string directory;  // info.lora_path, wherever the process goes
    LoraId id = 0;
    std::string fingerprint;
    std::string stamp;  // of its files when it was added
    Place place = Place::kOnDisk;
    bool is_removed = false;
    bool is_being_replaced = false;
    int64_t num_uses = 0;
    int64_t num_waiting_uses = 0;  // of these
    uint64_t last_used = 0;
    std::vector<Waiter> waiting;
  };
  // What had a name last, without fingerprints: cached keys and values are found again as long as they are
  // good.
  struct Name {
    uint32_t version = 0;
    std::string stamp;
  };

  // With mutex_ held.
  std::string version_of(const std::string& lora_name, const std::string& stamp);
  std::shared_ptr<Adapter> find(const std::string& name) const;
  std::shared_ptr<const Use> use_of(const std::string& name);  // null: nobody has the name
  // Throws InvalidArgument where another one than `replaced` has the name or the number.
  void check_is_free(const LoraRequest& request, const Adapter* replaced) const;
  bool has_room() const;
  // Of the adapter used least recently, where all is taken; one more if there is none, and `replaced`, which
  // may be pinned, will give its own.
  void take_room(const Adapter* replaced = nullptr);
  Adapter* least_recently_used(const Adapter* except = nullptr) const;
  bool can_go_on(const Adapter& adapter) const;
  // How many have passed over the first of to_read_.
  int32_t& num_passed_over() const;
  bool is_kept_waiting(const Adapter& adapter) const;
  std::shared_ptr<Adapter> next_to_read();  // null: none yet
  // They wait no more; `most` of them, the first ones.
  std::vector<Waiter> take_waiters(Adapter& adapter, size_t most);
  // Those whose time is over; who is left has to be told at `next`.
  std::vector<Waiter> take_late(Clock::time_point now, Clock::time_point& next);
  static void end_wait(const Waiter& waiter);
  void retire(Adapter& adapter);
  void forget(Adapter& adapter);
  // Without it: from the disk, where room was taken.
  void read(Adapter& adapter);
  [[noreturn]] static void rethrow_for(const Adapter& adapter, bool is_first);
  void start_threads();
  void run_reader();
  void run_clock();

  LoraLoader& loader_;
  const int32_t max_cpu_loras_;
  const bool takes_fingerprints_;
  std::mutex adding_;  // held by who reads on the caller's thread, and who closes; taken before mutex_
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<Adapter>> adapters_;  // those that were removed and are in use, too
  std::unordered_map<std::string, Name> names_;
  uint32_t first_version_ = 0;  // of a name; higher than those of all names that were forgotten
  int32_t num_in_memory_ = 0;   // or coming
  LoraId last_id_ = 0;
  uint64_t num_uses_ = 0;

  std::deque<std::shared_ptr<Adapter>> to_read_;  // those with waiters, in memory or not
  mutable const Adapter* passed_over_ = nullptr;  // num_passed_over_ is of this one
  mutable int32_t num_passed_over_ = 0;
  std::condition_variable changed_;
  bool is_closed_ = false;
  std::thread reader_, clock_;  // made when they are first needed; the clock tells whose time is over
};

}  // namespace quire
