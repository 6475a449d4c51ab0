// Requests and responses as plain data: what the adapters work on, with or without a server.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "abi.h"

namespace quire::triton {

struct InputTensor {
  std::string name;
  TRITONSERVER_DataType datatype = TRITONSERVER_TYPE_INVALID;
  std::vector<int64_t> shape;
  std::string_view bytes;  // BYTES elements: a 32-bit length, then that many bytes, each
};

struct RequestParameter {
  std::string name;
  std::variant<std::string, int64_t, bool, double> value;
};

struct IncomingRequest {
  std::string id;  // the client's; need not be unique
  std::vector<InputTensor> inputs;
  std::vector<RequestParameter> parameters;
  std::vector<std::string> outputs;  // requested by name; the server lists all when the client lists none
  uint64_t timeout_us = 0;           // 0: none
};

struct OutputTensor {
  const char* name = "";
  TRITONSERVER_DataType datatype = TRITONSERVER_TYPE_INVALID;
  std::vector<int64_t> shape;
  std::string bytes;
};

// One line of the input or output table: what the completed model configuration says about a tensor.
struct TensorSpec {
  const char* name;
  TRITONSERVER_DataType datatype;
  const char* config_type;  // "TYPE_STRING"
  std::vector<int64_t> dims;
  // Filled in for models with a batch dimension only. Elsewhere /generate keeps these fields as parameters:
  // those may be strings, and what is wrong with them is said by name.
  bool if_batched = false;
};

// All optional: which ones a request needs depends on the request.
const std::vector<TensorSpec>& input_specs();
const std::vector<TensorSpec>& output_specs();

// "BYTES", "INT32", ...
const char* datatype_name(TRITONSERVER_DataType datatype);

}  // namespace quire::triton
