// An engine behind a handle.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>

#include "c_api/arguments.h"
#include "quire/engine.h"
#include "quire/http_api.h"

namespace quire::c_api {

// Thread-safe.
class EngineHandle {
 public:
  // Loads the model. Throws as Engine does.
  explicit EngineHandle(const EngineSettings& settings);
  ~EngineHandle();

  // While one is held the engine is there: destroy() waits.
  class Use {
   public:
    explicit Use(EngineHandle* engine) : engine_(engine) {}
    Use(Use&& other) noexcept : engine_(std::exchange(other.engine_, nullptr)) {}
    Use& operator=(Use&&) = delete;
    ~Use();
    // False: the engine is being destroyed, or is gone.
    explicit operator bool() const { return engine_ != nullptr; }
    Engine& engine() const;
    const HttpApi& api() const;

   private:
    EngineHandle* engine_;
  };
  Use try_use();
  // Throws InvalidArgument when the engine is gone, and where a callback of it calls `function`.
  Use use(const char* function);
  // The latter alone.
  void check_outside_callbacks(const char* function) const;

  // Ends what is under way, and frees the engine. `end_requests` is called when no output comes any more.
  template <typename Function>
  void destroy(const Function& end_requests) {
    begin_destruction();
    end_requests();
    free_engine();
  }
  // For the end of the process: without a word to the requests.
  void shut_down() noexcept;

  // Marks that this thread is in a callback.
  class InCallback {
   public:
    explicit InCallback(const EngineHandle& engine);
    ~InCallback();
    InCallback(const InCallback&) = delete;
    InCallback& operator=(const InCallback&) = delete;

   private:
    const EngineHandle* before_;
  };

 private:
  struct Parts;
  void begin_destruction();
  void free_engine();

  std::mutex mutex_;
  std::condition_variable unused_;
  int64_t num_uses_ = 0;
  bool is_closed_ = false;
  std::unique_ptr<Parts> parts_;
};

}  // namespace quire::c_api
