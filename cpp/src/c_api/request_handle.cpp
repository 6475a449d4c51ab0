#include "c_api/request_handle.h"

#include <chrono>
#include <utility>

namespace quire::c_api {
namespace {

thread_local const RequestHandle* request_of_callback = nullptr;

Event failure(int32_t http_status, const std::string& message) {
  const HttpError error{.status = http_status, .message = message, .param = "", .code = ""};
  return {http_error_body(error, HttpRoute::kCompletions), QUIRE_ERROR, /*finished=*/true};
}

int64_t seconds_since_1970() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::seconds>(now).count();
}

}  // namespace

RequestHandle::RequestHandle(uint64_t id, std::shared_ptr<EngineHandle> engine, quire_callback callback,
                             void* user_data)
    : id_(id), engine_(std::move(engine)), callback_(callback), user_data_(user_data) {}

void RequestHandle::begin(const EngineHandle::Use& use, const RequestBody& body) {
  // The engine holds the queue, and the queue not this.
  const auto queue = std::make_shared<OutputQueue>([weak = weak_from_this()] {
    if (const auto request = weak.lock()) request->on_arrival();
  });
  HttpRequestInfo info;
  info.request_id = str(body.route == HttpRoute::kCompletions ? "cmpl-" : "chatcmpl-", id_);
  info.created = seconds_since_1970();
  std::unique_ptr<HttpExchange> exchange;
  const auto set_begun = [&] {
    const std::lock_guard lock(mutex_);
    exchange_ = std::move(exchange);
    is_begun_ = true;
    changed_.notify_all();
  };
  try {
    exchange = use.api().begin(body.route, body.text, info, queue);
  } catch (...) {
    set_begun();
    throw;
  }
  set_begun();
}

// Outputs may come while begin() still waits for its turn to run.
HttpExchange* RequestHandle::wait_until_begun() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return is_begun_; });
  return exchange_.get();
}

// Called where the engine cannot go: on its own thread, or with a use of it.
std::vector<Event> RequestHandle::take() {
  HttpExchange* exchange = wait_until_begun();
  if (exchange == nullptr || exchange->finished()) return {};
  std::vector<Event> events = split_events(exchange->take(), exchange->is_stream());
  if (!exchange->finished()) return events;
  if (events.empty()) events.push_back({.json = "{}"});
  events.back().finished = true;
  if (!exchange->error().empty())
    events.back().status = exchange->status() == 400 ? QUIRE_INVALID_ARGUMENT : QUIRE_ERROR;
  return events;
}

void RequestHandle::on_arrival() {
  if (callback_ == nullptr) {
    const std::lock_guard lock(mutex_);
    has_news_ = true;
    changed_.notify_all();
    return;
  }
  std::vector<Event> events;
  try {
    events = take();
  } catch (const std::exception& error) {
    events = {failure(500, error.what())};
  }
  for (const Event& event : events) call_back(event);
}

void RequestHandle::call_back(const Event& event) {
  const std::lock_guard running(callback_mutex_);
  {
    const std::lock_guard lock(mutex_);
    if (is_released_ || is_finished_) return;
    is_finished_ = event.finished;
  }
  const EngineHandle::InCallback in_callback(*engine_);
  const RequestHandle* before = std::exchange(request_of_callback, this);
  const quire_event given = as_event(event);
  callback_(&given, user_data_);
  request_of_callback = before;
}

quire_event RequestHandle::as_event(const Event& event) const {
  return {sizeof(quire_event), id_,          event.json.c_str(),
          event.json.size(),   event.status, event.finished ? 1 : 0};
}

quire_status RequestHandle::poll(int64_t timeout_ms, quire_event& event) {
  engine_->check_outside_callbacks("quire_poll");
  if (callback_ != nullptr)
    throw InvalidArgument(str("request ", id_, " has a callback, which gets its events"));
  const std::unique_lock polling(poll_mutex_, std::try_to_lock);
  if (!polling) {
    throw InvalidArgument(
        str("request ", id_, " is being polled by another thread; poll it from one at a time"));
  }
  using Clock = std::chrono::steady_clock;
  // What is further away than a year is no limit.
  constexpr int64_t kYearMs = int64_t{365} * 24 * 3600 * 1000;
  const bool has_limit = timeout_ms >= 0 && timeout_ms < kYearMs;
  const auto deadline = Clock::now() + std::chrono::milliseconds(has_limit ? timeout_ms : 0);
  std::unique_lock lock(mutex_);
  for (;;) {
    if (is_released_) throw InvalidArgument(str("request ", id_, " was released"));
    if (!events_.empty()) {
      polled_ = std::move(events_.front());
      events_.pop_front();
      event = as_event(polled_);
      return QUIRE_OK;
    }
    if (is_finished_) return QUIRE_END;
    if (is_closed_) {
      is_finished_ = true;
      events_.push_back(failure(503, "the engine was destroyed before the answer was finished"));
      continue;
    }
    const auto is_news = [this] { return has_news_ || is_closed_ || is_released_; };
    if (!has_limit) {
      changed_.wait(lock, is_news);
    } else if (!changed_.wait_until(lock, deadline, is_news)) {
      return QUIRE_TIMEOUT;
    }
    if (!has_news_) continue;
    has_news_ = false;
    lock.unlock();
    std::vector<Event> taken;
    // Without the engine nothing more is taken: close() comes.
    if (const EngineHandle::Use use = engine_->try_use()) taken = take();
    lock.lock();
    for (Event& one : taken) {
      is_finished_ = is_finished_ || one.finished;
      events_.push_back(std::move(one));
    }
  }
}

void RequestHandle::cancel() {
  const EngineHandle::Use use = engine_->try_use();
  if (!use) return;
  if (HttpExchange* exchange = wait_until_begun()) exchange->abort();
}

void RequestHandle::release() {
  {
    const std::lock_guard lock(mutex_);
    is_released_ = true;
    changed_.notify_all();
  }
  if (request_of_callback != this) const std::lock_guard not_running(callback_mutex_);
  cancel();
}

void RequestHandle::close() {
  if (callback_ != nullptr)
    return call_back(failure(503, "the engine was destroyed before the answer was finished"));
  const std::lock_guard lock(mutex_);
  is_closed_ = true;
  changed_.notify_all();
}

}  // namespace quire::c_api
