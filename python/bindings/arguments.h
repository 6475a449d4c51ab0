// Keyword arguments of a struct, one by one: a complaint names the argument, its value and what would do,
// where an overload of thirty parameters could only be printed whole.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <charconv>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "quire/field.h"
#include "quire/sampling_params.h"

namespace quire::bindings {

template <typename T>
struct Argument {
  const char* name;
  const char* type;     // of the attribute, as Python writes it
  const char* accepts;  // what may be given for it; besides, None leaves the default
  bool (*set)(T& target, nanobind::handle value);  // false: it is not of that type
  nanobind::object (*get)(const T& target);
  const char* range = "";  // of whole numbers, where a larger one is told of it
  const char* doc = "";    // of the attribute
};

// "0.8", not what a double makes of the float nearest to it.
inline nanobind::object to_python(float value) {
  char text[32];
  const auto written = std::to_chars(text, text + sizeof text, value);
  double shortest = value;
  std::from_chars(text, written.ptr, shortest);
  return nanobind::float_(shortest);
}
inline nanobind::object to_python(const std::map<int32_t, float>& by_id) {
  nanobind::dict values;
  for (const auto& [id, value] : by_id) values[nanobind::int_(id)] = to_python(value);
  return values;
}
inline nanobind::object to_python(const std::optional<JsonText>& value) {
  return value ? nanobind::cast(value->text) : nanobind::none();
}
inline nanobind::object to_python(const JsonObject& object) {
  return nanobind::module_::import_("json").attr("loads")(object.text);
}
inline nanobind::object to_python(EarlyStopping value) {
  if (value == EarlyStopping::kNever) return nanobind::str("never");
  return nanobind::bool_(value == EarlyStopping::kTrue);
}
template <typename M>
nanobind::object to_python(const M& value) {
  return nanobind::cast(value);
}

template <typename M>
bool from_python(nanobind::handle value, M& field) {
  return nanobind::try_cast<M>(value, field);
}
inline bool from_python(nanobind::handle value, JsonObject& field) {
  if (value.is_none()) {
    field = {};
    return true;
  }
  if (!PyMapping_Check(value.ptr()) || !nanobind::hasattr(value, "keys")) return false;
  nanobind::dict copy;
  copy.update(value);
  field.text = nanobind::cast<std::string>(
      nanobind::module_::import_("json").attr("dumps")(copy, nanobind::arg("allow_nan") = false));
  return true;
}
inline bool from_python(nanobind::handle value, EarlyStopping& field) {
  std::string text;
  if (PyBool_Check(value.ptr())) {
    field = value.ptr() == Py_True ? EarlyStopping::kTrue : EarlyStopping::kFalse;
  } else if (nanobind::try_cast<std::string>(value, text) && text == "never") {
    field = EarlyStopping::kNever;
  } else {
    return false;
  }
  return true;
}
// None is an empty list or mapping, and one string is a list of one.
template <typename Container>
bool container_from_python(nanobind::handle value, Container& field) {
  if (!value.is_none()) return nanobind::try_cast<Container>(value, field);
  field.clear();
  return true;
}
inline bool from_python(nanobind::handle value, std::map<int32_t, float>& field) {
  return container_from_python(value, field);
}
inline bool from_python(nanobind::handle value, std::vector<int32_t>& field) {
  return container_from_python(value, field);
}
inline bool from_python(nanobind::handle value, std::vector<std::string>& field) {
  std::string one;
  if (!nanobind::try_cast<std::string>(value, one)) return container_from_python(value, field);
  field = {std::move(one)};
  return true;
}

// sampling_bindings.cpp
bool from_python(nanobind::handle value, std::optional<StructuredOutputsParams>& field);
bool from_python(nanobind::handle value, std::optional<JsonText>& field);

template <typename M>
constexpr const char* python_type() {
  if constexpr (std::is_same_v<M, std::optional<StructuredOutputsParams>>)
    return "StructuredOutputsParams | None";
  if constexpr (std::is_same_v<M, std::optional<JsonText>>) return "str | None";
  if constexpr (std::is_same_v<M, std::optional<std::string>>) return "str | None";
  if constexpr (std::is_same_v<M, std::optional<std::vector<std::string>>>) return "list[str] | None";
  if constexpr (std::is_same_v<M, std::map<int32_t, float>>) return "dict[int, float]";
  if constexpr (std::is_same_v<M, JsonObject>) return "dict[str, typing.Any]";
  if constexpr (std::is_same_v<M, std::vector<int32_t>>) return "list[int]";
  if constexpr (std::is_same_v<M, std::vector<std::string>>) return "list[str]";
  if constexpr (std::is_same_v<M, bool>) return "bool";
  if constexpr (std::is_integral_v<M>) return "int";
  if constexpr (std::is_floating_point_v<M>) return "float";
  if constexpr (std::is_same_v<M, std::string>) return "str";
  if constexpr (std::is_same_v<M, std::optional<bool>>) return "bool | None";
  if constexpr (std::is_same_v<M, std::optional<std::vector<int32_t>>>) return "list[int] | None";
  if constexpr (std::is_same_v<M, RequestOutputKind>) return "RequestOutputKind";
  if constexpr (std::is_same_v<M, EarlyStopping>) return "bool | typing.Literal['never']";
  return "int | None";
}

// The Python types that may be given for a member of type M.
template <typename M>
constexpr const char* python_accepts() {
  if constexpr (std::is_same_v<M, JsonObject>) return "collections.abc.Mapping[str, typing.Any] | None";
  if constexpr (std::is_same_v<M, std::map<int32_t, float>>)
    return "collections.abc.Mapping[int, float] | None";
  if constexpr (std::is_same_v<M, std::vector<int32_t>> ||
                std::is_same_v<M, std::optional<std::vector<int32_t>>>)
    return "collections.abc.Sequence[int] | None";
  if constexpr (std::is_same_v<M, std::vector<std::string>>)
    return "str | collections.abc.Sequence[str] | None";
  if constexpr (std::is_same_v<M, std::optional<std::vector<std::string>>>)
    return "collections.abc.Sequence[str] | None";
  if constexpr (std::is_same_v<M, std::optional<JsonText>>)
    return "str | dict[str, typing.Any] | list[typing.Any] | bool | type[typing.Any] | None";
  if constexpr (std::is_same_v<M, std::optional<StructuredOutputsParams>>)
    return "StructuredOutputsParams | dict[str, typing.Any] | None";
  return python_type<M>();
}

template <typename M>
constexpr const char* python_range() {
  if constexpr (std::is_same_v<M, int32_t>) return "-2147483648 to 2147483647";
  if constexpr (std::is_same_v<M, int64_t>) return "-9223372036854775808 to 9223372036854775807";
  if constexpr (std::is_same_v<M, uint64_t>) return "0 to 18446744073709551615";
  return "";
}
template <typename M>
struct ValueOf {
  using Type = M;
};
template <typename M>
struct ValueOf<std::optional<M>> {
  using Type = M;
};

template <auto member>
struct MemberOf;
template <typename T, typename M, M T::* member>
struct MemberOf<member> {
  using Class = T;
  using Type = M;
  static bool set(T& target, nanobind::handle value) { return from_python(value, target.*member); }
  static nanobind::object get(const T& target) { return to_python(target.*member); }
};

// A number whose largest value is None.
template <auto member>
struct NoneForMax {
  using Class = typename MemberOf<member>::Class;
  using Type = typename MemberOf<member>::Type;
  static constexpr Type kMax = std::numeric_limits<Type>::max();
  static bool set(Class& target, nanobind::handle value) {
    if (!value.is_none()) return nanobind::try_cast<Type>(value, target.*member);
    target.*member = kMax;
    return true;
  }
  static nanobind::object get(const Class& target) {
    return target.*member == kMax ? nanobind::none() : nanobind::cast(target.*member);
  }
};

// A number of which True is 1 and False is none.
template <auto member>
struct TrueForOne {
  using Class = typename MemberOf<member>::Class;
  static bool set(Class& target, nanobind::handle value) {
    if (!PyBool_Check(value.ptr())) return MemberOf<member>::set(target, value);
    (target.*member).reset();
    if (value.ptr() == Py_True) target.*member = 1;
    return true;
  }
};

template <auto member>
constexpr auto argument(const char* name, const char* type, const char* accepts) {
  using Of = MemberOf<member>;
  constexpr const char* range = python_range<typename ValueOf<typename Of::Type>::Type>();
  return Argument<typename Of::Class>{name, type, accepts, Of::set, Of::get, range};
}
template <auto member>
constexpr auto argument(const char* name) {
  using Type = typename MemberOf<member>::Type;
  return argument<member>(name, python_type<Type>(), python_accepts<Type>());
}

// The i-th field of a table (quire/field.h).
template <const auto& table, size_t i>
constexpr auto argument_of_field() {
  constexpr const auto& field = std::get<i>(table);
  auto made = argument<field.member>(field.name);
  made.doc = field.doc;
  if constexpr (field.also == Also::kNoneForMax) {
    made.type = made.accepts = "int | None";
    made.set = NoneForMax<field.member>::set;
    made.get = NoneForMax<field.member>::get;
  }
  if constexpr (field.also == Also::kTrueForOne) made.set = TrueForOne<field.member>::set;
  return made;
}
template <const auto& table, size_t... i>
constexpr auto arguments_of_table(std::index_sequence<i...>) {
  return std::array{argument_of_field<table, i>()...};
}
template <const auto& table>
constexpr auto arguments_of_table() {
  return arguments_of_table<table>(
      std::make_index_sequence<std::tuple_size_v<std::remove_cvref_t<decltype(table)>>>());
}

// The name of ours for one that is not known, which may be vLLM's (quire/vllm_names.py); empty if the
// argument is to be dropped. Raises ValueError, with the reason, for one that is refused.
std::string find_name(const char* owner, const std::string& name, nanobind::handle value);
// TypeErrors: "SamplingParams has no argument 'max_token'; did you mean 'max_tokens'?"
[[noreturn]] void fail_unknown(const char* owner, const std::string& name,
                               const std::vector<const char*>& known);
// "top_k must be int, got 'x' (str)"; a ValueError with `range` for a whole number that is not within it.
[[noreturn]] void fail_type(const char* name, const char* accepts, const char* range, nanobind::handle value);
// What Python raised of a value, with the argument's name in front where it is about the value.
[[noreturn]] void fail_value(const char* name, const nanobind::python_error& error);
// Of an argument. TypeError or ValueError for a key of a dict that is none.
std::string argument_name(const char* owner, nanobind::handle key);

// Raises TypeError or ValueError, naming the argument, for a value that it does not take.
template <typename T>
void set_argument(const Argument<T>& argument, const char* name, T& target, nanobind::handle value) {
  bool is_set = false;
  try {
    is_set = argument.set(target, value);
  } catch (const nanobind::python_error& error) {
    fail_value(name, error);
  }
  if (!is_set) fail_type(name, argument.accepts, argument.range, value);
}

inline std::string python_repr(nanobind::handle value) {
  return nanobind::cast<std::string>(nanobind::repr(value));
}

// `where` precedes the names in complaints about values.
template <typename T>
void set_arguments(T& target, std::span<const Argument<T>> arguments, const char* owner,
                   const nanobind::dict& values, const std::string& where = "") {
  for (const auto& [key, value] : values) {
    const std::string name = argument_name(owner, key);
    const auto find = [&](const std::string& wanted) {
      const Argument<T>* found = nullptr;
      for (const Argument<T>& argument : arguments)
        if (wanted == argument.name) found = &argument;
      return found;
    };
    const Argument<T>* found = find(name);
    if (!found) {
      const std::string other = find_name(owner, name, value);
      if (other.empty()) continue;
      found = find(other);
    }
    if (!found) {
      std::vector<const char*> known;
      for (const Argument<T>& argument : arguments) known.push_back(argument.name);
      fail_unknown(owner, name, known);
    }
    if (value.is_none()) {
      found->set(target, value);  // or the default stays
    } else {
      set_argument(*found, (where + found->name).c_str(), target, value);
    }
  }
}

// "self, *, temperature: float | None = 1.0, ..."
template <typename T>
std::string parameter_list(std::span<const Argument<T>> arguments) {
  const T defaults;
  std::string text;
  for (const Argument<T>& argument : arguments) {
    const std::string accepts = argument.accepts;
    text += std::string(", ") + argument.name + ": " + accepts;
    if (!accepts.ends_with("| None")) text += " | None";
    const std::string value = python_repr(argument.get(defaults));
    // A member of an enumeration is found in its module.
    const bool is_member = value.starts_with(std::string(argument.type) + ".");
    text += (is_member ? " = quire._core." : " = ") + value;
  }
  return text;
}

// Attributes of these names; `settable` or not.
template <typename T>
void def_attributes(nanobind::class_<T>& type, std::span<const Argument<T>> arguments, bool settable) {
  for (const Argument<T>& argument : arguments) {
    const std::string read = std::string("def ") + argument.name + "(self) -> " + argument.type;
    const std::string write =
        std::string("def ") + argument.name + "(self, value: " + argument.accepts + ", /) -> None";
    const auto get = [get = argument.get](const T& self) { return get(self); };
    if (!settable) {
      type.def_prop_ro(argument.name, get, nanobind::sig(read.c_str()), argument.doc);
      continue;
    }
    type.def_prop_rw(
        argument.name, get,
        [argument](T& self, nanobind::handle value) { set_argument(argument, argument.name, self, value); },
        nanobind::for_getter(nanobind::sig(read.c_str())), nanobind::for_getter(argument.doc),
        nanobind::for_setter(nanobind::arg("value").none()),
        nanobind::for_setter(nanobind::sig(write.c_str())));
  }
}

}  // namespace quire::bindings
