// What the opaque handles of Triton's C ABI point to, in the tests' server.
//
// An object that the backend has deleted, sent or released is kept until the end of the test and marked, so
// that a second use is seen for what it is. What the backend does against the rules is written down, and the
// test fails.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "tensors.h"

namespace quire::triton::host {

struct Object {
  explicit Object(const char* object_kind) : kind(object_kind) {}
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;
  virtual ~Object() = default;

  const char* kind;
  // Relaxed everywhere: it must not order what the backend forgot to order.
  std::atomic<bool> alive{true};
};

// Everything that was made since the last `reset`, and every rule that was broken. Thread-safe.
class Ledger {
 public:
  static Ledger& instance();

  template <typename T, typename... Args>
  T* make(Args&&... args) {
    auto object = std::make_unique<T>(std::forward<Args>(args)...);
    T* made = object.get();
    const std::lock_guard lock(mutex_);
    objects_.push_back(std::move(object));
    return made;
  }

  void violation(const std::string& what);
  // Marks the object as used up; a violation when it was already.
  void end(Object* object, const char* function);
  // A violation when the object is null, or used up.
  void use(const Object* object, const char* function);

  std::vector<std::string> violations() const;
  // How many of `kind` are alive; of all kinds that the backend must delete, with "".
  size_t num_alive(std::string_view kind = {}) const;
  // The sum over the metrics that are alive and have these labels, among others: of values, of histograms'
  // counts.
  double sum_of_metrics(const std::string& family, const std::map<std::string, std::string>& labels) const;
  // Frees what is used up, and what is not.
  void reset();
  // Frees what is used up.
  void forget_the_dead();

 private:
  mutable std::mutex mutex_;
  std::deque<std::unique_ptr<Object>> objects_;
  std::vector<std::string> violations_;
};

inline Ledger& ledger() { return Ledger::instance(); }

// Makes a function of the server fail, once, at its nth call from now (0 is the next). Thread-safe.
class Faults {
 public:
  static Faults& instance();

  void arm(const std::string& function, int nth_call,
           TRITONSERVER_Error_Code code = TRITONSERVER_ERROR_INTERNAL);
  // True when it has failed.
  bool disarm();
  // The error that `function` is to return; null nearly always.
  TRITONSERVER_Error* hit(const char* function);
  // How often `function` was called since `arm`; it is counted while armed.
  int num_calls() const { return calls_.load(); }

 private:
  std::mutex mutex_;
  std::atomic<bool> armed_{false};
  std::string function_;
  int nth_call_ = 0;
  std::atomic<int> calls_{0};
  bool fired_ = false;
  TRITONSERVER_Error_Code code_ = TRITONSERVER_ERROR_INTERNAL;
};

struct ReceivedOutput {
  TRITONSERVER_DataType datatype = TRITONSERVER_TYPE_INVALID;
  std::vector<int64_t> shape;
  std::string bytes;
};

struct ReceivedResponse {
  std::map<std::string, ReceivedOutput> outputs;
  std::optional<TRITONSERVER_Error_Code> error_code;
  std::string error;
};

// A request's other end. Thread-safe.
struct ClientEnd {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<ReceivedResponse> responses;
  bool final = false;
  bool released = false;
  bool counted_success = false;  // as the backend reported it
  std::function<void(size_t num_responses)> on_response;

  std::atomic<bool> cancelled{false};
  // The client's memory is too small for the response with this index, and for later ones.
  std::atomic<int> refused_from{-1};
};

inline TRITONSERVER_Error* make_error(TRITONSERVER_Error_Code code, const std::string& message) {
  return ledger().make<TRITONSERVER_Error>(code, message);
}

}  // namespace quire::triton::host

// ---- The handles ----

struct TRITONSERVER_Error : quire::triton::host::Object {
  TRITONSERVER_Error(TRITONSERVER_Error_Code error_code, std::string text)
      : Object("error"), code(error_code), message(std::move(text)) {}
  const TRITONSERVER_Error_Code code;
  const std::string message;
};

struct TRITONSERVER_Message : quire::triton::host::Object {
  TRITONSERVER_Message(std::string text, bool servers_own)
      : Object(servers_own ? "server's message" : "message"), json(std::move(text)) {}
  const std::string json;
};

struct TRITONSERVER_Parameter : quire::triton::host::Object {
  TRITONSERVER_Parameter(std::string parameter_name, std::string parameter_value)
      : Object("parameter"), name(std::move(parameter_name)), value(std::move(parameter_value)) {}
  const std::string name, value;
};

struct TRITONSERVER_MetricArgs : quire::triton::host::Object {
  TRITONSERVER_MetricArgs() : Object("metric args") {}
  std::vector<double> buckets;
};

struct TRITONSERVER_MetricFamily : quire::triton::host::Object {
  TRITONSERVER_MetricFamily(TRITONSERVER_MetricKind metric_kind, std::string family_name)
      : Object("metric family"), metric_kind(metric_kind), name(std::move(family_name)) {}
  const TRITONSERVER_MetricKind metric_kind;
  const std::string name;
  std::atomic<int> num_metrics{0};
};

