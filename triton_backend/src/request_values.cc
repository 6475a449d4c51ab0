#include "request_values.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "quire/error.h"
#include "server_api.h"

namespace quire::triton {
namespace {

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

void expect_type(const InputTensor& tensor, TRITONSERVER_DataType datatype) {
  if (tensor.datatype == datatype) return;
  refuse_input(tensor,
               std::string("must be ") + datatype_name(datatype) + ", got " + datatype_name(tensor.datatype));
}

void expect_one_element(const InputTensor& tensor) {
  for (int64_t dim : tensor.shape) {
    if (dim != 1) refuse_input(tensor, "must have one element, got shape " + shape_text(tensor.shape));
  }
}

// Takes the first string off `bytes`.
std::string take_string(const InputTensor& tensor, std::string_view& bytes) {
  uint32_t size = 0;
  if (bytes.size() < sizeof size) refuse_input(tensor, "is shorter than the length of its one string");
  std::memcpy(&size, bytes.data(), sizeof size);
  bytes.remove_prefix(sizeof size);
  if (bytes.size() < size) {
    refuse_input(tensor, "says that its string has " + std::to_string(size) + " bytes, but holds " +
                             std::to_string(bytes.size()));
  }
  std::string text(bytes.substr(0, size));
  bytes.remove_prefix(size);
  return text;
}

std::string read_string(const InputTensor& tensor) {
  expect_type(tensor, TRITONSERVER_TYPE_BYTES);
  expect_one_element(tensor);
  std::string_view bytes = tensor.bytes;
  std::string text = take_string(tensor, bytes);
  if (!bytes.empty()) {
    refuse_input(tensor, "says that its string has " + std::to_string(text.size()) + " bytes, but holds " +
                             std::to_string(text.size() + bytes.size()));
  }
  return text;
}

template <typename T>
T read_one(const InputTensor& tensor, TRITONSERVER_DataType datatype) {
  expect_type(tensor, datatype);
  expect_one_element(tensor);
  T value{};
  if (tensor.bytes.size() != sizeof value) {
    refuse_input(tensor, "must be " +
                             (sizeof value == 1 ? "one byte" : std::to_string(sizeof value) + " bytes") +
                             ", got " + std::to_string(tensor.bytes.size()));
  }
  std::memcpy(&value, tensor.bytes.data(), sizeof value);
  return value;
}

bool read_bool(const InputTensor& tensor) { return read_one<uint8_t>(tensor, TRITONSERVER_TYPE_BOOL) != 0; }

std::string read_number(const InputTensor& tensor, TRITONSERVER_DataType datatype) {
  switch (datatype) {
    case TRITONSERVER_TYPE_INT32: return std::to_string(read_one<int32_t>(tensor, datatype));
    case TRITONSERVER_TYPE_UINT64: return std::to_string(read_one<uint64_t>(tensor, datatype));
    default: break;
  }
  const auto value = read_one<float>(tensor, TRITONSERVER_TYPE_FP32);
  if (!std::isfinite(value)) refuse_input(tensor, "must be finite");
  char text[32];  // the shortest that is this float: 0.7, not 0.69999998807907104
  return std::string(text, std::to_chars(std::begin(text), std::end(text), value).ptr);
}

TRITONSERVER_DataType datatype_of(const char* name) {
  const auto& specs = input_specs();
  const auto spec = std::find_if(specs.begin(), specs.end(),
                                 [&](const TensorSpec& s) { return std::strcmp(s.name, name) == 0; });
  if (spec == specs.end()) throw InternalError(std::string("there is no input ") + name);
  return spec->datatype;
}

}  // namespace

void refuse_input(const InputTensor& tensor, const std::string& what) {
  throw InvalidArgument("input '" + excerpt(tensor.name) + "' " + what);
}

std::string to_json(const RequestParameter& parameter) {
  return std::visit(
      [&](const auto& value) {
        if constexpr (std::is_same_v<std::decay_t<decltype(value)>, double>) {
          // JSON has none, and would call it null.
          if (!std::isfinite(value))
            throw InvalidArgument("parameter '" + excerpt(parameter.name) + "' must be finite");
        }
        try {
          return nlohmann::json(value).dump();
        } catch (const nlohmann::json::exception&) {
          throw InvalidArgument("parameter '" + excerpt(parameter.name) + "' is not valid UTF-8");
        }
      },
      parameter.value);
}

const InputTensor* RequestValues::input(const char* name) const {
  const auto& all = incoming_.inputs;
  const auto found = std::find_if(all.begin(), all.end(), [&](const auto& i) { return i.name == name; });
  return found == all.end() ? nullptr : &*found;
}

const RequestParameter* RequestValues::parameter(const char* name) const {
  const auto& all = incoming_.parameters;
  const auto found = std::find_if(all.begin(), all.end(), [&](const auto& p) { return p.name == name; });
  return found == all.end() ? nullptr : &*found;
}

std::optional<bool> RequestValues::flag(const char* name) const {
  if (const InputTensor* tensor = input(name)) return read_bool(*tensor);
  const RequestParameter* given = parameter(name);
  if (!given) return std::nullopt;
  if (const bool* value = std::get_if<bool>(&given->value)) return *value;
  throw InvalidArgument(std::string("parameter '") + name + "' must be true or false");
}

std::string RequestValues::text(const char* name) const {
  if (const InputTensor* tensor = input(name)) return read_string(*tensor);
  return parameter_text(name);
}

std::string RequestValues::parameter_text(const char* name) const {
  const RequestParameter* given = parameter(name);
  if (!given) return {};
  if (const std::string* value = std::get_if<std::string>(&given->value)) return *value;
  throw InvalidArgument(std::string("parameter '") + name + "' must be a string");
}

std::vector<std::string> RequestValues::texts(const char* name) const {
  const InputTensor* tensor = input(name);
  if (!tensor) return parameter(name) ? std::vector{text(name)} : std::vector<std::string>();
  expect_type(*tensor, TRITONSERVER_TYPE_BYTES);
  std::vector<std::string> all;
  for (std::string_view bytes = tensor->bytes; !bytes.empty();) all.push_back(take_string(*tensor, bytes));
  return all;
}

std::optional<std::string> RequestValues::json(const char* name) const {
  if (const InputTensor* tensor = input(name)) return read_number(*tensor, datatype_of(name));
  const RequestParameter* given = parameter(name);
  return given ? std::optional(to_json(*given)) : std::nullopt;
}

std::vector<int32_t> RequestValues::ids(const char* name) const {
  const InputTensor* tensor = input(name);
  if (!tensor) throw InternalError(std::string(name) + " is not given");
  expect_type(*tensor, TRITONSERVER_TYPE_INT32);
  if (tensor->bytes.empty() || tensor->bytes.size() % sizeof(int32_t) != 0) {
    refuse_input(*tensor,
                 "must hold at least one 32-bit id, got " + std::to_string(tensor->bytes.size()) + " bytes");
  }
  std::vector<int32_t> ids(tensor->bytes.size() / sizeof(int32_t));
  std::memcpy(ids.data(), tensor->bytes.data(), tensor->bytes.size());
  return ids;
}

}  // namespace quire::triton
