#include "lora_controller.h"

#include <pthread.h>

#include <exception>
#include <nlohmann/json.hpp>

#include "lora_files.h"
#include "process_exit.h"
#include "response_tensors.h"

namespace quire::triton {
namespace {

constexpr size_t kMaxWaiting = 64;

}  // namespace

LoraController::~LoraController() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void LoraController::enroll(Engine& engine) {
  const std::lock_guard lock(engines_mutex_);
  if (engines_.empty()) {
    for (const LoraRequest& lora : settings_.loras) {
      try {
        engine.add_lora(lora);
      } catch (const InvalidArgument& error) {
        throw InvalidArgument(settings_.multi_lora + ": '" + excerpt(lora.lora_name) + "': " + error.what());
      }
    }
  } else if (settings_.engine.enable_lora) {
    for (const LoraInfo& info : engines_.front()->list_loras())
      engine.add_lora({info.lora_name, info.lora_int_id, info.lora_path});
  }
  engines_.push_back(&engine);
}

void LoraController::submit(std::shared_ptr<InFlightRequest> in_flight, LoraControl control) {
  {
    const std::lock_guard lock(mutex_);
    if (jobs_.size() >= kMaxWaiting) {
      throw ResourceExhausted(std::to_string(jobs_.size()) +
                              " requests that change adapters wait already; try again later");
    }
    if (!thread_.joinable()) {
      thread_ = std::thread([this] {
        pthread_setname_np(pthread_self(), "quire-adapters");
        run();
      });
    }
    jobs_.push_back({std::move(in_flight), std::move(control)});
  }
  wake_.notify_all();
}

size_t LoraController::num_unfinished() const {
  const std::lock_guard lock(mutex_);
  return jobs_.size();
}

void LoraController::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
    if (stopping_) return;
    const Job& job = jobs_.front();  // stays where it is: others only add to the end
    lock.unlock();
    answer(*job.in_flight, job.control);
    lock.lock();
    jobs_.pop_front();
  }
}

void LoraController::answer(InFlightRequest& in_flight, const LoraControl& control) {
  std::string done;
  std::string loras;
  std::exception_ptr failure;
  const bool is_wanted = !in_flight.is_cancelled();
  try {
    if (is_wanted) {
      done = carry_out(control);
      loras = list();
    }
  } catch (...) {
    failure = std::current_exception();
  }
  const auto guard = enter_server();
  try {
    if (!done.empty()) log(TRITONSERVER_LOG_INFO, done);
    if (failure) std::rethrow_exception(failure);
    if (is_wanted)
      in_flight.end_with(reply(loras, FinishReason::kStop, settings_.batched));
    else
      in_flight.end_cancelled();
  } catch (...) {
    in_flight.end_with_error(current_exception_as_error());
  }
}

std::string LoraController::carry_out(const LoraControl& control) {
  switch (control.action) {
    case LoraControl::Action::kLoad:
      return load({control.lora_name, 0,
                   find_lora(control.lora_path, settings_.lora_base, settings_.has_lora_root),
                   control.load_inplace});
    case LoraControl::Action::kUnload: return unload(control.lora_name);
    case LoraControl::Action::kList:
    case LoraControl::Action::kNone: break;
  }
  return {};
}

// On all engines or on none. What was replaced in place is gone: an engine that fails after another one has
// replaced it goes on with what it had.
std::string LoraController::load(const LoraRequest& lora) {
  const std::lock_guard lock(engines_mutex_);
  std::vector<Engine*> added, replaced;
  try {
    for (Engine* engine : engines_) {
      const bool is_there = engine->has_lora(lora.lora_name);
      if (engine->add_lora(lora)) (is_there ? replaced : added).push_back(engine);
    }
  } catch (...) {
    for (Engine* engine : added) engine->remove_lora(lora.lora_name);
    throw;
  }
  return added.empty() && replaced.empty()
             ? ""
             : "adapter '" + excerpt(lora.lora_name) + "': loaded from " + lora.lora_path;
}

std::string LoraController::unload(const std::string& name) {
  const std::lock_guard lock(engines_mutex_);
  bool found = false;
  for (Engine* engine : engines_) found = engine->remove_lora(name) || found;
  if (!found)
    throw ServerError(TRITONSERVER_ERROR_NOT_FOUND, "there is no adapter called '" + excerpt(name) + "'");
  return "adapter '" + excerpt(name) + "': unloaded";
}

std::string LoraController::list() const {
  const std::lock_guard lock(engines_mutex_);
  auto loras = nlohmann::ordered_json::array();
  for (const LoraInfo& info : engines_.front()->list_loras()) {
    loras.push_back({{"lora_name", info.lora_name}, {"lora_path", info.lora_path}, {"rank", info.rank}});
  }
  return loras.dump(-1, ' ', /*ensure_ascii=*/false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace quire::triton
