#include "c_api/engine_handle.h"

#include <utility>

#include "quire/model_directory.h"

namespace quire::c_api {
namespace {

thread_local const EngineHandle* engine_of_callback = nullptr;

HttpApiConfig api_config(const Engine& engine, const EngineSettings& settings) {
  HttpApiConfig config =
      model_api_config(engine, settings.engine, settings.reasoning_parser, settings.tool_parser);
  config.served_model_names = {settings.served_model_name};
  config.chat_template = settings.chat_template;
  return config;
}

}  // namespace

struct EngineHandle::Parts {
  explicit Parts(const EngineSettings& settings)
      : engine(settings.engine), api(engine, api_config(engine, settings)) {}
  Engine engine;
  HttpApi api;
};

namespace {

// Answers call the model as the caller did, and the rest wants its directory.
EngineSettings located(EngineSettings settings) {
  if (settings.served_model_name.empty()) settings.served_model_name = settings.engine.model;
  settings.engine = locate_model(std::move(settings.engine));
  return settings;
}

}  // namespace

EngineHandle::EngineHandle(const EngineSettings& settings) : parts_(new Parts(located(settings))) {}
EngineHandle::~EngineHandle() = default;

EngineHandle::Use::~Use() {
  if (engine_ == nullptr) return;
  const std::lock_guard lock(engine_->mutex_);
  if (--engine_->num_uses_ == 0) engine_->unused_.notify_all();
}
Engine& EngineHandle::Use::engine() const { return engine_->parts_->engine; }
const HttpApi& EngineHandle::Use::api() const { return engine_->parts_->api; }

EngineHandle::Use EngineHandle::try_use() {
  const std::lock_guard lock(mutex_);
  if (is_closed_) return Use(nullptr);
  ++num_uses_;
  return Use(this);
}

EngineHandle::Use EngineHandle::use(const char* function) {
  check_outside_callbacks(function);
  Use use = try_use();
  if (!use) throw InvalidArgument("the engine is gone: it was destroyed");
  return use;
}

void EngineHandle::check_outside_callbacks(const char* function) const {
  if (engine_of_callback != this) return;
  throw InvalidArgument(str(function, " must not be called from a callback of the same engine, which would ",
                            "wait for itself; call it from another thread"));
}

void EngineHandle::begin_destruction() {
  std::unique_lock lock(mutex_);
  is_closed_ = true;
  unused_.wait(lock, [this] { return num_uses_ == 0; });
  lock.unlock();
  parts_->engine.shutdown();
}

void EngineHandle::free_engine() { parts_.reset(); }

void EngineHandle::shut_down() noexcept {
  try {
    if (const Use use = try_use()) use.engine().shutdown();
  } catch (...) {
    // The process ends all the same.
  }
}

EngineHandle::InCallback::InCallback(const EngineHandle& engine)
    : before_(std::exchange(engine_of_callback, &engine)) {}
EngineHandle::InCallback::~InCallback() { engine_of_callback = before_; }

}  // namespace quire::c_api
