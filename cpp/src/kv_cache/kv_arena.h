// Memory for KV caches, lent and given back: several pools, of one engine or of several, share one budget.
//
// The arena counts bytes; addresses belong to the workers, which map and unmap what a step's kv_extents say.
// Every member is sure of its `min_bytes`; beyond that, first come, first served. A member that finds nothing
// left asks, and the others give back what they do not use the next time they schedule.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace quire {

// Thread-safe.
class KVArena {
 public:
  // One engine's part. Used on its thread, except where it says otherwise.
  class Member {
   public:
    // Throws InvalidArgument when the others are sure of too much; when they only hold too much, they are
    // asked, and it waits up to five seconds.
    Member(std::shared_ptr<KVArena> arena, int64_t min_bytes, std::function<void()> wake);
    // Gives back all that it holds.
    ~Member();
    Member(const Member&) = delete;
    Member& operator=(const Member&) = delete;

    // False, and nothing is taken, when the others hold (or are sure of) too much; they are then asked.
    bool take(int64_t bytes);
    void give_back(int64_t bytes);
    int64_t bytes_held() const { return bytes_held_; }
    // What take() could give now.
    int64_t bytes_available() const;
    // Bytes that other members have asked for and not got; what lies above min_bytes may go to them.
    int64_t bytes_wanted_by_others() const;
    bool is_wanted() const;  // whether it is more than 0; not recorded
    // Around a call of schedule(): what was asked for in an earlier one, and not again, is not wanted any
    // more.
    void begin_schedule() { asked_ = false; }
    void end_schedule() {
      if (!asked_ && bytes_wanted_ > 0) withdraw();
    }
    int64_t min_bytes() const { return min_bytes_; }

    // For the flight recorder: what take(), bytes_available() and bytes_wanted_by_others() answer depends on
    // other engines. Answers are appended to `tape` from now on; null: they are not.
    void record_answers(std::vector<int64_t>* tape) { recorded_ = tape; }
    // In a replay these are the next answers. After the last one, nothing is there to be had.
    void replay_answers(std::span<const int64_t> tape) {
      replays_ = true;
      replayed_ = tape;
    }
    // What bytes_available() would say, without recording it.
    int64_t bytes_available_now() const;

   private:
    friend class KVArena;
    std::shared_ptr<KVArena> arena_;
    int64_t min_bytes_;
    // Written under the arena's mutex.
    int64_t bytes_held_ = 0;
    int64_t bytes_wanted_ = 0;
    void withdraw();
    int64_t bytes_wanted_now() const;
    // The answer to give: the true one, or in a replay the recorded one.
    int64_t answer(int64_t truth) const;

    std::function<void()> wake_;
    bool asked_ = false;  // in vain, since begin_schedule()
    std::vector<int64_t>* recorded_ = nullptr;
    bool replays_ = false;
    mutable std::span<const int64_t> replayed_;
  };

  static constexpr int64_t kMaxBytes = int64_t{1} << 60;  // sums of a few of these do not overflow

  // Throws InvalidArgument unless 0 < bytes <= kMaxBytes.
  explicit KVArena(int64_t bytes);

  int64_t bytes() const { return bytes_; }
  int64_t bytes_held() const;

 private:
  int64_t bytes_available_locked(const Member& member) const;

  const int64_t bytes_;
  mutable std::mutex mutex_;
  std::condition_variable given_back_;
  std::list<Member*> members_;
};

}  // namespace quire
