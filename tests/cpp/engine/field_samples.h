// A value for each kind of field, for tests that walk the tables of quire/field.h: no field is named there.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "quire/engine.h"

namespace quire {

// A value as JSON writes it, and as the field holds it then.
template <typename T>
struct FieldSample {
  std::string json;
  T value;
};

// One that is not the field's default, and within its range.
inline FieldSample<bool> sample_of(const Range&, bool fallback) {
  return {fallback ? "false" : "true", !fallback};
}
template <typename T>
  requires std::is_integral_v<T>
FieldSample<T> sample_of(const Range& range, T fallback) {
  const T value = range.contains(static_cast<double>(fallback) + 3) ? fallback + 3 : fallback - 1;
  return {std::to_string(value), value};
}
inline FieldSample<float> sample_of(const Range& range, float fallback) {
  const float value =
      range.contains(static_cast<double>(fallback) + 0.25) ? fallback + 0.25F : fallback - 0.25F;
  return {std::to_string(value), value};
}
inline FieldSample<JsonObject> sample_of(const Range&, const JsonObject&) {
  return {R"({"a": [1, "b"]})", {R"({"a":[1,"b"]})"}};
}
inline FieldSample<std::string> sample_of(const Range&, const std::string&) { return {R"("a b")", "a b"}; }
inline FieldSample<std::vector<std::string>> sample_of(const Range&, const std::vector<std::string>&) {
  return {R"(["a", "[b]"])", {"a", "[b]"}};
}
inline FieldSample<std::vector<int32_t>> sample_of(const Range&, const std::vector<int32_t>&) {
  return {"[4, 5]", {4, 5}};
}
inline FieldSample<std::map<int32_t, float>> sample_of(const Range& range, const std::map<int32_t, float>&) {
  const FieldSample<float> value = sample_of(range, 0.0F);
  return {R"({"7": )" + value.json + "}", {{7, value.value}}};
}
template <typename T>
FieldSample<std::optional<T>> sample_of(const Range& range, const std::optional<T>&) {
  const FieldSample<T> value = sample_of(range, T{});
  return {value.json, value.value};
}
inline FieldSample<JsonText> sample_of(const Range&, const JsonText&) {
  return {R"({"type":"object"})", {R"({"type":"object"})"}};
}
inline FieldSample<StructuredOutputsParams> sample_of(const Range&, const StructuredOutputsParams&) {
  StructuredOutputsParams params;
  params.choice = {"a", "b"};
  return {R"({"choice": ["a", "b"]})", params};
}
inline FieldSample<EarlyStopping> sample_of(const Range&, EarlyStopping) {
  return {R"("never")", EarlyStopping::kNever};
}
inline FieldSample<RequestOutputKind> sample_of(const Range&, RequestOutputKind) {
  return {"", RequestOutputKind::kDelta};
}

// Calls `visit` with each field of both tables, and with `part_of`, a function from a request to what has it.
template <typename Visit>
void for_each_request_field(Visit&& visit) {
  for_each_field(kSamplingParamsFields, [&](const auto& field) {
    visit(field, [](EngineRequest& request) -> SamplingParams& { return request.sampling_params; });
  });
  for_each_field(kEngineRequestFields, [&](const auto& field) {
    visit(field, [](EngineRequest& request) -> EngineRequest& { return request; });
  });
}

// Whether all fields of both tables are equal.
inline bool same_fields(EngineRequest& a, EngineRequest& b) {
  bool same = true;
  for_each_request_field(
      [&](const auto& field, auto part_of) { same &= part_of(a).*field.member == part_of(b).*field.member; });
  return same;
}

// Values just outside a field's range.
template <typename T>
std::vector<T> outside(const Range& range, const T&) {
  std::vector<T> values;
  if constexpr (std::is_floating_point_v<T>) {
    values = {std::numeric_limits<T>::quiet_NaN(), std::numeric_limits<T>::infinity()};
  }
  if constexpr (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) {
    constexpr double kNone = std::numeric_limits<double>::infinity();
    const T step = std::is_floating_point_v<T> ? static_cast<T>(0.125) : static_cast<T>(1);
    if (range.min > -kNone) values.push_back(static_cast<T>(range.min) - (range.excludes_min ? T{} : step));
    if (range.max < kNone) values.push_back(static_cast<T>(range.max) + step);
  }
  return values;
}
template <typename T>
std::vector<std::optional<T>> outside(const Range& range, const std::optional<T>&) {
  const std::vector<T> values = outside(range, T{});
  return {values.begin(), values.end()};
}
inline std::vector<std::map<int32_t, float>> outside(const Range& range, const std::map<int32_t, float>&) {
  std::vector<std::map<int32_t, float>> maps = {{{-1, 0.0F}}, {{1 << 20, 0.0F}}};
  for (float value : outside(range, 0.0F)) maps.push_back({{5, value}});
  return maps;
}
inline std::vector<std::optional<StructuredOutputsParams>> outside(
    const Range&, const std::optional<StructuredOutputsParams>&) {
  StructuredOutputsParams two;
  two.regex = "a";
  two.json_object = true;
  return {StructuredOutputsParams{}, two};
}
inline std::vector<std::vector<int32_t>> outside(const Range&, const std::vector<int32_t>&) {
  return {{-1}, {5, 1 << 20}};
}
inline std::vector<std::vector<std::string>> outside(const Range&, const std::vector<std::string>&) {
  return {{"a", ""}};
}

}  // namespace quire
