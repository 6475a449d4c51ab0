// What a strict server does with errors, logs, messages, metrics, models and instances. The test program
// exports these functions, and the backend finds them as it finds the real ones.
#include <cstring>

#include "server_log.h"
#include "server_objects.h"

using namespace quire::triton;
using namespace quire::triton::host;

namespace {

void keep_rules_of_metric(TRITONSERVER_Metric* metric, TRITONSERVER_MetricKind kind, const char* function) {
  ledger().use(metric, function);
  ledger().use(metric->family, function);
  if (metric->family->metric_kind != kind) {
    ledger().violation(std::string(function) + ": " + metric->family->name + " is of another kind");
  }
}

}  // namespace

extern "C" {

// ---- errors, logs, messages ----

TRITONSERVER_Error* TRITONSERVER_ErrorNew(TRITONSERVER_Error_Code code, const char* message) {
  return make_error(code, message);
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
  if (!server->live) return make_error(TRITONSERVER_ERROR_UNAVAILABLE, "the server exits");
  *live = true;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ApiVersion(uint32_t* major, uint32_t* minor) {
  *major = api_major;
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

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceModel(TRITONBACKEND_ModelInstance* instance,
                                                     TRITONBACKEND_Model** model) {
  QUIRE_FAULT_POINT();
  ledger().use(instance, __func__);
  *model = instance->model;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceKind(TRITONBACKEND_ModelInstance* instance,
                                                    TRITONSERVER_InstanceGroupKind* kind) {
  QUIRE_FAULT_POINT();
  ledger().use(instance, __func__);
  *kind = instance->instance_kind;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceDeviceId(TRITONBACKEND_ModelInstance* instance,
                                                        int32_t* device_id) {
  QUIRE_FAULT_POINT();
  ledger().use(instance, __func__);
  *device_id = instance->device_id;
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

}  // extern "C"

// One that is missing does not link.
#define QUIRE_TRITON_ADDRESS(result, name, parameters) reinterpret_cast<const void*>(&name),
extern const void* const kServerFunctions[];
const void* const kServerFunctions[] = {QUIRE_TRITON_SERVER_FUNCTIONS(QUIRE_TRITON_ADDRESS)};
