// A backend that reads requests and sends responses exactly as quire does, and computes nothing: what remains
// when it is subtracted is the engine's.
//
// A request that does not stream is answered inside Execute. A stream gets max_tokens responses of one token,
// one every `token_interval_us` (a model parameter, also of all streams of a step: they are sent together, as
// an engine's are).
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "in_flight_request.h"
#include "model_config.h"
#include "request_reader.h"

using namespace quire;
using namespace quire::triton;

namespace {

class NoopModel {
 public:
  explicit NoopModel(TRITONBACKEND_Model* model) {
    const ServerApi& api = server_api();
    TRITONSERVER_Message* message = nullptr;
    check(api.TRITONBACKEND_ModelConfig(model, 1, &message));
    const std::string completed = complete_config(json_text(message, /*owned=*/true));
    check(api.TRITONSERVER_MessageNewFromSerializedJson(&message, completed.data(), completed.size()));
    check(api.TRITONBACKEND_ModelSetConfig(model, 1, message));
    check(api.TRITONSERVER_MessageDelete(message));
    const auto config = nlohmann::json::parse(completed);
    settings_.decoupled = config["model_transaction_policy"]["decoupled"].get<bool>();
    settings_.num_outputs = config["output"].size();
    if (config.contains("parameters") && config["parameters"].contains("token_interval_us")) {
      interval_ = std::chrono::microseconds(
          std::stoll(config["parameters"]["token_interval_us"]["string_value"].get<std::string>()));
    }
    sender_ = std::thread([this] {
      pthread_setname_np(pthread_self(), "noop-output");
      send_loop();
    });
  }
  ~NoopModel() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    sender_.join();
  }

  void execute(TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request* request) {
    auto in_flight =
        std::make_shared<InFlightRequest>(std::make_shared<LiveInstance>(instance), request, pacer_);
    try {
      AdaptedRequest adapted = adapt_request(read_request(request).incoming, settings_);
      in_flight->begin(adapted, adapted.response.prepend_input ? adapted.request.prompt : "", nullptr);
      const int32_t num_tokens = adapted.request.sampling_params.max_tokens;
      if (!adapted.response.stream) {
        in_flight->deliver(make_output(num_tokens, true));
        return;
      }
      const std::lock_guard lock(mutex_);
      streams_.push_back({in_flight, num_tokens});
      wake_.notify_all();
    } catch (...) {
      in_flight->end_with_error(current_exception_as_error());
    }
  }

 private:
  struct Stream {
    std::shared_ptr<InFlightRequest> in_flight;
    int32_t num_left;
  };

  static RequestOutput make_output(int32_t num_tokens, bool finished) {
    RequestOutput output;
    CompletionOutput& completion = output.outputs.emplace_back();
    for (int32_t i = 0; i < num_tokens; ++i) completion.text += " tok";
    completion.token_ids.assign(static_cast<size_t>(num_tokens), 1);
    if (finished) completion.finish_reason = FinishReason::kLength;
    output.finished = finished;
    return output;
  }

  void send_loop() {
    std::list<Stream> running;
    auto next = std::chrono::steady_clock::now();
    while (true) {
      {
        std::unique_lock lock(mutex_);
        if (running.empty()) {
          wake_.wait(lock, [this] { return stopping_ || !streams_.empty(); });
          next = std::chrono::steady_clock::now();
        }
        if (stopping_) return;
        running.splice(running.end(), streams_);
      }
      next += interval_;
      std::this_thread::sleep_until(next);
      running.remove_if([](Stream& stream) {
        const bool last = --stream.num_left == 0;
        return stream.in_flight->deliver(make_output(1, last));
      });
    }
  }

  ModelSettings settings_;
  ResponsePacer pacer_{384};
  std::chrono::microseconds interval_{1000};
  std::mutex mutex_;
  std::condition_variable wake_;
  std::list<Stream> streams_;
  bool stopping_ = false;
  std::thread sender_;
};

NoopModel* model_state(TRITONBACKEND_Model* model) {
  void* state = nullptr;
  check(server_api().TRITONBACKEND_ModelState(model, &state));
  return static_cast<NoopModel*>(state);
}

}  // namespace

extern "C" {

TRITONSERVER_Error* TRITONBACKEND_Initialize(TRITONBACKEND_Backend*) { return guarded(require_server_api); }
TRITONSERVER_Error* TRITONBACKEND_GetBackendAttribute(TRITONBACKEND_Backend*,
                                                      TRITONBACKEND_BackendAttribute* attributes) {
  return guarded([&] {
    check(server_api().TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup(
        attributes, TRITONSERVER_INSTANCEGROUPKIND_MODEL, 1, nullptr, 0));
  });
}
TRITONSERVER_Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model) {
  return guarded([&] { check(server_api().TRITONBACKEND_ModelSetState(model, new NoopModel(model))); });
}
TRITONSERVER_Error* TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model* model) {
  return guarded([&] { delete model_state(model); });
}
TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance* instance,
                                                       TRITONBACKEND_Request** requests,
                                                       uint32_t num_requests) {
  return guarded([&] {
    TRITONBACKEND_Model* model = nullptr;
    check(server_api().TRITONBACKEND_ModelInstanceModel(instance, &model));
    for (uint32_t i = 0; i < num_requests; ++i) model_state(model)->execute(instance, requests[i]);
  });
}

}  // extern "C"
