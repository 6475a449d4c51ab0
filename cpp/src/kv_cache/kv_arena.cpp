#include "kv_cache/kv_arena.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "util/check.h"

namespace quire {
namespace {

// How long an engine that joins waits for the others to give back what they do not use.
constexpr auto kMaxWait = std::chrono::seconds(5);

}  // namespace

KVArena::KVArena(int64_t bytes) : bytes_(bytes) {
  if (bytes <= 0 || bytes > kMaxBytes) {
    throw InvalidArgument(str("a KV arena has from 1 to ", kMaxBytes, " bytes, got ", bytes));
  }
}

int64_t KVArena::bytes_held() const {
  const std::lock_guard lock(mutex_);
  int64_t held = 0;
  for (const Member* member : members_) held += member->bytes_held_;
  return held;
}

// What is free, less what the others may still claim up to their minimum.
int64_t KVArena::bytes_available_locked(const Member& member) const {
  int64_t available = bytes_ - member.bytes_held_;
  for (const Member* other : members_) {
    if (other != &member) available -= std::max(other->bytes_held_, other->min_bytes_);
  }
  return available;
}

KVArena::Member::Member(std::shared_ptr<KVArena> arena, int64_t min_bytes, std::function<void()> wake)
    : arena_(std::move(arena)), min_bytes_(min_bytes), wake_(std::move(wake)) {
  std::unique_lock lock(arena_->mutex_);
  const auto unclaimed = [this](bool lent) {
    int64_t bytes = arena_->bytes_;
    for (const Member* other : arena_->members_) {
      if (other != this) bytes -= lent ? other->min_bytes_ : std::max(other->bytes_held_, other->min_bytes_);
    }
    return bytes;
  };
  const auto refuse = [&](int64_t bytes, const char* whose) {
    throw InvalidArgument(str("the KV arena of ", arena_->bytes_, " bytes has ", std::max<int64_t>(bytes, 0),
                              " bytes that no other engine is ", whose, "; one sequence needs ", min_bytes,
                              ": lower max_model_len, or make the arena larger"));
  };
  if (unclaimed(/*lent=*/true) < min_bytes) refuse(unclaimed(true), "using or sure of");
  arena_->members_.push_back(this);  // from now on the others cannot take what it needs
  if (unclaimed(false) >= min_bytes) return;
  // There is enough once the others have given back what they do not use.
  bytes_wanted_ = min_bytes;
  for (Member* other : arena_->members_) {
    if (other != this && other->bytes_held_ > other->min_bytes_ && other->wake_) other->wake_();
  }
  const bool given =
      arena_->given_back_.wait_for(lock, kMaxWait, [&] { return unclaimed(false) >= min_bytes; });
  bytes_wanted_ = 0;
  if (given) return;
  arena_->members_.remove(this);
  refuse(unclaimed(false), "using, and none gave some back");
}

KVArena::Member::~Member() {
  const std::lock_guard lock(arena_->mutex_);
  arena_->members_.remove(this);
  arena_->given_back_.notify_all();
  for (Member* other : arena_->members_) {
    if (other->bytes_wanted_ > 0 && other->wake_) other->wake_();
  }
}

int64_t KVArena::Member::answer(int64_t truth) const {
  if (replays_) {
    if (replayed_.empty()) return 0;
    truth = std::clamp(replayed_.front(), int64_t{0}, kMaxBytes);  // a damaged recording may say anything
    replayed_ = replayed_.subspan(1);
  }
  if (recorded_) recorded_->push_back(truth);
  return truth;
}

bool KVArena::Member::take(int64_t bytes) {
  const std::lock_guard lock(arena_->mutex_);
  if (answer(bytes <= arena_->bytes_available_locked(*this)) != 0) {
    bytes_held_ += bytes;
    bytes_wanted_ = 0;
    return true;
  }
  bytes_wanted_ = bytes;
  asked_ = true;
  for (Member* other : arena_->members_) {
    if (other != this && other->bytes_held_ > other->min_bytes_ && other->wake_) other->wake_();
  }
  return false;
}

void KVArena::Member::withdraw() {
  const std::lock_guard lock(arena_->mutex_);
  bytes_wanted_ = 0;
}

void KVArena::Member::give_back(int64_t bytes) {
  const std::lock_guard lock(arena_->mutex_);
  QUIRE_CHECK(bytes >= 0 && bytes <= bytes_held_, bytes, " of ", bytes_held_);
  bytes_held_ -= bytes;
  arena_->given_back_.notify_all();
  for (Member* other : arena_->members_) {
    if (other != this && other->bytes_wanted_ > 0 && other->wake_) other->wake_();
  }
}

int64_t KVArena::Member::bytes_available() const { return answer(bytes_available_now()); }

int64_t KVArena::Member::bytes_available_now() const {
  const std::lock_guard lock(arena_->mutex_);
  return arena_->bytes_available_locked(*this);
}

int64_t KVArena::Member::bytes_wanted_by_others() const { return answer(bytes_wanted_now()); }

bool KVArena::Member::is_wanted() const { return bytes_wanted_now() > 0; }

int64_t KVArena::Member::bytes_wanted_now() const {
  const std::lock_guard lock(arena_->mutex_);
  int64_t wanted = 0;
  for (const Member* other : arena_->members_) {
    if (other != this) wanted += other->bytes_wanted_;
  }
  // What lies free already will do for some of it.
  int64_t held = 0;
  for (const Member* member : arena_->members_) held += member->bytes_held_;
  return std::max<int64_t>(wanted - (arena_->bytes_ - held), 0);
}

}  // namespace quire
