// Memory for KV caches, lent and given back: several pools, of one engine or of several, share one budget.
//
// The arena counts bytes; addresses belong to the workers, which map and unmap what a plan's kv_extents say.
// Every member is sure of its `min_bytes`; beyond that, first come, first served. A member that finds nothing
// left asks, and the others give back what they do not use the next time they plan.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>

namespace quire {

// Thread-safe.
class KVArena {
 public:
  // One engine's part. Used on its thread, except where it says otherwise.
  class Member {
   public:
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
    int64_t min_bytes() const { return min_bytes_; }

   private:
    friend class KVArena;
    std::shared_ptr<KVArena> arena_;
    int64_t min_bytes_;
    int64_t bytes_held_ = 0;    // guarded by the arena's mutex for writing
    int64_t bytes_wanted_ = 0;  // likewise
    std::function<void()> wake_;
  };

  // Throws InvalidArgument unless bytes > 0.
  explicit KVArena(int64_t bytes);

  int64_t bytes() const { return bytes_; }
  int64_t bytes_held() const;

 private:
  int64_t bytes_available_locked(const Member& member) const;

  const int64_t bytes_;
  mutable std::mutex mutex_;
  std::list<Member*> members_;
};

}  // namespace quire
