// The part of Triton Inference Server's C ABI that the backend uses, declared in our own words: no package
// carries the official headers. With QUIRE_TRITON_OFFICIAL_HEADERS the official ones are used instead, and
// every declaration and value below is held against them by the compiler.
//
// Conventions of the ABI: a function returns null, or an error that the caller owns; strings and buffers that
// it hands out belong to the object they come from, and end with it.
#pragma once

#ifdef QUIRE_TRITON_OFFICIAL_HEADERS
#include <triton/core/tritonbackend.h>
#else
#include <cstddef>
#include <cstdint>

extern "C" {
struct TRITONBACKEND_Backend;
struct TRITONBACKEND_BackendAttribute;
struct TRITONBACKEND_Input;
struct TRITONBACKEND_Model;
struct TRITONBACKEND_ModelInstance;
struct TRITONBACKEND_Output;
struct TRITONBACKEND_Request;
struct TRITONBACKEND_Response;
struct TRITONBACKEND_ResponseFactory;
struct TRITONSERVER_Error;
struct TRITONSERVER_Message;
struct TRITONSERVER_Metric;
struct TRITONSERVER_MetricArgs;
struct TRITONSERVER_MetricFamily;
struct TRITONSERVER_Parameter;
struct TRITONSERVER_Server;
}
#endif

// ---- Enumerations: X(enumerator, value) ----
#define QUIRE_TRITON_ERROR_CODES(X)       \
  X(TRITONSERVER_ERROR_UNKNOWN, 0)        \
  X(TRITONSERVER_ERROR_INTERNAL, 1)       \
  X(TRITONSERVER_ERROR_NOT_FOUND, 2)      \
  X(TRITONSERVER_ERROR_INVALID_ARG, 3)    \
  X(TRITONSERVER_ERROR_UNAVAILABLE, 4)    \
  X(TRITONSERVER_ERROR_UNSUPPORTED, 5)    \
  X(TRITONSERVER_ERROR_ALREADY_EXISTS, 6) \
  X(TRITONSERVER_ERROR_CANCELLED, 7)

#define QUIRE_TRITON_DATA_TYPES(X) \
  X(TRITONSERVER_TYPE_INVALID, 0)  \
  X(TRITONSERVER_TYPE_BOOL, 1)     \
  X(TRITONSERVER_TYPE_UINT8, 2)    \
  X(TRITONSERVER_TYPE_UINT16, 3)   \
  X(TRITONSERVER_TYPE_UINT32, 4)   \
  X(TRITONSERVER_TYPE_UINT64, 5)   \
  X(TRITONSERVER_TYPE_INT8, 6)     \
  X(TRITONSERVER_TYPE_INT16, 7)    \
  X(TRITONSERVER_TYPE_INT32, 8)    \
  X(TRITONSERVER_TYPE_INT64, 9)    \
  X(TRITONSERVER_TYPE_FP16, 10)    \
  X(TRITONSERVER_TYPE_FP32, 11)    \
  X(TRITONSERVER_TYPE_FP64, 12)    \
  X(TRITONSERVER_TYPE_BYTES, 13)   \
  X(TRITONSERVER_TYPE_BF16, 14)

#define QUIRE_TRITON_MEMORY_TYPES(X)   \
  X(TRITONSERVER_MEMORY_CPU, 0)        \
  X(TRITONSERVER_MEMORY_CPU_PINNED, 1) \
  X(TRITONSERVER_MEMORY_GPU, 2)

#define QUIRE_TRITON_PARAMETER_TYPES(X) \
  X(TRITONSERVER_PARAMETER_STRING, 0)   \
  X(TRITONSERVER_PARAMETER_INT, 1)      \
  X(TRITONSERVER_PARAMETER_BOOL, 2)     \
  X(TRITONSERVER_PARAMETER_DOUBLE, 3)   \
  X(TRITONSERVER_PARAMETER_BYTES, 4)

#define QUIRE_TRITON_INSTANCE_GROUP_KINDS(X) \
  X(TRITONSERVER_INSTANCEGROUPKIND_AUTO, 0)  \
  X(TRITONSERVER_INSTANCEGROUPKIND_CPU, 1)   \
  X(TRITONSERVER_INSTANCEGROUPKIND_GPU, 2)   \
  X(TRITONSERVER_INSTANCEGROUPKIND_MODEL, 3)

#define QUIRE_TRITON_LOG_LEVELS(X) \
  X(TRITONSERVER_LOG_INFO, 0)      \
  X(TRITONSERVER_LOG_WARN, 1)      \
  X(TRITONSERVER_LOG_ERROR, 2)     \
  X(TRITONSERVER_LOG_VERBOSE, 3)

