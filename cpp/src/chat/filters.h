// Filters, tests, methods and operators: what a template can do with values.
//
// All throw InvalidArgument where Python or Jinja would raise; the message says why.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "chat/value.h"

namespace quire::chat {

struct Arguments {
  Values positional;
  std::vector<std::pair<std::string, Value>> named;
};

// The arguments of one call, by parameter. Complains about those that have no parameter.
class BoundArguments {
 public:
  // `function` is for messages. `parameters` must outlive this.
  BoundArguments(std::string_view function, const Arguments& arguments,
                 std::initializer_list<std::string_view> parameters);

  // Null when the caller left it out.
  const Value* find(size_t parameter) const { return values_[parameter]; }
  const Value& required(size_t parameter) const;
  // None counts as left out.
  int64_t integer_or(size_t parameter, int64_t absent) const;
  bool boolean_or(size_t parameter, bool absent) const;
  std::string string_or(size_t parameter, std::string_view absent) const;

 private:
  std::string_view function_;
  std::vector<std::string_view> parameters_;
  std::vector<const Value*> values_;
};

bool is_filter(std::string_view name);
bool is_test(std::string_view name);

Value apply_filter(std::string_view name, const Value& input, const Arguments& arguments);
bool apply_test(std::string_view name, const Value& input, const Arguments& arguments);

// value.name and value[index], which differ only in where they look first. Undefined when there is none.
Value get_attribute(const Value& value, const std::string& name);
Value get_item(const Value& value, const Value& index);
// value[start:end:step]; any of the three may be null.
Value get_slice(const Value& value, const Value* start, const Value* end, const Value* step);
Value call_method(const Value& self, std::string_view name, const Arguments& arguments);

// + - * / // % **
Value apply_operator(std::string_view op, const Value& left, const Value& right);
Value negate(const Value& value);
bool is_contained(const Value& item, const Value& container);
// == != < <= > >= in "not in"
bool apply_comparison(std::string_view op, const Value& left, const Value& right);

// Throws the complaint of an undefined value; anything else passes.
void require_defined(const Value& value);
// The text of a string; complains about any other type.
const std::string& require_string(const Value& value, std::string_view user);
int64_t require_integer(const Value& value, std::string_view user);

}  // namespace quire::chat
