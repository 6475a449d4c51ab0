#include <algorithm>
#include <cmath>
#include <type_traits>

#include "formats/gguf.h"
#include "quire/error.h"
#include "util/str.h"

namespace quire {

void GgufHeader::fail(const std::string& message) const { throw InvalidArgument(str(path, ": ", message)); }

const GgufValue& GgufHeader::at(const std::string& key) const {
  const auto found = metadata.find(key);
  if (found == metadata.end()) fail(str("key '", key, "' is missing"));
  return found->second;
}

int64_t GgufHeader::get_int(const std::string& key, int64_t min, int64_t max) const {
  const GgufValue& value = at(key);
  const auto* positive = std::get_if<uint64_t>(&value);
  const auto* any = std::get_if<int64_t>(&value);
  if (positive == nullptr && any == nullptr) fail(str("'", key, "' must be a whole number"));
  if (positive != nullptr && *positive > static_cast<uint64_t>(INT64_MAX))
    fail(str("'", key, "' must be from ", min, " to ", max, ", got ", *positive));
  const int64_t number = positive != nullptr ? static_cast<int64_t>(*positive) : *any;
  if (number < min || number > max)
    fail(str("'", key, "' must be from ", min, " to ", max, ", got ", number));
  return number;
}

double GgufHeader::get_number(const std::string& key) const {
  if (const auto* number = std::get_if<double>(&at(key))) {
    if (!std::isfinite(*number)) fail(str("'", key, "' must be finite, got ", *number));
    return *number;
  }
  return static_cast<double>(get_int(key, INT64_MIN, INT64_MAX));
}

bool GgufHeader::get_bool(const std::string& key, bool otherwise) const {
  if (!has(key)) return otherwise;
  const auto* value = std::get_if<bool>(&at(key));
  if (value == nullptr) fail(str("'", key, "' must be a bool"));
  return *value;
}

const std::string& GgufHeader::get_string(const std::string& key) const {
  const auto* value = std::get_if<std::string>(&at(key));
  if (value == nullptr) fail(str("'", key, "' must be a string"));
  return *value;
}

template <typename T>
const std::vector<T>& GgufHeader::get_array(const std::string& key) const {
  constexpr const char* kElements = std::is_same_v<T, int64_t>  ? "whole numbers"
                                    : std::is_same_v<T, double> ? "floats"
                                                                : "strings";
  const auto* array = std::get_if<GgufArray>(&at(key));
  const auto* values = array == nullptr ? nullptr : std::get_if<std::vector<T>>(array);
  if (values == nullptr) fail(str("'", key, "' must be an array of ", kElements));
  return *values;
}
template const std::vector<int64_t>& GgufHeader::get_array(const std::string& key) const;
template const std::vector<double>& GgufHeader::get_array(const std::string& key) const;
template const std::vector<std::string>& GgufHeader::get_array(const std::string& key) const;

const GgufTensor* GgufHeader::find_tensor(const std::string& name) const {
  const auto found = std::ranges::find(tensors, name, &GgufTensor::name);
  return found == tensors.end() ? nullptr : &*found;
}

}  // namespace quire
