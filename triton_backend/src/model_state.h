// One loaded model: its engines, and the requests in them.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "backend_state.h"
#include "in_flight_request.h"
#include "lora_controller.h"
#include "model_config.h"
#include "quire/engine.h"

namespace quire::triton {

class ModelState;

// From TRITONBACKEND_ModelInstanceInitialize to TRITONBACKEND_ModelInstanceFinalize.
struct InstanceState {
  ModelState* model;
  Engine* engine;  // the model's
  std::shared_ptr<LiveInstance> instance;
};

// From TRITONBACKEND_ModelInitialize to TRITONBACKEND_ModelFinalize; shared by the model's instances.
// Thread-safe.
class ModelState {
 public:
  // Completes the configuration where the server allows it, and reads it. Throws InvalidArgument; nothing is
  // left behind then.
  explicit ModelState(TRITONBACKEND_Model* model);
  // Joins every thread. The server has seen to it that no request is unfinished.
  ~ModelState();
  ModelState(const ModelState&) = delete;
  ModelState& operator=(const ModelState&) = delete;

  // The engine of the instance's device, which instances on the same device share: loaded for the first of
  // them. It lives as long as the model. Throws InvalidArgument, and whatever Engine throws.
  Engine* engine_for(TRITONBACKEND_ModelInstance* instance);

  // Takes a request for the instance's engine and returns soon; its responses come from the engine's output
  // thread. Throws ServerError when not even an error can be answered: the request is still the server's
  // then.
  void execute(const InstanceState& instance, TRITONBACKEND_Request* request);

 private:
  using InFlight = std::shared_ptr<InFlightRequest>;

  void start(const InFlight& in_flight, TRITONBACKEND_Request* request);
  // Throws InvalidArgument for an adapter's name that requests cannot give.
  void check_lora(const std::string& name, const Engine& engine) const;
  ChatAnswerOptions prepare(AdaptedRequest& adapted, const Engine& engine);
  void deliver(const InFlight& in_flight, RequestOutput&& output);
  void cancel_by_id(const std::string& request_id);
  void add(const InFlight& in_flight, bool unique_id);
  void remove(const InFlight& in_flight);
  void linger(const InFlight& in_flight);
  void end_lingering(std::chrono::steady_clock::time_point now);
  void watch();
  bool server_exits() const;
  std::vector<InFlight> unwanted_requests(bool time_is_up);
  // The process exits: has what is under way answered, and returns how many requests that still are.
  size_t end_requests();
  static std::string prompt_text(const AdaptedRequest& adapted, const Engine& engine);
  std::unique_ptr<Engine> load(const std::string& device);

  BackendState* backend_ = nullptr;
  TRITONSERVER_Server* server_ = nullptr;
  std::string name_;
  uint64_t version_ = 0;
  // Not replaced by a reload.
  const BackendState::CurrentFlag is_current_ = std::make_shared<std::atomic<bool>>(false);
  ModelSettings settings_;

  std::mutex mutex_;                                     // guards what follows, up to load_mutex_
  std::unordered_map<std::string, InFlight> in_flight_;  // by the engine's name for it
  // Ended in the engine, and cancelled by a client that has gone.
  struct Lingering {
    InFlight in_flight;
    std::chrono::steady_clock::time_point until;
  };
  std::deque<Lingering> lingering_;  // oldest first
  uint64_t num_requests_ = 0;
  size_t num_without_stream_ = 0;  // requests in flight that are not streamed
  bool stopping_ = false;
  std::condition_variable wake_;

  std::mutex load_mutex_;
  std::map<std::string, std::unique_ptr<Engine>> engines_;  // by device; guarded by load_mutex_
  LoraController loras_{settings_};
  // How the model writes calls and reasoning: there with the first engine, whose tokenizer is every one's.
  std::shared_ptr<const ChatFormat> chat_format_;
  std::thread watcher_;
};

}  // namespace quire::triton
