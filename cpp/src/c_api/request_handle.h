// A request behind a handle.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "c_api/arguments.h"
#include "c_api/engine_handle.h"

namespace quire::c_api {

// Thread-safe.
class RequestHandle : public std::enable_shared_from_this<RequestHandle> {
 public:
  RequestHandle(uint64_t id, std::shared_ptr<EngineHandle> engine, quire_callback callback, void* user_data);

  const EngineHandle& engine() const { return *engine_; }
  EngineHandle& engine() { return *engine_; }

  // Queues it. Throws as HttpApi::begin does. Once.
  void begin(const EngineHandle::Use& use, const RequestBody& body);
  // See quire_poll. The event's text lives until the next call, or as long as the handle.
  quire_status poll(int64_t timeout_ms, quire_event& event);
  void cancel();
  // Of quire_release: after it no callback is called, nor runs on another thread.
  void release();
  // No output comes any more: who still waits is told that the engine is gone.
  void close();

 private:
  void on_arrival();
  HttpExchange* wait_until_begun();
  std::vector<Event> take();
  void call_back(const Event& event);
  quire_event as_event(const Event& event) const;

  const uint64_t id_;
  const std::shared_ptr<EngineHandle> engine_;
  const quire_callback callback_;
  void* const user_data_;

  std::mutex poll_mutex_;      // held by whoever polls
  std::mutex callback_mutex_;  // held while the callback runs
  std::mutex mutex_;           // of what follows
  std::condition_variable changed_;
  std::unique_ptr<HttpExchange> exchange_;
  std::deque<Event> events_;  // that wait to be polled
  bool is_begun_ = false;     // or has failed to: without an exchange
  bool has_news_ = false;     // outputs wait in the exchange's queue
  bool is_finished_ = false;  // the last event was made
  bool is_closed_ = false;
  bool is_released_ = false;
  Event polled_;
};

}  // namespace quire::c_api