#define QUIRE_TRITON_METRIC_KINDS(X)     \
  X(TRITONSERVER_METRIC_KIND_COUNTER, 0) \
  X(TRITONSERVER_METRIC_KIND_GAUGE, 1)   \
  X(TRITONSERVER_METRIC_KIND_HISTOGRAM, 2)

#define QUIRE_TRITON_ARTIFACT_TYPES(X) X(TRITONBACKEND_ARTIFACT_FILESYSTEM, 0)
#define QUIRE_TRITON_RESPONSE_FLAGS(X) X(TRITONSERVER_RESPONSE_COMPLETE_FINAL, 1)
#define QUIRE_TRITON_RELEASE_FLAGS(X) X(TRITONSERVER_REQUEST_RELEASE_ALL, 1)

#ifdef QUIRE_TRITON_OFFICIAL_HEADERS
#define QUIRE_TRITON_VALUE(enumerator, value) \
  static_assert(static_cast<int>(enumerator) == (value), #enumerator);
#define QUIRE_TRITON_ENUM(tag, name, list) list(QUIRE_TRITON_VALUE)
#else
#define QUIRE_TRITON_VALUE(enumerator, value) enumerator = (value),
#define QUIRE_TRITON_ENUM(tag, name, list) \
  enum tag { list(QUIRE_TRITON_VALUE) };   \
  using name = tag;
#endif
QUIRE_TRITON_ENUM(TRITONSERVER_errorcode_enum, TRITONSERVER_Error_Code, QUIRE_TRITON_ERROR_CODES)
QUIRE_TRITON_ENUM(TRITONSERVER_datatype_enum, TRITONSERVER_DataType, QUIRE_TRITON_DATA_TYPES)
QUIRE_TRITON_ENUM(TRITONSERVER_memorytype_enum, TRITONSERVER_MemoryType, QUIRE_TRITON_MEMORY_TYPES)
QUIRE_TRITON_ENUM(TRITONSERVER_parametertype_enum, TRITONSERVER_ParameterType, QUIRE_TRITON_PARAMETER_TYPES)
QUIRE_TRITON_ENUM(TRITONSERVER_instancegroupkind_enum, TRITONSERVER_InstanceGroupKind,
                  QUIRE_TRITON_INSTANCE_GROUP_KINDS)
QUIRE_TRITON_ENUM(TRITONSERVER_loglevel_enum, TRITONSERVER_LogLevel, QUIRE_TRITON_LOG_LEVELS)
QUIRE_TRITON_ENUM(TRITONSERVER_metrickind_enum, TRITONSERVER_MetricKind, QUIRE_TRITON_METRIC_KINDS)
QUIRE_TRITON_ENUM(TRITONBACKEND_artifacttype_enum, TRITONBACKEND_ArtifactType, QUIRE_TRITON_ARTIFACT_TYPES)
QUIRE_TRITON_ENUM(tritonserver_responsecompleteflag_enum, TRITONSERVER_ResponseCompleteFlag,
                  QUIRE_TRITON_RESPONSE_FLAGS)
QUIRE_TRITON_ENUM(tritonserver_requestreleaseflag_enum, TRITONSERVER_RequestReleaseFlag,
                  QUIRE_TRITON_RELEASE_FLAGS)
#undef QUIRE_TRITON_ENUM
#undef QUIRE_TRITON_VALUE

// ---- What the server offers: X(result, name, (parameters)) ----
#define QUIRE_TRITON_SERVER_FUNCTIONS(X)                                                                     \
  /* errors, logs, messages */                                                                               \
  X(TRITONSERVER_Error*, TRITONSERVER_ErrorNew, (TRITONSERVER_Error_Code code, const char* message))         \
  X(void, TRITONSERVER_ErrorDelete, (TRITONSERVER_Error * error))                                            \
  X(TRITONSERVER_Error_Code, TRITONSERVER_ErrorCode, (TRITONSERVER_Error * error))                           \
  X(const char*, TRITONSERVER_ErrorMessage, (TRITONSERVER_Error * error))                                    \
  X(bool, TRITONSERVER_LogIsEnabled, (TRITONSERVER_LogLevel level))                                          \
  X(TRITONSERVER_Error*, TRITONSERVER_LogMessage,                                                            \
    (TRITONSERVER_LogLevel level, const char* file, int line, const char* message))                          \
  X(TRITONSERVER_Error*, TRITONSERVER_MessageNewFromSerializedJson,                                          \
    (TRITONSERVER_Message * *message, const char* json, size_t size))                                        \
  X(TRITONSERVER_Error*, TRITONSERVER_MessageSerializeToJson,                                                \
    (TRITONSERVER_Message * message, const char** json, size_t* size))                                       \
  X(TRITONSERVER_Error*, TRITONSERVER_MessageDelete, (TRITONSERVER_Message * message))                       \
  /* metrics */                                                                                              \
  X(TRITONSERVER_Parameter*, TRITONSERVER_ParameterNew,                                                      \
    (const char* name, TRITONSERVER_ParameterType type, const void* value))                                  \
  X(void, TRITONSERVER_ParameterDelete, (TRITONSERVER_Parameter * parameter))                                \
  X(TRITONSERVER_Error*, TRITONSERVER_MetricFamilyNew,                                                       \
    (TRITONSERVER_MetricFamily * *family, TRITONSERVER_MetricKind kind, const char* name,                    \
     const char* description))                                                                               \
  X(TRITONSERVER_Error*, TRITONSERVER_MetricFamilyDelete, (TRITONSERVER_MetricFamily * family))              \
  X(TRITONSERVER_Error*, TRITONSERVER_MetricArgsNew, (TRITONSERVER_MetricArgs * *args))                      \
  X(TRITONSERVER_Error*, TRITONSERVER_MetricArgsSetHistogram,                                                \
    (TRITONSERVER_MetricArgs * args, const double* buckets, uint64_t num_buckets))                           \
  X(TRITONSERVER_Error*, TRITONSERVER_MetricArgsDelete, (TRITONSERVER_MetricArgs * args))                    \
  X(TRITONSERVER_Error*, TRITONSERVER_MetricNewWithArgs,                                                     \
    (TRITONSERVER_Metric * *metric, TRITONSERVER_MetricFamily * family,                                      \
     const TRITONSERVER_Parameter** labels, uint64_t num_labels, const TRITONSERVER_MetricArgs* args))       \
  X(TRITONSERVER_Error*, TRITONSERVER_MetricDelete, (TRITONSERVER_Metric * metric))                          \
  X(TRITONSERVER_Error*, TRITONSERVER_MetricIncrement, (TRITONSERVER_Metric * metric, double value))         \
  X(TRITONSERVER_Error*, TRITONSERVER_MetricSet, (TRITONSERVER_Metric * metric, double value))               \
  X(TRITONSERVER_Error*, TRITONSERVER_MetricObserve, (TRITONSERVER_Metric * metric, double value))           \
  /* server, backend, model */                                                                               \
  X(TRITONSERVER_Error*, TRITONSERVER_ServerIsLive, (TRITONSERVER_Server * server, bool* live))              \
  X(TRITONSERVER_Error*, TRITONSERVER_ServerUnloadModel, (TRITONSERVER_Server * server, const char* name))   \
  X(TRITONSERVER_Error*, TRITONBACKEND_ApiVersion, (uint32_t* major, uint32_t* minor))                       \
  X(TRITONSERVER_Error*, TRITONBACKEND_BackendConfig,                                                        \
    (TRITONBACKEND_Backend * backend, TRITONSERVER_Message * *config))                                       \
  X(TRITONSERVER_Error*, TRITONBACKEND_BackendState, (TRITONBACKEND_Backend * backend, void** state))        \
  X(TRITONSERVER_Error*, TRITONBACKEND_BackendSetState, (TRITONBACKEND_Backend * backend, void* state))      \
  X(TRITONSERVER_Error*, TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup,                            \
    (TRITONBACKEND_BackendAttribute * attributes, TRITONSERVER_InstanceGroupKind kind, uint64_t count,       \
     const uint64_t* device_ids, uint64_t num_device_ids))                                                   \
  X(TRITONSERVER_Error*, TRITONBACKEND_ModelName, (TRITONBACKEND_Model * model, const char** name))          \
  X(TRITONSERVER_Error*, TRITONBACKEND_ModelVersion, (TRITONBACKEND_Model * model, uint64_t* version))       \
  X(TRITONSERVER_Error*, TRITONBACKEND_ModelRepository,                                                      \
    (TRITONBACKEND_Model * model, TRITONBACKEND_ArtifactType * type, const char** location))                 \
  X(TRITONSERVER_Error*, TRITONBACKEND_ModelConfig,                                                          \
    (TRITONBACKEND_Model * model, uint32_t config_version, TRITONSERVER_Message** config))                   \
  X(TRITONSERVER_Error*, TRITONBACKEND_ModelAutoCompleteConfig, (TRITONBACKEND_Model * model, bool* wanted)) \
  X(TRITONSERVER_Error*, TRITONBACKEND_ModelSetConfig,                                                       \
    (TRITONBACKEND_Model * model, uint32_t config_version, TRITONSERVER_Message* config))                    \
  X(TRITONSERVER_Error*, TRITONBACKEND_ModelServer,                                                          \
    (TRITONBACKEND_Model * model, TRITONSERVER_Server * *server))                                            \
  X(TRITONSERVER_Error*, TRITONBACKEND_ModelBackend,                                                         \
    (TRITONBACKEND_Model * model, TRITONBACKEND_Backend * *backend))                                         \
  X(TRITONSERVER_Error*, TRITONBACKEND_ModelState, (TRITONBACKEND_Model * model, void** state))              \
  X(TRITONSERVER_Error*, TRITONBACKEND_ModelSetState, (TRITONBACKEND_Model * model, void* state))            \
  X(TRITONSERVER_Error*, TRITONBACKEND_ModelInstanceModel,                                                   \
    (TRITONBACKEND_ModelInstance * instance, TRITONBACKEND_Model * *model))                                  \
  X(TRITONSERVER_Error*, TRITONBACKEND_ModelInstanceKind,                                                    \
    (TRITONBACKEND_ModelInstance * instance, TRITONSERVER_InstanceGroupKind * kind))                         \
  X(TRITONSERVER_Error*, TRITONBACKEND_ModelInstanceDeviceId,                                                \
    (TRITONBACKEND_ModelInstance * instance, int32_t* device_id))                                            \
  X(TRITONSERVER_Error*, TRITONBACKEND_ModelInstanceState,                                                   \
    (TRITONBACKEND_ModelInstance * instance, void** state))                                                  \
  X(TRITONSERVER_Error*, TRITONBACKEND_ModelInstanceSetState,                                                \
    (TRITONBACKEND_ModelInstance * instance, void* state))                                                   \
  X(TRITONSERVER_Error*, TRITONBACKEND_ModelInstanceReportStatistics,                                        \
    (TRITONBACKEND_ModelInstance * instance, TRITONBACKEND_Request * request, bool success,                  \
     uint64_t exec_start_ns, uint64_t compute_start_ns, uint64_t compute_end_ns, uint64_t exec_end_ns))      \
  X(TRITONSERVER_Error*, TRITONBACKEND_ModelInstanceReportBatchStatistics,                                   \
    (TRITONBACKEND_ModelInstance * instance, uint64_t batch_size, uint64_t exec_start_ns,                    \
     uint64_t compute_start_ns, uint64_t compute_end_ns, uint64_t exec_end_ns))                              \
  /* requests */                                                                                             \
  X(TRITONSERVER_Error*, TRITONBACKEND_RequestId, (TRITONBACKEND_Request * request, const char** id))        \
  X(TRITONSERVER_Error*, TRITONBACKEND_RequestParameterCount,                                                \
    (TRITONBACKEND_Request * request, uint32_t* count))                                                      \
  X(TRITONSERVER_Error*, TRITONBACKEND_RequestParameter,                                                     \
    (TRITONBACKEND_Request * request, uint32_t index, const char** key, TRITONSERVER_ParameterType* type,    \
     const void** value))                                                                                    \
  X(TRITONSERVER_Error*, TRITONBACKEND_RequestInputCount,                                                    \
    (TRITONBACKEND_Request * request, uint32_t* count))                                                      \
  X(TRITONSERVER_Error*, TRITONBACKEND_RequestInputByIndex,                                                  \
    (TRITONBACKEND_Request * request, uint32_t index, TRITONBACKEND_Input** input))                          \
  X(TRITONSERVER_Error*, TRITONBACKEND_RequestOutputCount,                                                   \
    (TRITONBACKEND_Request * request, uint32_t* count))                                                      \
  X(TRITONSERVER_Error*, TRITONBACKEND_RequestOutputName,                                                    \
    (TRITONBACKEND_Request * request, uint32_t index, const char** name))                                    \
  X(TRITONSERVER_Error*, TRITONBACKEND_InferenceRequestTimeoutMicroseconds,                                  \
    (TRITONBACKEND_Request * request, uint64_t* timeout_us))                                                 \
  X(TRITONSERVER_Error*, TRITONBACKEND_RequestRelease, (TRITONBACKEND_Request * request, uint32_t flags))    \
  X(TRITONSERVER_Error*, TRITONBACKEND_InputProperties,                                                      \
    (TRITONBACKEND_Input * input, const char** name, TRITONSERVER_DataType* datatype, const int64_t** shape, \
     uint32_t* num_dims, uint64_t* num_bytes, uint32_t* num_buffers))                                        \
  X(TRITONSERVER_Error*, TRITONBACKEND_InputBuffer,                                                          \
    (TRITONBACKEND_Input * input, uint32_t index, const void** buffer, uint64_t* num_bytes,                  \
     TRITONSERVER_MemoryType* memory_type, int64_t* memory_type_id))                                         \
  /* responses */                                                                                            \
  X(TRITONSERVER_Error*, TRITONBACKEND_ResponseFactoryNew,                                                   \
    (TRITONBACKEND_ResponseFactory * *factory, TRITONBACKEND_Request * request))                             \
  X(TRITONSERVER_Error*, TRITONBACKEND_ResponseFactoryDelete, (TRITONBACKEND_ResponseFactory * factory))     \
  X(TRITONSERVER_Error*, TRITONBACKEND_ResponseFactoryIsCancelled,                                           \
    (TRITONBACKEND_ResponseFactory * factory, bool* is_cancelled))                                           \
  X(TRITONSERVER_Error*, TRITONBACKEND_ResponseFactorySendFlags,                                             \
    (TRITONBACKEND_ResponseFactory * factory, uint32_t flags))                                               \
  X(TRITONSERVER_Error*, TRITONBACKEND_ResponseNewFromFactory,                                               \
    (TRITONBACKEND_Response * *response, TRITONBACKEND_ResponseFactory * factory))                           \
  X(TRITONSERVER_Error*, TRITONBACKEND_ResponseDelete, (TRITONBACKEND_Response * response))                  \
  X(TRITONSERVER_Error*, TRITONBACKEND_ResponseOutput,                                                       \
    (TRITONBACKEND_Response * response, TRITONBACKEND_Output * *output, const char* name,                    \
     TRITONSERVER_DataType datatype, const int64_t* shape, uint32_t num_dims))                               \
  X(TRITONSERVER_Error*, TRITONBACKEND_OutputBuffer,                                                         \
    (TRITONBACKEND_Output * output, void** buffer, uint64_t num_bytes, TRITONSERVER_MemoryType* memory_type, \
     int64_t* memory_type_id))                                                                               \
  X(TRITONSERVER_Error*, TRITONBACKEND_ResponseSend,                                                         \
    (TRITONBACKEND_Response * response, uint32_t flags, TRITONSERVER_Error* error))

// Under the official headers these are redeclarations: one that differs does not compile.
#define QUIRE_TRITON_DECLARE(result, name, parameters) result name parameters;
extern "C" {
QUIRE_TRITON_SERVER_FUNCTIONS(QUIRE_TRITON_DECLARE)

// ---- What the backend offers; the server looks these up by name ----
__attribute__((visibility("default"))) TRITONSERVER_Error* TRITONBACKEND_Initialize(
    TRITONBACKEND_Backend* backend);
__attribute__((visibility("default"))) TRITONSERVER_Error* TRITONBACKEND_Finalize(
    TRITONBACKEND_Backend* backend);
__attribute__((visibility("default"))) TRITONSERVER_Error* TRITONBACKEND_GetBackendAttribute(
    TRITONBACKEND_Backend* backend, TRITONBACKEND_BackendAttribute* attributes);
__attribute__((visibility("default"))) TRITONSERVER_Error* TRITONBACKEND_ModelInitialize(
    TRITONBACKEND_Model* model);
__attribute__((visibility("default"))) TRITONSERVER_Error* TRITONBACKEND_ModelFinalize(
    TRITONBACKEND_Model* model);
__attribute__((visibility("default"))) TRITONSERVER_Error* TRITONBACKEND_ModelInstanceInitialize(
    TRITONBACKEND_ModelInstance* instance);
__attribute__((visibility("default"))) TRITONSERVER_Error* TRITONBACKEND_ModelInstanceFinalize(
    TRITONBACKEND_ModelInstance* instance);
__attribute__((visibility("default"))) TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, uint32_t num_requests);
// Newer servers ask it for /v2/models/<name>/ready; older ones do not know it.
__attribute__((visibility("default"))) TRITONSERVER_Error* TRITONBACKEND_ModelInstanceReady(
    TRITONBACKEND_ModelInstance* instance);
}
#undef QUIRE_TRITON_DECLARE
