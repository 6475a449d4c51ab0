// The tests of "is": {% if x is string %}.
#include <map>

#include "chat/budget.h"
#include "chat/filters.h"
#include "chat/python_format.h"
#include "chat/python_strings.h"
#include "util/str.h"

namespace quire::chat {
namespace {

using Kind = Value::Kind;
using Unary = bool (*)(const Value&);

bool modulo_is(const Value& value, const Value& divisor, int64_t wanted) {
  return equals(apply_operator("%", value, divisor), Value(wanted));
}

const std::map<std::string_view, Unary>& unary_tests() {
  static const std::map<std::string_view, Unary> table = {
      {"boolean", [](const Value& v) { return v.is(Kind::kBool); }},
      {"callable",
       [](const Value& v) { return v.is(Kind::kFunction) || v.is(Kind::kLoop) || !v.is_defined(); }},
      {"defined", [](const Value& v) { return v.is_defined(); }},
      {"even", [](const Value& v) { return modulo_is(v, Value(int64_t{2}), 0); }},
      {"false", [](const Value& v) { return v.is(Kind::kBool) && !v.as_bool(); }},
      {"float", [](const Value& v) { return v.is(Kind::kFloat); }},
      {"integer", [](const Value& v) { return v.is(Kind::kInt); }},
      {"iterable",
       [](const Value& v) {
         return !v.is_defined() || v.is(Kind::kString) || v.is_sequence() || v.is(Kind::kDict) ||
                v.is(Kind::kLoop);
       }},
      {"lower", [](const Value& v) { return *ask_characters("islower", to_text(v)); }},
      {"mapping", [](const Value& v) { return v.is(Kind::kDict); }},
      {"none", [](const Value& v) { return v.is(Kind::kNone); }},
      {"number", [](const Value& v) { return v.is_number(); }},
      {"odd", [](const Value& v) { return modulo_is(v, Value(int64_t{2}), 1); }},
      {"sequence",
       [](const Value& v) {
         // What has a length and can be indexed; an undefined value says it can.
         return !v.is_defined() || v.is(Kind::kString) || v.is(Kind::kList) || v.is(Kind::kTuple) ||
                v.is(Kind::kRange) || v.is(Kind::kDict);
       }},
      {"string", [](const Value& v) { return v.is(Kind::kString); }},
      {"true", [](const Value& v) { return v.is(Kind::kBool) && v.as_bool(); }},
      {"undefined", [](const Value& v) { return !v.is_defined(); }},
      {"upper", [](const Value& v) { return *ask_characters("isupper", to_text(v)); }},
  };
  return table;
}

// Tests with an argument that are operators under another name.
const std::map<std::string_view, std::string_view>& comparisons() {
  static const std::map<std::string_view, std::string_view> table = {
      {"eq", "=="},      {"equalto", "=="}, {"==", "=="}, {"ne", "!="},        {"!=", "!="}, {"lt", "<"},
      {"lessthan", "<"}, {"<", "<"},        {"le", "<="}, {"<=", "<="},        {"gt", ">"},  {">", ">"},
      {"ge", ">="},      {">=", ">="},      {"in", "in"}, {"greaterthan", ">"}};
  return table;
}

}  // namespace

bool is_test(std::string_view name) {
  return unary_tests().contains(name) || comparisons().contains(name) || name == "divisibleby" ||
         name == "sameas";
}

bool apply_test(std::string_view name, const Value& input, const Arguments& arguments) {
  spend(10);
  if (const auto unary = unary_tests().find(name); unary != unary_tests().end()) {
    const BoundArguments none(name, arguments, {});
    return unary->second(input);
  }
  const BoundArguments bound(name, arguments, {"other"});
  const Value& other = bound.required(0);
  if (const auto comparison = comparisons().find(name); comparison != comparisons().end()) {
    return apply_comparison(comparison->second, input, other);
  }
  if (name == "divisibleby") return modulo_is(input, other, 0);
  if (name == "sameas") return input.is_same_object(other);
  fail(str("the test '", name, "' is not supported"));
}

}  // namespace quire::chat
