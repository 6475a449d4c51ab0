// A JSON value on its way into a field.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/json.h"
#include "quire/sampling_params.h"

namespace quire {

// Borrows what it is made of. `read` throws InvalidArgument when the value is not what the field takes.
class FieldValue {
 public:
  // `text`: what the value was parsed from, in which members have an order. Without it they have none.
  FieldValue(const Json& json, const std::string& name, std::string_view text = {})
      : json_(json), name_(name), text_(text) {}

  void read(bool& field) const;
  bool read_if_boolean(bool& field) const;  // false, and nothing is read, when it is something else
  void read(int32_t& field) const;
  void read(int64_t& field) const;
  void read(uint64_t& field) const;
  void read(float& field) const;
  void read(double& field) const;
  void read(std::string& field) const;
  void read(JsonObject& field) const;                // not nested deeply
  void read(std::vector<std::string>& field) const;  // one string is an array of one
  void read(std::vector<int32_t>& field) const;
  void read(std::map<int32_t, float>& field) const;  // an object; its keys are integers
  void read(EarlyStopping& field) const;             // a boolean, or "never"
  void read(JsonText& field) const;                  // an object, an array, a boolean, or their text
  void read(StructuredOutputsParams& field) const;   // an object of its fields
  template <typename T>
  void read(std::optional<T>& field) const {
    T value{};
    read(value);
    field = value;
  }

 private:
  // The value, or what a string contains, in `parsed`. Never a copy: that would recurse as deep as the client
  // nests.
  const Json& unquoted(Json& parsed) const;
  int64_t integer(int64_t min, int64_t max) const;
  [[noreturn]] void fail(const std::string& expected) const;

  const Json& json_;
  const std::string& name_;
  std::string_view text_;
};

}  // namespace quire
