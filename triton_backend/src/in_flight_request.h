// One request, from Execute to its last response.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "quire/engine.h"
#include "request_adapter.h"
#include "response_sender.h"
#include "response_tensors.h"

namespace quire::triton {

// What requests hear that end, or come, when the server does.
inline constexpr const char kServerExits[] = "the server is shutting down";

// An instance of a model, for those who report statistics of it. The server ends one while requests of it are
// under way when it changes a loaded model's instance groups. Thread-safe.
class LiveInstance {
 public:
  explicit LiveInstance(TRITONBACKEND_ModelInstance* instance) : instance_(instance) {}
  // When this returns, nobody uses the server's instance, nor will.
  void end() {
    const std::lock_guard lock(mutex_);
    instance_ = nullptr;
  }
  // Calls function(instance), unless it has ended.
  template <typename Function>
  void use(const Function& function) {
    const std::lock_guard lock(mutex_);
    if (instance_) function(instance_);
  }

 private:
  std::mutex mutex_;
  TRITONBACKEND_ModelInstance* instance_;
};

// Owns the server's request. `end_*` is called once, and releases it.
class InFlightRequest {
 public:
  // Takes the request over: it is answered and released in any case from here on. Throws ServerError when no
  // response can be made, which leaves the request to the caller.
  InFlightRequest(std::shared_ptr<LiveInstance> instance, TRITONBACKEND_Request* request,
                  ResponsePacer& pacer);
  ~InFlightRequest();
  InFlightRequest(const InFlightRequest&) = delete;
  InFlightRequest& operator=(const InFlightRequest&) = delete;

  // What the request asks for, before anything is delivered.
  void begin(const AdaptedRequest& adapted, std::string prompt, std::shared_ptr<const Tokenizer> tokenizer,
             ChatAnswerOptions chat = {});
  // The engine has it: the time until here is reported as input processing.
  void submitted();

  // What the engine gives, on its output thread. Returns true when the request has ended: with the last
  // output, or because a response could not be made.
  bool deliver(const RequestOutput& output);
  // Answers with the tensors, or the error, and ends.
  void end_with(const std::vector<OutputTensor>& tensors);
  void end_with_error(TRITONSERVER_Error* error);
  void end_cancelled();

  // From any thread.
  bool is_cancelled() const { return sender_.is_cancelled(); }
  bool streams() const { return options_.stream; }

  Engine* engine = nullptr;  // the instance's
  std::string engine_id;     // the request's name in the engine
  std::string request_id;    // the client's name for the request
  // Why the engine is told to abort it.
  enum class Ending : uint8_t { kNone, kCancelled, kServerExits };
  std::atomic<Ending> ending{Ending::kNone};

 private:
  bool deliver_or_throw(const RequestOutput& output);
  void end_ok(const RequestMetrics& metrics, const std::vector<OutputTensor>& last);
  bool has_news(const RequestOutput& output) const;
  void report(bool success, const RequestMetrics& metrics);
  void release();

  const std::shared_ptr<LiveInstance> instance_;
  TRITONBACKEND_Request* request_;
  ResponseSender sender_;
  ResponseOptions options_;
  uint64_t timeout_us_ = 0;
  int64_t queue_timeout_ms_ = 0;
  std::unique_ptr<ResponseTensors> builder_;
  std::vector<OutputTensor> tensors_;
  const uint64_t received_ns_;
  std::atomic<uint64_t> submitted_ns_{
      0};  // written by Execute's thread when the engine may have answered already
};

}  // namespace quire::triton
