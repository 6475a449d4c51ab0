// What a strict server does with requests and responses: see server_functions.cc.
#include <cstring>

#include "server_objects.h"

using namespace quire::triton;
using namespace quire::triton::host;

namespace {

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
  auto dims = spec->second.second;
  if (model.batched) dims.insert(dims.begin(), 1);
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

// Whoever has heard the end may read the statistics. A client's own errors are in none of them.
void keep_rules_of_statistics(const TRITONBACKEND_Request& request) {
  if (!request.instance->alive) return;  // there is nobody left to report it to
  std::optional<TRITONSERVER_Error_Code> code;
  {
    const std::lock_guard lock(request.client->mutex);
    if (request.client->responses.empty()) return;  // no response could be made: nobody knows what for
    code = request.client->responses.back().error_code;
  }
  const bool clients_doing = code == TRITONSERVER_ERROR_INVALID_ARG || code == TRITONSERVER_ERROR_NOT_FOUND ||
                             code == TRITONSERVER_ERROR_CANCELLED;
  if (clients_doing && request.num_reports > 0) {
    ledger().violation("RequestRelease: a client's error was reported as the backend's failure");
  } else if (!clients_doing && request.num_reports == 0) {
    ledger().violation("RequestRelease: before its statistics were reported");
  }
}

void send_final(TRITONBACKEND_ResponseFactory* factory, const char* function) {
  if (factory->final.exchange(true))
    ledger().violation(std::string(function) + ": the final flag was sent before");
}

}  // namespace

extern "C" {

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
  if (request->num_factories > 0) keep_rules_of_statistics(*request);
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
    return make_error(TRITONSERVER_ERROR_INVALID_ARG,
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
