#include "request_reader.h"

#include "quire/error.h"

namespace quire::triton {
namespace {

InputTensor read_input(TRITONBACKEND_Input* input, std::deque<std::string>& joined) {
  const ServerApi& api = server_api();
  const char* name = nullptr;
  const int64_t* shape = nullptr;
  uint32_t num_dims = 0;
  uint64_t num_bytes = 0;
  uint32_t num_buffers = 0;
  InputTensor tensor;
  check(api.TRITONBACKEND_InputProperties(input, &name, &tensor.datatype, &shape, &num_dims, &num_bytes,
                                          &num_buffers));
  tensor.name = name;
  tensor.shape.assign(shape, shape + num_dims);
  std::string* all = num_buffers > 1 ? &joined.emplace_back() : nullptr;
  for (uint32_t i = 0; i < num_buffers; ++i) {
    const void* buffer = nullptr;
    uint64_t size = 0;
    TRITONSERVER_MemoryType memory_type = TRITONSERVER_MEMORY_CPU;
    int64_t memory_type_id = 0;
    check(api.TRITONBACKEND_InputBuffer(input, i, &buffer, &size, &memory_type, &memory_type_id));
    if (memory_type == TRITONSERVER_MEMORY_GPU) {
      throw InvalidArgument("input '" + excerpt(tensor.name) +
                            "' is in device memory; send it from host memory");
    }
    const std::string_view part(static_cast<const char*>(buffer), size);
    if (all) {
      all->append(part);
    } else {
      tensor.bytes = part;
    }
  }
  if (all) tensor.bytes = *all;
  return tensor;
}

RequestParameter read_parameter(TRITONBACKEND_Request* request, uint32_t index) {
  const char* name = nullptr;
  TRITONSERVER_ParameterType type = TRITONSERVER_PARAMETER_STRING;
  const void* value = nullptr;
  check(server_api().TRITONBACKEND_RequestParameter(request, index, &name, &type, &value));
  switch (type) {
    case TRITONSERVER_PARAMETER_STRING: return {name, std::string(static_cast<const char*>(value))};
    case TRITONSERVER_PARAMETER_INT: return {name, *static_cast<const int64_t*>(value)};
    case TRITONSERVER_PARAMETER_BOOL: return {name, *static_cast<const bool*>(value)};
    case TRITONSERVER_PARAMETER_DOUBLE: return {name, *static_cast<const double*>(value)};
    case TRITONSERVER_PARAMETER_BYTES: break;
  }
  throw InvalidArgument("parameter '" + excerpt(name) + "' must be a string, a number, true or false");
}

}  // namespace

ReadRequest read_request(TRITONBACKEND_Request* request) {
  const ServerApi& api = server_api();
  ReadRequest read;
  IncomingRequest& incoming = read.incoming;
  const char* id = nullptr;
  check(api.TRITONBACKEND_RequestId(request, &id));
  if (id) incoming.id = id;
  check(api.TRITONBACKEND_InferenceRequestTimeoutMicroseconds(request, &incoming.timeout_us));

  uint32_t count = 0;
  check(api.TRITONBACKEND_RequestInputCount(request, &count));
  for (uint32_t i = 0; i < count; ++i) {
    TRITONBACKEND_Input* input = nullptr;
    check(api.TRITONBACKEND_RequestInputByIndex(request, i, &input));
    incoming.inputs.push_back(read_input(input, read.joined));
  }
  check(api.TRITONBACKEND_RequestParameterCount(request, &count));
  for (uint32_t i = 0; i < count; ++i) incoming.parameters.push_back(read_parameter(request, i));
  check(api.TRITONBACKEND_RequestOutputCount(request, &count));
  for (uint32_t i = 0; i < count; ++i) {
    const char* name = nullptr;
    check(api.TRITONBACKEND_RequestOutputName(request, i, &name));
    incoming.outputs.emplace_back(name);
  }
  return read;
}

}  // namespace quire::triton
