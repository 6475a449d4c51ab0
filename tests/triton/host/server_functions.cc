// Every function of QUIRE_TRITON_SERVER_FUNCTIONS, as a strict server would have it. The test program exports
// them, and the backend finds them as it finds the real ones.
#include <cstring>

#include "server_log.h"
#include "server_objects.h"

using namespace quire::triton;
using namespace quire::triton::host;

namespace {

Ledger& ledger() { return Ledger::instance(); }

TRITONSERVER_Error* new_error(TRITONSERVER_Error_Code code, const std::string& message) {
  return ledger().make<TRITONSERVER_Error>(code, message);
}

size_t element_bytes(TRITONSERVER_DataType datatype) {
  switch (datatype) {
    case TRITONSERVER_TYPE_BOOL:
    case TRITONSERVER_TYPE_UINT8:
    case TRITONSERVER_TYPE_INT8: return 1;
    case TRITONSERVER_TYPE_UINT16:
    case TRITONSERVER_TYPE_INT16:
    case TRITONSERVER_TYPE_FP16:
    case TRITONSERVER_TYPE_BF16: return 2;
    case TRITONSERVER_TYPE_UINT32:
    case TRITONSERVER_TYPE_INT32:
    case TRITONSERVER_TYPE_FP32: return 4;
    case TRITONSERVER_TYPE_UINT64:
    case TRITONSERVER_TYPE_INT64:
    case TRITONSERVER_TYPE_FP64: return 8;
    default: return 0;
  }
}

// How many strings these bytes are; -1 when they are not.
int64_t count_strings(const std::string& bytes) {
  int64_t count = 0;
  for (size_t at = 0; at < bytes.size(); ++count) {
    uint32_t size = 0;
    if (bytes.size() - at < sizeof size) return -1;
    std::memcpy(&size, bytes.data() + at, sizeof size);
    at += sizeof size;
    if (bytes.size() - at < size) return -1;
    at += size;
  }
  return count;
}

void check_output(const TRITONBACKEND_Model& model, const std::string& name, const ReceivedOutput& output) {
  const auto complain = [&](const std::string& what) {
    ledger().violation("output '" + name + "': " + what);
  };
  const auto spec = model.outputs.find(name);
  if (spec == model.outputs.end()) return complain("the model's configuration does not have it");
  if (output.datatype != spec->second.first) complain("its datatype is not the configuration's");
  const auto& dims = spec->second.second;
  bool fits = dims.size() == output.shape.size();
  int64_t count = 1;
  for (size_t i = 0; i < output.shape.size(); ++i) {
    fits = fits && (dims[i] == -1 || dims[i] == output.shape[i]);
    count *= output.shape[i];
  }
  if (!fits) complain("its shape is not the configuration's");
  if (output.datatype == TRITONSERVER_TYPE_BYTES) {
    if (count_strings(output.bytes) != count) complain("its bytes are not as many strings as its shape says");
  } else if (output.bytes.size() != static_cast<size_t>(count) * element_bytes(output.datatype)) {
    complain("it has not as many bytes as its shape says");
  }
}

void receive(ClientEnd& client, ReceivedResponse* response, bool final) {
  std::function<void(size_t)> on_response;
  size_t num_responses = 0;
  {
    const std::lock_guard lock(client.mutex);
    if (response) client.responses.push_back(std::move(*response));
    client.final = client.final || final;
    on_response = client.on_response;
    num_responses = client.responses.size();
    client.changed.notify_all();
  }
  if (response && on_response) on_response(num_responses);
}

void send_final(TRITONBACKEND_ResponseFactory* factory, const char* function) {
  if (factory->final.exchange(true))
    ledger().violation(std::string(function) + ": the final flag was sent before");
}

void keep_rules_of_metric(TRITONSERVER_Metric* metric, TRITONSERVER_MetricKind kind, const char* function) {
  ledger().use(metric, function);
  ledger().use(metric->family, function);
  if (metric->family->metric_kind != kind) {
    ledger().violation(std::string(function) + ": " + metric->family->name + " is of another kind");
  }
}

}  // namespace

#define QUIRE_FAULT_POINT() \
  if (TRITONSERVER_Error* injected = Faults::instance().hit(__func__)) return injected