struct TRITONSERVER_Metric : quire::triton::host::Object {
  explicit TRITONSERVER_Metric(TRITONSERVER_MetricFamily* metric_family)
      : Object("metric"), family(metric_family) {}
  TRITONSERVER_MetricFamily* const family;
  std::map<std::string, std::string> labels;
  std::vector<double> buckets;
  std::atomic<double> value{0};    // of a histogram: the sum
  std::atomic<uint64_t> count{0};  // of a histogram
};

namespace quire::triton::host {
inline uint32_t api_major = 1;  // what TRITONBACKEND_ApiVersion says
}

struct TRITONBACKEND_Backend : quire::triton::host::Object {
  TRITONBACKEND_Backend() : Object("backend") {}
  TRITONSERVER_Message* config = nullptr;
  std::atomic<void*> state{nullptr};
};

struct TRITONBACKEND_BackendAttribute {
  std::vector<TRITONSERVER_InstanceGroupKind> preferred_groups;
};

struct TRITONSERVER_Server : quire::triton::host::Object {
  TRITONSERVER_Server() : Object("server") {}
  std::atomic<bool> live{true};
  // What TRITONSERVER_ServerUnloadModel does, set by Host.
  std::function<void(const std::string& model)> unload;
};

struct TRITONBACKEND_Model : quire::triton::host::Object {
  TRITONBACKEND_Model() : Object("model") {}
  std::string name;
  uint64_t version = 1;
  std::string repository;
  std::string config;  // JSON; once loaded, what responses are held against
  bool auto_complete = true;
  std::atomic<bool> initializing{false};
  // Read from `config` once loaded. `batched`: shapes have a batch dimension before the configured ones.
  bool decoupled = false;
  bool batched = false;
  std::map<std::string, std::pair<TRITONSERVER_DataType, std::vector<int64_t>>> outputs;
  TRITONBACKEND_Backend* backend = nullptr;
  TRITONSERVER_Server* server = nullptr;
  std::atomic<void*> state{nullptr};
};

struct TRITONBACKEND_ModelInstance : quire::triton::host::Object {
  TRITONBACKEND_ModelInstance() : Object("model instance") {}
  TRITONBACKEND_Model* model = nullptr;
  TRITONSERVER_InstanceGroupKind instance_kind = TRITONSERVER_INSTANCEGROUPKIND_MODEL;
  int32_t device_id = 0;
  std::atomic<void*> state{nullptr};
  std::mutex execute_mutex;  // the server calls Execute of an instance on one thread
  std::atomic<uint64_t> num_successes{0}, num_failures{0}, num_batches{0};
};

struct TRITONBACKEND_Input {
  std::string name;
  TRITONSERVER_DataType datatype = TRITONSERVER_TYPE_INVALID;
  std::vector<int64_t> shape;
  std::vector<std::string> buffers;
  TRITONSERVER_MemoryType memory_type = TRITONSERVER_MEMORY_CPU;
};

struct TRITONBACKEND_Request : quire::triton::host::Object {
  TRITONBACKEND_Request() : Object("request") {}
  std::string id;
  std::deque<TRITONBACKEND_Input> inputs;
  std::vector<quire::triton::RequestParameter> parameters;
  std::vector<std::string> outputs;
  uint64_t timeout_us = 0;
  TRITONBACKEND_Model* model = nullptr;
  const TRITONBACKEND_ModelInstance* instance = nullptr;
  std::shared_ptr<quire::triton::host::ClientEnd> client;
  std::atomic<int> num_reports{0}, num_factories{0};
};

struct TRITONBACKEND_ResponseFactory : quire::triton::host::Object {
  TRITONBACKEND_ResponseFactory() : Object("response factory") {}
  TRITONBACKEND_Model* model = nullptr;
  std::shared_ptr<quire::triton::host::ClientEnd> client;
  std::atomic<bool> final{false};
  std::atomic<int> num_made{0}, num_sent{0}, num_unsent{0};
};

struct TRITONBACKEND_Output {
  std::string name;
  quire::triton::host::ReceivedOutput received;
  std::optional<std::vector<char>> buffer;
  TRITONBACKEND_Response* response = nullptr;
};

struct TRITONBACKEND_Response : quire::triton::host::Object {
  explicit TRITONBACKEND_Response(TRITONBACKEND_ResponseFactory* response_factory, int response_index)
      : Object("response"), factory(response_factory), index(response_index) {}
  TRITONBACKEND_ResponseFactory* const factory;
  const int index;
  std::deque<TRITONBACKEND_Output> outputs;
  bool refused = false;  // an OutputBuffer has failed
};

// First in each function that a test may have fail.
#define QUIRE_FAULT_POINT() \
  if (TRITONSERVER_Error* injected = Faults::instance().hit(__func__)) return injected
