#include "engine/field_value.h"

#include <charconv>
#include <cmath>
#include <limits>

#include "quire/error.h"
#include "util/str.h"

namespace quire {

void FieldValue::fail(const std::string& expected) const {
  // A value may be as long, and as deeply nested, as the client pleases.
  std::string shown = json_.is_structured() ? std::string(json_.is_array() ? "an array" : "an object")
                                            : json_.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (shown.size() > 100) shown = shown.substr(0, 100) + "...";
  throw InvalidArgument(str(name_, " must be ", expected, ", got ", shown));
}

const Json& FieldValue::unquoted(Json& parsed) const {
  if (!json_.is_string()) return json_;
  const auto& text = json_.get_ref<const std::string&>();
  if (text == "True") {  // Python's str()
    parsed = true;
  } else if (text == "False") {
    parsed = false;
  } else {
    parsed = try_parse_json(text);  // of no type, on failure
  }
  return parsed;
}

int64_t FieldValue::integer(int64_t min, int64_t max) const {
  Json parsed;
  const Json& value = unquoted(parsed);
  const std::string expected = str("an integer from ", min, " to ", max);
  int64_t number = 0;
  if (value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{INT64_MAX}) fail(expected);
  if (value.is_number_integer()) {
    number = value.get<int64_t>();
  } else if (value.is_number_float()) {
    // 5.0 is five: some clients know no integers.
    const double real = value.get<double>();
    if (!(std::abs(real) < 9.0e15) || real != std::floor(real)) fail(expected);
    number = static_cast<int64_t>(real);
  } else {
    fail(expected);
  }
  if (number < min || number > max) fail(expected);
  return number;
}

void FieldValue::read(bool& field) const {
  if (!read_if_boolean(field)) fail("true or false");
}

bool FieldValue::read_if_boolean(bool& field) const {
  Json parsed;
  const Json& value = unquoted(parsed);
  if (!value.is_boolean()) return false;
  field = value.get<bool>();
  return true;
}

void FieldValue::read(int32_t& field) const {
  field =
      static_cast<int32_t>(integer(std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()));
}

void FieldValue::read(int64_t& field) const {
  field = integer(std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max());
}

void FieldValue::read(uint64_t& field) const {
  Json parsed;
  const Json& value = unquoted(parsed);
  field = value.is_number_unsigned() ? value.get<uint64_t>()
                                     : static_cast<uint64_t>(integer(0, std::numeric_limits<int64_t>::max()));
}

void FieldValue::read(float& field) const {
  double value = 0;
  read(value);
  if (std::abs(value) > static_cast<double>(std::numeric_limits<float>::max()))
    fail("a number that fits 32 bits");
  field = static_cast<float>(value);
}

void FieldValue::read(double& field) const {
  Json parsed;
  const Json& value = unquoted(parsed);
  if (!value.is_number()) fail("a number");
  field = value.get<double>();
}

void FieldValue::read(std::string& field) const {
  if (!json_.is_string()) fail("a string");
  field = json_.get<std::string>();
}

void FieldValue::read(JsonObject& field) const {
  Json parsed;
  const Json& value = unquoted(parsed);
  if (!value.is_object()) fail("an object");
  // Writing it recurses, so how deep it is nested is looked at first, without.
  constexpr size_t kMaxDepth = 32;
  std::vector<std::pair<const Json*, size_t>> rest = {{&value, 1}};
  while (!rest.empty()) {
    const auto [node, depth] = rest.back();
    rest.pop_back();
    if (depth > kMaxDepth) fail(str("an object that is nested at most ", kMaxDepth, " deep"));
    if (!node->is_structured()) continue;
    for (const Json& element : *node) rest.emplace_back(&element, depth + 1);
  }
  field.text = value.dump();
}

void FieldValue::read(std::vector<std::string>& field) const {
  const std::string expected = "a string or an array of strings";
  field.clear();
  if (json_.is_string()) {
    field.push_back(json_.get<std::string>());
    return;
  }
  if (!json_.is_array()) fail(expected);
  for (const Json& element : json_) {
    if (!element.is_string()) fail(expected);
    field.push_back(element.get<std::string>());
  }
}

void FieldValue::read(std::vector<int32_t>& field) const {
  Json parsed;
  const Json& value = unquoted(parsed);
  if (!value.is_array()) fail("an array of integers");
  field.clear();
  for (const Json& element : value) {
    const std::string name = str(name_, "[", field.size(), "]");
    FieldValue(element, name).read(field.emplace_back());
  }
}

void FieldValue::read(std::map<int32_t, float>& field) const {
  Json parsed;
  const Json& value = unquoted(parsed);
  if (!value.is_object()) fail("an object from token ids to numbers");
  field.clear();
  for (const auto& [key, element] : value.items()) {
    int32_t id = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size()) fail("an object whose keys are token ids");
    FieldValue(element, name_).read(field[id]);
  }
}

void FieldValue::read(EarlyStopping& field) const {
  bool value = false;
  if (read_if_boolean(value)) {
    field = value ? EarlyStopping::kTrue : EarlyStopping::kFalse;
  } else if (json_ == "never") {
    field = EarlyStopping::kNever;
  } else {
    fail("true, false or \"never\"");
  }
}

void FieldValue::read(JsonText& field) const {
  if (json_.is_string()) {
    field.text = json_.get<std::string>();
  } else if (json_.is_structured() || json_.is_boolean()) {
    field.text = text_.empty() ? json_.dump() : std::string(text_);
  } else {
    fail("JSON (an object, an array, true or false), or its text");
  }
}

void FieldValue::read(StructuredOutputsParams& field) const {
  Json parsed;
  const Json& value = unquoted(parsed);
  if (!value.is_object()) fail("an object");
  const std::string_view text = json_.is_string() ? json_.get_ref<const std::string&>() : text_;
  for (const auto& [key, element] : value.items()) {
    bool found = false;
    std::string known;
    for_each_field(kStructuredOutputsFields, [&](const auto& entry) {
      known += (known.empty() ? "" : ", ") + std::string(entry.name);
      if (key != entry.name) return;
      found = true;
      const std::string name = name_ + "." + key;
      if (!element.is_null())
        FieldValue(element, name, find_member_text(text, key)).read(field.*entry.member);
    });
    if (!found)
      throw InvalidArgument(
          str("'", key.substr(0, 100), "' is not a field of ", name_, "; there are ", known));
  }
}

}  // namespace quire