extern "C" {

// ---- errors, logs, messages ----

TRITONSERVER_Error* TRITONSERVER_ErrorNew(TRITONSERVER_Error_Code code, const char* message) {
  return new_error(code, message);
}

void TRITONSERVER_ErrorDelete(TRITONSERVER_Error* error) { ledger().end(error, __func__); }

TRITONSERVER_Error_Code TRITONSERVER_ErrorCode(TRITONSERVER_Error* error) {
  ledger().use(error, __func__);
  return error->code;
}

const char* TRITONSERVER_ErrorMessage(TRITONSERVER_Error* error) {
  ledger().use(error, __func__);
  return error->message.c_str();
}

bool TRITONSERVER_LogIsEnabled(TRITONSERVER_LogLevel level) { return level != TRITONSERVER_LOG_VERBOSE; }

TRITONSERVER_Error* TRITONSERVER_LogMessage(TRITONSERVER_LogLevel level, const char*, int,
                                            const char* message) {
  QUIRE_FAULT_POINT();
  ServerLog::instance().add(level, message);
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_MessageNewFromSerializedJson(TRITONSERVER_Message** message,
                                                              const char* json, size_t size) {
  QUIRE_FAULT_POINT();
  *message = ledger().make<TRITONSERVER_Message>(std::string(json, size), /*servers_own=*/false);
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_MessageSerializeToJson(TRITONSERVER_Message* message, const char** json,
                                                        size_t* size) {
  QUIRE_FAULT_POINT();
  ledger().use(message, __func__);
  *json = message->json.data();
  *size = message->json.size();
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_MessageDelete(TRITONSERVER_Message* message) {
  if (std::strcmp(message->kind, "message") != 0)
    ledger().violation("MessageDelete: this one is the server's");
  ledger().end(message, __func__);
  return nullptr;
}

// ---- metrics ----

TRITONSERVER_Parameter* TRITONSERVER_ParameterNew(const char* name, TRITONSERVER_ParameterType type,
                                                  const void* value) {
  if (type != TRITONSERVER_PARAMETER_STRING) ledger().violation("ParameterNew: labels are strings");
  return ledger().make<TRITONSERVER_Parameter>(name, static_cast<const char*>(value));
}

void TRITONSERVER_ParameterDelete(TRITONSERVER_Parameter* parameter) { ledger().end(parameter, __func__); }

TRITONSERVER_Error* TRITONSERVER_MetricFamilyNew(TRITONSERVER_MetricFamily** family,
                                                 TRITONSERVER_MetricKind kind, const char* name,
                                                 const char* description) {
  QUIRE_FAULT_POINT();
  if (!*description) ledger().violation(std::string("MetricFamilyNew: ") + name + " has no description");
  *family = ledger().make<TRITONSERVER_MetricFamily>(kind, name);
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_MetricFamilyDelete(TRITONSERVER_MetricFamily* family) {
  if (family->num_metrics != 0)
    ledger().violation("MetricFamilyDelete: " + family->name + " still has metrics");
  ledger().end(family, __func__);
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_MetricArgsNew(TRITONSERVER_MetricArgs** args) {
  QUIRE_FAULT_POINT();
  *args = ledger().make<TRITONSERVER_MetricArgs>();
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_MetricArgsSetHistogram(TRITONSERVER_MetricArgs* args, const double* buckets,
                                                        uint64_t num_buckets) {
  QUIRE_FAULT_POINT();
  ledger().use(args, __func__);
  args->buckets.assign(buckets, buckets + num_buckets);
  for (size_t i = 1; i < args->buckets.size(); ++i) {
    if (args->buckets[i - 1] >= args->buckets[i])
      ledger().violation("MetricArgsSetHistogram: buckets must ascend");
  }
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_MetricArgsDelete(TRITONSERVER_MetricArgs* args) {
  ledger().end(args, __func__);
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_MetricNewWithArgs(TRITONSERVER_Metric** metric,
                                                   TRITONSERVER_MetricFamily* family,
                                                   const TRITONSERVER_Parameter** labels, uint64_t num_labels,
                                                   const TRITONSERVER_MetricArgs* args) {
  QUIRE_FAULT_POINT();
  ledger().use(family, __func__);
  const bool is_histogram = family->metric_kind == TRITONSERVER_METRIC_KIND_HISTOGRAM;
  if (is_histogram != (args && !args->buckets.empty())) {
    ledger().violation("MetricNewWithArgs: " + family->name +
                       " must have buckets if, and only if, it is a histogram");
  }
  *metric = ledger().make<TRITONSERVER_Metric>(family);
  for (uint64_t i = 0; i < num_labels; ++i) {
    ledger().use(labels[i], __func__);
    (*metric)->labels[labels[i]->name] = labels[i]->value;
  }
  if (args) (*metric)->buckets = args->buckets;
  ++family->num_metrics;
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_MetricDelete(TRITONSERVER_Metric* metric) {
  ledger().use(metric->family, __func__);
  --metric->family->num_metrics;
  ledger().end(metric, __func__);
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_MetricIncrement(TRITONSERVER_Metric* metric, double value) {
  QUIRE_FAULT_POINT();
  keep_rules_of_metric(metric, TRITONSERVER_METRIC_KIND_COUNTER, __func__);
  if (!(value >= 0)) ledger().violation("MetricIncrement: a counter only grows");
  metric->value.fetch_add(value, std::memory_order_relaxed);
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_MetricSet(TRITONSERVER_Metric* metric, double value) {
  QUIRE_FAULT_POINT();
  keep_rules_of_metric(metric, TRITONSERVER_METRIC_KIND_GAUGE, __func__);
  metric->value.store(value, std::memory_order_relaxed);
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_MetricObserve(TRITONSERVER_Metric* metric, double value) {
  QUIRE_FAULT_POINT();
  keep_rules_of_metric(metric, TRITONSERVER_METRIC_KIND_HISTOGRAM, __func__);
  metric->value.fetch_add(value, std::memory_order_relaxed);
  metric->count.fetch_add(1, std::memory_order_relaxed);
  return nullptr;
}

// ---- server, backend, model ----

TRITONSERVER_Error* TRITONSERVER_ServerUnloadModel(TRITONSERVER_Server* server, const char* name) {
  QUIRE_FAULT_POINT();
  ledger().use(server, __func__);
  server->unload(name);
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_ServerIsLive(TRITONSERVER_Server* server, bool* live) {
  ledger().use(server, __func__);
  if (!server->live) return new_error(TRITONSERVER_ERROR_UNAVAILABLE, "the server exits");
  *live = true;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ApiVersion(uint32_t* major, uint32_t* minor) {
  *major = 1;
  *minor = 19;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_BackendConfig(TRITONBACKEND_Backend* backend,
                                                TRITONSERVER_Message** config) {
  QUIRE_FAULT_POINT();
  ledger().use(backend, __func__);
  *config = backend->config;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_BackendState(TRITONBACKEND_Backend* backend, void** state) {
  QUIRE_FAULT_POINT();
  ledger().use(backend, __func__);
  *state = backend->state;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_BackendSetState(TRITONBACKEND_Backend* backend, void* state) {
  QUIRE_FAULT_POINT();
  ledger().use(backend, __func__);
  backend->state = state;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup(
    TRITONBACKEND_BackendAttribute* attributes, TRITONSERVER_InstanceGroupKind kind, uint64_t,
    const uint64_t*, uint64_t) {
  QUIRE_FAULT_POINT();
  attributes->preferred_groups.push_back(kind);
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelName(TRITONBACKEND_Model* model, const char** name) {
  QUIRE_FAULT_POINT();
  ledger().use(model, __func__);
  *name = model->name.c_str();
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelVersion(TRITONBACKEND_Model* model, uint64_t* version) {
  QUIRE_FAULT_POINT();
  ledger().use(model, __func__);
  *version = model->version;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelRepository(TRITONBACKEND_Model* model,
                                                  TRITONBACKEND_ArtifactType* type, const char** location) {
  QUIRE_FAULT_POINT();
  ledger().use(model, __func__);
  *type = TRITONBACKEND_ARTIFACT_FILESYSTEM;
  *location = model->repository.c_str();
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelConfig(TRITONBACKEND_Model* model, uint32_t,
                                              TRITONSERVER_Message** config) {
  QUIRE_FAULT_POINT();
  ledger().use(model, __func__);
  *config = ledger().make<TRITONSERVER_Message>(model->config, /*servers_own=*/false);
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelAutoCompleteConfig(TRITONBACKEND_Model* model, bool* wanted) {
  QUIRE_FAULT_POINT();
  ledger().use(model, __func__);
  *wanted = model->auto_complete;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelSetConfig(TRITONBACKEND_Model* model, uint32_t,
                                                 TRITONSERVER_Message* config) {
  QUIRE_FAULT_POINT();
  ledger().use(model, __func__);
  ledger().use(config, __func__);
  if (!model->initializing) ledger().violation("ModelSetConfig: only while the model is initialized");
  if (!model->auto_complete) ledger().violation("ModelSetConfig: the server did not want it");
  model->config = config->json;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelServer(TRITONBACKEND_Model* model, TRITONSERVER_Server** server) {
  QUIRE_FAULT_POINT();
  ledger().use(model, __func__);
  *server = model->server;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelBackend(TRITONBACKEND_Model* model, TRITONBACKEND_Backend** backend) {
  QUIRE_FAULT_POINT();
  ledger().use(model, __func__);
  *backend = model->backend;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelState(TRITONBACKEND_Model* model, void** state) {
  QUIRE_FAULT_POINT();
  ledger().use(model, __func__);
  *state = model->state;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelSetState(TRITONBACKEND_Model* model, void* state) {
  QUIRE_FAULT_POINT();
  ledger().use(model, __func__);
  model->state = state;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceName(TRITONBACKEND_ModelInstance* instance,
                                                    const char** name) {
  QUIRE_FAULT_POINT();
  ledger().use(instance, __func__);
  *name = instance->name.c_str();
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceKind(TRITONBACKEND_ModelInstance* instance,
                                                    TRITONSERVER_InstanceGroupKind* kind) {
  QUIRE_FAULT_POINT();
  ledger().use(instance, __func__);
  *kind = TRITONSERVER_INSTANCEGROUPKIND_MODEL;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceModel(TRITONBACKEND_ModelInstance* instance,
                                                     TRITONBACKEND_Model** model) {
  QUIRE_FAULT_POINT();
  ledger().use(instance, __func__);
  *model = instance->model;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceState(TRITONBACKEND_ModelInstance* instance, void** state) {
  QUIRE_FAULT_POINT();
  ledger().use(instance, __func__);
  *state = instance->state;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceSetState(TRITONBACKEND_ModelInstance* instance, void* state) {
  QUIRE_FAULT_POINT();
  ledger().use(instance, __func__);
  instance->state = state;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceReportStatistics(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request* request, bool success,
    uint64_t exec_start_ns, uint64_t compute_start_ns, uint64_t compute_end_ns, uint64_t exec_end_ns) {
  ledger().use(instance, __func__);
  ledger().use(request, __func__);
  if (request->num_reports++ > 0) ledger().violation("ModelInstanceReportStatistics: twice for one request");
  if (exec_start_ns > compute_start_ns || compute_start_ns > compute_end_ns || compute_end_ns > exec_end_ns) {
    ledger().violation("ModelInstanceReportStatistics: the times do not ascend");
  }
  ++(success ? instance->num_successes : instance->num_failures);
  QUIRE_FAULT_POINT();
  const std::lock_guard lock(request->client->mutex);
  request->client->counted_success = success;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceReportBatchStatistics(
    TRITONBACKEND_ModelInstance* instance, uint64_t batch_size, uint64_t exec_start_ns,
    uint64_t compute_start_ns, uint64_t compute_end_ns, uint64_t exec_end_ns) {
  QUIRE_FAULT_POINT();
  ledger().use(instance, __func__);
  if (batch_size == 0) ledger().violation("ModelInstanceReportBatchStatistics: a batch of none");
  if (exec_start_ns > compute_start_ns || compute_start_ns > compute_end_ns || compute_end_ns > exec_end_ns) {
    ledger().violation("ModelInstanceReportBatchStatistics: the times do not ascend");
  }
  ++instance->num_batches;
  return nullptr;
}

// ---- requests ----

TRITONSERVER_Error* TRITONBACKEND_RequestId(TRITONBACKEND_Request* request, const char** id) {
  QUIRE_FAULT_POINT();
  ledger().use(request, __func__);
  *id = request->id.c_str();
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_RequestParameterCount(TRITONBACKEND_Request* request, uint32_t* count) {
  QUIRE_FAULT_POINT();
  ledger().use(request, __func__);
  *count = static_cast<uint32_t>(request->parameters.size());
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_RequestParameter(TRITONBACKEND_Request* request, uint32_t index,
                                                   const char** key, TRITONSERVER_ParameterType* type,
                                                   const void** value) {
  QUIRE_FAULT_POINT();
  ledger().use(request, __func__);
  const RequestParameter& parameter = request->parameters.at(index);
  *key = parameter.name.c_str();
  if (const auto* text = std::get_if<std::string>(&parameter.value)) {
    *type = TRITONSERVER_PARAMETER_STRING;
    *value = text->c_str();
  } else if (const auto* number = std::get_if<int64_t>(&parameter.value)) {
    *type = TRITONSERVER_PARAMETER_INT;
    *value = number;
  } else if (const auto* flag = std::get_if<bool>(&parameter.value)) {
    *type = TRITONSERVER_PARAMETER_BOOL;
    *value = flag;
  } else {
    *type = TRITONSERVER_PARAMETER_DOUBLE;
    *value = std::get_if<double>(&parameter.value);
  }
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_RequestInputCount(TRITONBACKEND_Request* request, uint32_t* count) {
  QUIRE_FAULT_POINT();
  ledger().use(request, __func__);
  *count = static_cast<uint32_t>(request->inputs.size());
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_RequestInputByIndex(TRITONBACKEND_Request* request, uint32_t index,
                                                      TRITONBACKEND_Input** input) {
  QUIRE_FAULT_POINT();
  ledger().use(request, __func__);
  *input = &request->inputs.at(index);
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_RequestOutputCount(TRITONBACKEND_Request* request, uint32_t* count) {
  QUIRE_FAULT_POINT();
  ledger().use(request, __func__);
  *count = static_cast<uint32_t>(request->outputs.size());
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_RequestOutputName(TRITONBACKEND_Request* request, uint32_t index,
                                                    const char** name) {
  QUIRE_FAULT_POINT();
  ledger().use(request, __func__);
  *name = request->outputs.at(index).c_str();
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_InferenceRequestTimeoutMicroseconds(TRITONBACKEND_Request* request,
                                                                      uint64_t* timeout_us) {
  QUIRE_FAULT_POINT();
  ledger().use(request, __func__);
  *timeout_us = request->timeout_us;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_RequestRelease(TRITONBACKEND_Request* request, uint32_t flags) {
  if (flags != TRITONSERVER_REQUEST_RELEASE_ALL)
    ledger().violation("RequestRelease: with other flags than ALL");
  if (request->num_factories > 0 && request->num_reports == 0) {
    ledger().violation("RequestRelease: before its statistics were reported");
  }
  ledger().end(request, __func__);
  request->inputs.clear();  // whoever still borrows from them is seen by AddressSanitizer
  request->inputs.shrink_to_fit();
  const std::lock_guard lock(request->client->mutex);
  request->client->released = true;
  if (request->num_factories == 0) request->client->final = true;  // nothing can come any more
  request->client->changed.notify_all();
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_InputProperties(TRITONBACKEND_Input* input, const char** name,
                                                  TRITONSERVER_DataType* datatype, const int64_t** shape,
                                                  uint32_t* num_dims, uint64_t* num_bytes,
                                                  uint32_t* num_buffers) {
  QUIRE_FAULT_POINT();
  *name = input->name.c_str();
  *datatype = input->datatype;
  *shape = input->shape.data();
  *num_dims = static_cast<uint32_t>(input->shape.size());
  *num_bytes = 0;
  for (const std::string& buffer : input->buffers) *num_bytes += buffer.size();
  *num_buffers = static_cast<uint32_t>(input->buffers.size());
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_InputBuffer(TRITONBACKEND_Input* input, uint32_t index, const void** buffer,
                                              uint64_t* num_bytes, TRITONSERVER_MemoryType* memory_type,
                                              int64_t* memory_type_id) {
  QUIRE_FAULT_POINT();
  const std::string& bytes = input->buffers.at(index);
  *buffer = bytes.empty() ? nullptr : bytes.data();
  *num_bytes = bytes.size();
  *memory_type = input->memory_type;
  *memory_type_id = 0;
  return nullptr;
}

// ---- responses ----

TRITONSERVER_Error* TRITONBACKEND_ResponseFactoryNew(TRITONBACKEND_ResponseFactory** factory,
                                                     TRITONBACKEND_Request* request) {
  QUIRE_FAULT_POINT();
  ledger().use(request, __func__);
  ++request->num_factories;
  *factory = ledger().make<TRITONBACKEND_ResponseFactory>();
  (*factory)->model = request->model;
  (*factory)->client = request->client;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ResponseFactoryDelete(TRITONBACKEND_ResponseFactory* factory) {
  if (!factory->final) ledger().violation("ResponseFactoryDelete: no final flag was sent");
  if (factory->num_unsent != 0)
    ledger().violation("ResponseFactoryDelete: a response of it is neither sent nor deleted");
  ledger().end(factory, __func__);
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ResponseFactoryIsCancelled(TRITONBACKEND_ResponseFactory* factory,
                                                             bool* is_cancelled) {
  QUIRE_FAULT_POINT();
  ledger().use(factory, __func__);
  *is_cancelled = factory->client->cancelled.load(std::memory_order_relaxed);
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ResponseFactorySendFlags(TRITONBACKEND_ResponseFactory* factory,
                                                           uint32_t flags) {
  ledger().use(factory, __func__);
  if (flags != TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    ledger().violation("ResponseFactorySendFlags: no final flag");
  send_final(factory, __func__);
  receive(*factory->client, nullptr, /*final=*/true);
  QUIRE_FAULT_POINT();
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ResponseNewFromFactory(TRITONBACKEND_Response** response,
                                                         TRITONBACKEND_ResponseFactory* factory) {
  QUIRE_FAULT_POINT();
  ledger().use(factory, __func__);
  if (factory->final) ledger().violation("ResponseNewFromFactory: after the final flag");
  *response = ledger().make<TRITONBACKEND_Response>(factory, factory->num_made++);
  ++factory->num_unsent;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ResponseDelete(TRITONBACKEND_Response* response) {
  ledger().end(response, __func__);
  --response->factory->num_unsent;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ResponseOutput(TRITONBACKEND_Response* response,
                                                 TRITONBACKEND_Output** output, const char* name,
                                                 TRITONSERVER_DataType datatype, const int64_t* shape,
                                                 uint32_t num_dims) {
  QUIRE_FAULT_POINT();
  ledger().use(response, __func__);
  for (const TRITONBACKEND_Output& other : response->outputs) {
    if (other.name == name)
      ledger().violation(std::string("ResponseOutput: '") + name + "' twice in one response");
  }
  TRITONBACKEND_Output& made = response->outputs.emplace_back();
  made.name = name;
  made.received.datatype = datatype;
  made.received.shape.assign(shape, shape + num_dims);
  made.response = response;
  *output = &made;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_OutputBuffer(TRITONBACKEND_Output* output, void** buffer,
                                               uint64_t num_bytes, TRITONSERVER_MemoryType* memory_type,
                                               int64_t* memory_type_id) {
  TRITONBACKEND_Response* response = output->response;
  ledger().use(response, __func__);
  const int refused_from = response->factory->client->refused_from;
  if (refused_from >= 0 && response->index >= refused_from) {
    response->refused = true;
    return new_error(TRITONSERVER_ERROR_INVALID_ARG,
                     "shared memory is too small for output '" + output->name + "'");
  }
  if (TRITONSERVER_Error* injected = Faults::instance().hit(__func__)) {
    response->refused = true;
    return injected;
  }
  *buffer = output->buffer.emplace(num_bytes).data();
  *memory_type = TRITONSERVER_MEMORY_CPU;
  *memory_type_id = 0;
  return nullptr;
}

// The response is the server's from here on, even when this fails.
TRITONSERVER_Error* TRITONBACKEND_ResponseSend(TRITONBACKEND_Response* response, uint32_t flags,
                                               TRITONSERVER_Error* error) {
  TRITONBACKEND_ResponseFactory* factory = response->factory;
  ledger().use(factory, __func__);
  ledger().end(response, __func__);
  --factory->num_unsent;
  if (factory->final) ledger().violation("ResponseSend: after the final flag");
  if (factory->num_sent++ > 0 && !factory->model->decoupled) {
    ledger().violation("ResponseSend: a second response of a model that is not decoupled");
  }
  ReceivedResponse received;
  if (error) {
    ledger().use(error, __func__);
    received.error_code = error->code;
    received.error = error->message;
  } else {
    if (response->refused) ledger().violation("ResponseSend: a success after OutputBuffer has failed");
    for (TRITONBACKEND_Output& output : response->outputs) {
      if (!output.buffer) {
        ledger().violation("ResponseSend: output '" + output.name + "' has no buffer");
        continue;
      }
      output.received.bytes.assign(output.buffer->begin(), output.buffer->end());
      check_output(*factory->model, output.name, output.received);
      received.outputs[output.name] = std::move(output.received);
    }
  }
  response->outputs.clear();
  const bool final = (flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL) != 0;
  if (final) send_final(factory, __func__);
  if (TRITONSERVER_Error* injected = Faults::instance().hit(__func__)) {
    receive(*factory->client, nullptr, final);
    return injected;
  }
  receive(*factory->client, &received, final);
  return nullptr;
}

}  // extern "C"

// One that is missing does not link.
#define QUIRE_TRITON_ADDRESS(result, name, parameters) reinterpret_cast<const void*>(&name),
extern const void* const kServerFunctions[];
const void* const kServerFunctions[] = {QUIRE_TRITON_SERVER_FUNCTIONS(QUIRE_TRITON_ADDRESS)};
