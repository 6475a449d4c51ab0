#include "c_api/handles.h"

#include <cstdlib>
#include <utility>

#include "c_api/engine_handle.h"
#include "c_api/request_handle.h"
#include "quire/error.h"
#include "util/str.h"

namespace quire::c_api {
namespace {

std::atomic<uint64_t> next_id{1};
std::atomic<Handles*> current{nullptr};

}  // namespace

uint64_t Handles::make_id() { return next_id++; }

Handles& Handles::of_this_process() {
  for (;;) {
    Handles* handles = current;
    if (handles != nullptr && handles->owner_.is_current()) return *handles;
    auto made = std::unique_ptr<Handles>(new Handles(next_id));
    if (!current.compare_exchange_strong(handles, made.get())) continue;
    // Before what the engines' threads use is taken down. A child has its parent's registration.
    if (handles == nullptr) std::atexit(end_engines);
    return *made.release();
  }
}

void Handles::end_engines() {
  Handles* handles = current;
  if (handles == nullptr || !handles->owner_.is_current()) return;
  std::vector<std::shared_ptr<EngineHandle>> engines;
  {
    const std::lock_guard lock(handles->mutex_);
    for (const auto& [id, engine] : handles->engines_) engines.push_back(engine);
  }
  for (const auto& engine : engines) engine->shut_down();
}

void Handles::add(uint64_t id, std::shared_ptr<EngineHandle> engine) {
  const std::lock_guard lock(mutex_);
  engines_.emplace(id, std::move(engine));
}
void Handles::add(uint64_t id, std::shared_ptr<RequestHandle> request) {
  const std::lock_guard lock(mutex_);
  requests_.emplace(id, std::move(request));
}

void Handles::fail_unknown(const char* kind, uint64_t id) const {
  if (id == 0) throw InvalidArgument(str(kind, " is 0, which is none"));
  if (id < first_id_) {
    throw InvalidArgument(str(kind, " ", id, " belongs to the process that this one is a fork of; make ",
                              "an engine in this process"));
  }
  throw InvalidArgument(str(kind, " ", id, " is not there: it is gone, or was never made"));
}

std::shared_ptr<EngineHandle> Handles::find_engine(uint64_t id) const {
  const std::lock_guard lock(mutex_);
  const auto found = engines_.find(id);
  if (found == engines_.end()) fail_unknown("engine", id);
  return found->second;
}
std::shared_ptr<RequestHandle> Handles::find_request(uint64_t id) const {
  const std::lock_guard lock(mutex_);
  const auto found = requests_.find(id);
  if (found == requests_.end()) fail_unknown("request", id);
  return found->second;
}
std::shared_ptr<EngineHandle> Handles::take_engine(uint64_t id) {
  const std::lock_guard lock(mutex_);
  auto found = engines_.extract(id);
  if (found.empty()) fail_unknown("engine", id);
  return std::move(found.mapped());
}
std::shared_ptr<RequestHandle> Handles::take_request(uint64_t id) {
  const std::lock_guard lock(mutex_);
  auto found = requests_.extract(id);
  if (found.empty()) fail_unknown("request", id);
  return std::move(found.mapped());
}

std::vector<std::shared_ptr<RequestHandle>> Handles::requests_of(const EngineHandle& engine) const {
  std::vector<std::shared_ptr<RequestHandle>> found;
  const std::lock_guard lock(mutex_);
  for (const auto& [id, request] : requests_) {
    if (&request->engine() == &engine) found.push_back(request);
  }
  return found;
}

}  // namespace quire::c_api
