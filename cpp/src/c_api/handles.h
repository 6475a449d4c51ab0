// What the numbers that C has stand for.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "util/owner_process.h"

namespace quire::c_api {

class EngineHandle;
class RequestHandle;

// Thread-safe. Never destroyed: handles may be used until the process ends, whose engines end before that.
class Handles {
 public:
  // In a child that was forked, another one: the locks of the parent's may be held for ever there.
  static Handles& of_this_process();

  // A number that no handle has had.
  static uint64_t make_id();
  void add(uint64_t id, std::shared_ptr<EngineHandle> engine);
  void add(uint64_t id, std::shared_ptr<RequestHandle> request);

  // Throw InvalidArgument for what is not there. `take_` removes it.
  std::shared_ptr<EngineHandle> find_engine(uint64_t id) const;
  std::shared_ptr<RequestHandle> find_request(uint64_t id) const;
  std::shared_ptr<EngineHandle> take_engine(uint64_t id);
  std::shared_ptr<RequestHandle> take_request(uint64_t id);

  std::vector<std::shared_ptr<RequestHandle>> requests_of(const EngineHandle& engine) const;

 private:
  template <typename Handle>
  using Table = std::unordered_map<uint64_t, std::shared_ptr<Handle>>;

  explicit Handles(uint64_t first_id) : first_id_(first_id) {}
  static void end_engines();
  [[noreturn]] void fail_unknown(const char* kind, uint64_t id) const;

  const OwnerProcess owner_;
  const uint64_t first_id_;  // smaller ones are of the process that this one is a fork of
  mutable std::mutex mutex_;
  Table<EngineHandle> engines_;
  Table<RequestHandle> requests_;
};

}  // namespace quire::c_api
