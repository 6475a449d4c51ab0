// A server in the test's own process: it loads the backend's models and sends them requests.
//
//   Host host;
//   auto model = host.load("demo", demo_config());
//   auto call = model->infer(text_request("Once upon a time", R"({"max_tokens": 8})"));
//   call->wait();
//   EXPECT_EQ(call->error(), "");
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "server_objects.h"

namespace quire::triton::host {

// An error that a call of the backend returned.
class HostError : public std::runtime_error {
 public:
  HostError(TRITONSERVER_Error_Code code, const std::string& message)
      : std::runtime_error(message), code_(code) {}
  TRITONSERVER_Error_Code code() const { return code_; }

 private:
  TRITONSERVER_Error_Code code_;
};

// ---- What a client sends ----

using Input = TRITONBACKEND_Input;

struct ClientRequest {
  std::string id;
  std::vector<Input> inputs;
  std::vector<RequestParameter> parameters;
  std::vector<std::string> outputs;  // none: all, as the server has it
  uint64_t timeout_us = 0;
  int refused_from = -1;   // the client's memory is too small for this response, and later ones
  bool cancelled = false;  // before it is heard of
  std::function<void(size_t num_responses)> on_response;  // on the backend's thread
};

std::string string_bytes(const std::string& text);
Input string_input(const std::string& name, const std::string& text);
Input bool_input(const std::string& name, bool value);
Input ids_input(const std::vector<int32_t>& ids);
// A request with text_input and, unless it is empty, sampling_parameters.
ClientRequest text_request(const std::string& text, const std::string& sampling_parameters = {});
// A text_request with `stream`.
ClientRequest stream_request(const std::string& text, const std::string& sampling_parameters = {});

// ---- What a client gets ----

std::vector<std::string> strings(const ReceivedOutput& output);
template <typename T>
std::vector<T> numbers(const ReceivedOutput& output) {
  std::vector<T> values(output.bytes.size() / sizeof(T));
  std::copy(output.bytes.begin(), output.bytes.end(), reinterpret_cast<char*>(values.data()));
  return values;
}

// A request on its way. Thread-safe.
class Call {
 public:
  explicit Call(std::shared_ptr<ClientEnd> client) : client_(std::move(client)) {}

  // Until the final flag has come and the request is released. Throws when that takes a minute.
  std::vector<ReceivedResponse> wait() const;
  // Until there are so many responses, or it has ended.
  void wait_for_responses(size_t count) const;
  bool wait_until_done(std::chrono::milliseconds timeout) const;
  void cancel() const { client_->cancelled = true; }

  std::vector<ReceivedResponse> responses() const;
  // The error of the last response; "" when it is a success.
  std::string error() const;
  std::optional<TRITONSERVER_Error_Code> error_code() const;
  // The first completion's text of all responses.
  std::string text() const;
  std::vector<int32_t> ids() const;
  bool counted_success() const;

 private:
  std::shared_ptr<ClientEnd> client_;
};

// ---- The server ----

struct Instance {
  TRITONSERVER_InstanceGroupKind kind = TRITONSERVER_INSTANCEGROUPKIND_MODEL;
  int32_t device_id = 0;
};

struct LoadOptions {
  std::vector<Instance> instances = {{}};
  bool auto_complete = true;
  uint64_t version = 1;
  std::string repository = "/nowhere";
};

class Model {
 public:
  // Throws HostError when the model is not loaded.
  Model(TRITONSERVER_Server* server, TRITONBACKEND_Backend* backend, const std::string& name,
        const std::string& config, const LoadOptions& options);
  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  // Calls Execute on this thread, one at a time for each instance. Throws HostError(UNAVAILABLE) once it is
  // unloaded, and what Execute returns.
  std::shared_ptr<Call> infer(const ClientRequest& request, size_t instance = 0);
  std::vector<std::shared_ptr<Call>> infer_batch(const std::vector<ClientRequest>& requests,
                                                 size_t instance = 0);
  // Empty, or why TRITONBACKEND_ModelInstanceReady says no.
  std::string not_ready(size_t instance = 0);
  // Unloads like the server: takes no more requests, waits for those in flight, and finalizes.
  void unload();
  // Does not wait for them.
  void finalize();
  // What the server does when instance_group has changed: what the instance was given goes on.
  void remove_last_instance();

  const std::string& name() const { return model_->name; }
  const std::string& config() const { return model_->config; }
  uint64_t num_successes() const;
  uint64_t num_failures() const;

 private:
  void end();

  TRITONBACKEND_Model* model_ = nullptr;
  std::vector<TRITONBACKEND_ModelInstance*> instances_;
  std::mutex mutex_;
  bool unloading_ = false;
  std::vector<std::shared_ptr<ClientEnd>> in_flight_;
  std::once_flag finalized_;
};

class Host {
 public:
  // `backend_config` is what --backend-config gives, as JSON. Throws HostError.
  explicit Host(const std::string& backend_config = R"({"cmdline": {}})");
  // Unloads what is loaded.
  ~Host();
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  std::shared_ptr<Model> load(const std::string& name, const std::string& config,
                              const LoadOptions& options = {});

  // The value of a metric with these labels, among others; of a histogram, its count. The sum over all that
  // fit.
  double metric(const std::string& name, const std::map<std::string, std::string>& labels = {}) const;

  // From now on the server says that it is about to end; it goes on serving.
  void begin_exit() { server_->live = false; }

  struct Unload {
    std::string model;
    std::thread::id thread;
  };
  // What the backend has asked for with TRITONSERVER_ServerUnloadModel.
  std::vector<Unload> unloads() const;
  // Until so many of them are done. False when that takes half a minute.
  bool wait_for_unload(size_t count = 1) const;

 private:
  void unload(const std::string& model);

  TRITONSERVER_Server* server_ = nullptr;
  TRITONBACKEND_Backend* backend_ = nullptr;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::map<std::string, std::shared_ptr<Model>> models_;
  std::vector<Unload> unloads_;
  size_t num_unloaded_ = 0;
};

}  // namespace quire::triton::host
