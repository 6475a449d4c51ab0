// How a field that others fill in is described, once, for every door.
//
// A table of these stands beside the struct. Names, ranges and documentation come from there wherever a
// request or a configuration comes in: C++ and Python, JSON, Triton's parameters, flags, messages.
// docs/adding_a_field.md has the steps.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <tuple>

#include "quire/export.h"

namespace quire {

// The numbers that a field, or each value of a map, may be. Never an infinite one, or NaN.
struct Range {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool excludes_min = false;
  bool excludes_max = false;
  double besides =
      std::numeric_limits<double>::quiet_NaN();  // a value that may be as well, even an infinite one
  const char* in_words = "";                     // where the numbers alone would not say it
  const char* one_of = "";  // of texts, and of numbers that are few: the values, with a blank between them

  constexpr bool contains(double value) const {
    return value == besides ||
           ((excludes_max ? value < max : value <= max) && (excludes_min ? value > min : value >= min) &&
            value < std::numeric_limits<double>::infinity() &&
            value > -std::numeric_limits<double>::infinity());
  }
};
constexpr Range at_least(double min, const char* in_words = "") { return {.min = min, .in_words = in_words}; }
constexpr Range between(double min, double max, const char* in_words = "") {
  return {.min = min, .max = max, .in_words = in_words};
}
constexpr Range above(double min, const char* in_words = "") {
  return {.min = min, .excludes_min = true, .in_words = in_words};
}
constexpr Range above_and_at_most(double min, double max) {
  return {.min = min, .max = max, .excludes_min = true};
}
constexpr Range one_of(const char* values) { return {.one_of = values}; }
// "between 0 and 1": what would do. Empty for a range of everything.
QUIRE_API std::string describe(const Range& range);

// What else may be written for a value, because others do.
enum class Also : uint8_t {
  kNothing,
  kTrueForOne,  // true is 1, false is none
  kNoneForMax,  // Python: None is the largest number, which is no limit
};

// Who sets a field.
enum class SetBy : uint8_t {
  kClients,  // by its name, at every door
  kCode,     // C++ and Python; at the doors for text it is the door's business
};

// Whether a value may be shown, where configurations are.
enum class Shown : uint8_t { kAlways, kNever };

template <typename Struct, typename T>
struct Field {
  const char* name;  // the member's
  T Struct::* member;
  const char* doc;  // a phrase
  Range range = {};
  Also also = Also::kNothing;
  SetBy set_by = SetBy::kClients;
  Shown shown = Shown::kAlways;
};
template <typename Struct, typename T, typename... Rest>
Field(const char*, T Struct::*, const char*, Rest...) -> Field<Struct, T>;

// Calls `visit` with each field of a table, in its order.
template <typename Table, typename Visit>
constexpr void for_each_field(const Table& table, Visit&& visit) {
  std::apply([&](const auto&... field) { (visit(field), ...); }, table);
}

}  // namespace quire
