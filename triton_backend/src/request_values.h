// What a request gives by a name: as an input, or as a parameter.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tensors.h"

namespace quire::triton {

// Borrows from the request. An input wins over a parameter of its name. Everything throws InvalidArgument
// naming the input or parameter, the value, and what would do. Dimensions of 1 may come before the shape that
// an input has: clients of models with a batch dimension send them.
class RequestValues {
 public:
  explicit RequestValues(const IncomingRequest& incoming) : incoming_(incoming) {}

  const InputTensor* input(const char* name) const;
  const RequestParameter* parameter(const char* name) const;
  // Nothing when neither is given.
  std::optional<bool> flag(const char* name) const;
  // Empty when neither is given.
  std::string text(const char* name) const;
  // Of the parameter, even if there is an input.
  std::string parameter_text(const char* name) const;
  // The strings of an input, or the one of a parameter.
  std::vector<std::string> texts(const char* name) const;
  // One number as JSON: of an input of type INT32, UINT64 or FP32, else the parameter, whatever it is.
  std::optional<std::string> json(const char* name) const;
  // At least one; of an input only.
  std::vector<int32_t> ids(const char* name) const;

 private:
  const IncomingRequest& incoming_;
};

// The parameter's value.
std::string to_json(const RequestParameter& parameter);

// "input 'NAME' WHAT".
[[noreturn]] void refuse_input(const InputTensor& tensor, const std::string& what);

}  // namespace quire::triton
