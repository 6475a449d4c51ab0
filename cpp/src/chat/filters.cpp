#include "chat/filters.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "chat/budget.h"
#include "chat/python_format.h"
#include "chat/python_strings.h"
#include "chat/sequence_filters.h"
#include "util/str.h"

namespace quire::chat {
namespace {

using Kind = Value::Kind;

Value capitalize_filter(const Value& input, const Arguments& arguments) {
  BoundArguments("capitalize", arguments, {});
  return Value(capitalize(to_text(input)));
}

Value lower_filter(const Value& input, const Arguments& arguments) {
  BoundArguments("lower", arguments, {});
  return Value(to_lower(to_text(input)));
}

Value upper_filter(const Value& input, const Arguments& arguments) {
  BoundArguments("upper", arguments, {});
  return Value(to_upper(to_text(input)));
}

Value string_filter(const Value& input, const Arguments& arguments) {
  BoundArguments("string", arguments, {});
  return Value(to_text(input));
}

// Unlike str.title(), words begin only after white space and some punctuation.
Value title_filter(const Value& input, const Arguments& arguments) {
  BoundArguments("title", arguments, {});
  const std::string text = to_text(input);
  const auto begins_word = [](std::string_view c) {
    return std::string_view("-({[<").find(c) != std::string_view::npos || strip(c, Side::kLeft).empty();
  };
  std::string out, word;
  const auto end_word = [&] {
    size_t first = 0;
    if (!word.empty()) decode_utf8(word, first);
    out += to_upper(std::string_view(word).substr(0, first)) + to_lower(std::string_view(word).substr(first));
    word.clear();
  };
  for (std::string_view c : split_characters(text)) {
    spend(4);
    if (begins_word(c)) {
      end_word();
      out += c;
    } else {
      word += c;
    }
  }
  end_word();
  return Value(std::move(out));
}

Value trim_filter(const Value& input, const Arguments& arguments) {
  const BoundArguments bound("trim", arguments, {"chars"});
  const Value* characters = bound.find(0);
  if (!characters || characters->is(Kind::kNone)) return Value(strip(to_text(input), Side::kBoth));
  return Value(strip(to_text(input), Side::kBoth, require_string(*characters, "trim")));
}

Value replace_filter(const Value& input, const Arguments& arguments) {
  const BoundArguments bound("replace", arguments, {"old", "new", "count"});
  return Value(replace(to_text(input), to_text(bound.required(0)), to_text(bound.required(1)),
                       bound.integer_or(2, -1)));
}

Value indent_filter(const Value& input, const Arguments& arguments) {
  const BoundArguments bound("indent", arguments, {"width", "first", "blank"});
  const Value* width = bound.find(0);
  const bool as_text = width && width->is(Kind::kString);
  const int64_t num_spaces = as_text ? 0 : bound.integer_or(0, 4);
  check_string_size(static_cast<size_t>(std::max<int64_t>(num_spaces, 0)));
  const std::string indent =
      as_text ? width->as_string() : std::string(static_cast<size_t>(std::max<int64_t>(num_spaces, 0)), ' ');
  const std::string text = require_string(input, "indent") + "\n";
  std::string out = bound.boolean_or(1, false) ? indent : "";
  bool is_first = true;
  for (std::string_view line : split_lines(text, /*keep_ends=*/false)) {
    spend(2);
    spend_copy(indent.size());
    if (!is_first) out += '\n';
    if (!is_first && (!line.empty() || bound.boolean_or(2, false))) out += indent;
    out += line;
    check_string_size(out.size() + indent.size());
    is_first = false;
  }
  return Value(std::move(out));
}

Value tojson_filter(const Value& input, const Arguments& arguments) {
  // What transformers defines; Jinja's own would escape HTML.
  const BoundArguments bound("tojson", arguments, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = bound.boolean_or(0, false);
  style.sort_keys = bound.boolean_or(3, false);
  if (const Value* indent = bound.find(1); indent && !indent->is(Kind::kNone)) {
    style.indented = true;
    style.item_separator.assign(1, ',');
    if (indent->is(Kind::kString)) {
      style.indent = indent->as_string();
    } else {
      const int64_t num_spaces = std::max<int64_t>(require_integer(*indent, "tojson"), 0);
      check_string_size(static_cast<size_t>(num_spaces));
      style.indent = std::string(static_cast<size_t>(num_spaces), ' ');
    }
  }
  if (const Value* separators = bound.find(2); separators && !separators->is(Kind::kNone)) {
    const Values both = iterate(*separators);
    if (both.size() != 2) fail("tojson needs two separators");
    style.item_separator = require_string(both[0], "tojson");
    style.key_separator = require_string(both[1], "tojson");
  }
  return Value(to_json(input, style));
}

Value length_filter(const Value& input, const Arguments& arguments) {
  BoundArguments("length", arguments, {});
  const auto size = length(input);
  if (!size) fail(str("object of type '", input.type_name(), "' has no len()"));
  return Value(*size);
}

Value default_filter(const Value& input, const Arguments& arguments) {
  const BoundArguments bound("default", arguments, {"default_value", "boolean"});
  if (input.is_defined() && !(bound.boolean_or(1, false) && !is_true(input))) return input;
  return bound.find(0) ? *bound.find(0) : Value(std::string());
}

Value abs_filter(const Value& input, const Arguments& arguments) {
  BoundArguments("abs", arguments, {});
  require_defined(input);
  if (!input.is_number()) fail(str("bad operand type for abs(): '", input.type_name(), "'"));
  const bool negative = input.is_integer() ? input.as_int() < 0 : std::signbit(input.as_double());
  return negative ? negate(input) : input.is(Kind::kBool) ? Value(input.as_int()) : input;
}

// The number that a text or a number stands for, as Python's float() reads it.
std::optional<double> read_float(const Value& input) {
  if (input.is_number()) return input.as_double();
  if (!input.is(Kind::kString)) return std::nullopt;
  spend(static_cast<int64_t>(input.as_string().size()));
  const std::string text(strip(input.as_string(), Side::kBoth));
  // strtod also takes hexadecimal digits and named values.
  if (text.empty() || text.find_first_not_of("0123456789+-.eE") != std::string::npos) return std::nullopt;
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  return end == text.c_str() + text.size() ? std::optional(value) : std::nullopt;
}

Value int_filter(const Value& input, const Arguments& arguments) {
  const BoundArguments bound("int", arguments, {"default", "base"});
  require_defined(input);
  if (bound.integer_or(1, 10) != 10) fail("'int' with a base other than 10 is not supported");
  if (input.is_integer()) return Value(input.as_int());
  if (input.is(Kind::kString)) {
    spend(static_cast<int64_t>(input.as_string().size()));
    const std::string text(strip(input.as_string(), Side::kBoth));
    const size_t sign = text.starts_with('-') || text.starts_with('+') ? 1 : 0;
    if (text.size() > sign && text.find_first_not_of("0123456789", sign) == std::string::npos) {
      if (text.size() - sign > 18) fail("an integer beyond 64 bits");
      return Value(int64_t{std::stoll(text)});
    }
  }
  const auto value = read_float(input);
  if (!value || !std::isfinite(*value)) return bound.find(0) ? *bound.find(0) : Value(int64_t{0});
  if (std::abs(*value) >= 9.0e18) fail("an integer beyond 64 bits");
  return Value(static_cast<int64_t>(*value));
}

Value float_filter(const Value& input, const Arguments& arguments) {
  const BoundArguments bound("float", arguments, {"default"});
  require_defined(input);
  if (const auto value = read_float(input)) return Value(*value);
  return bound.find(0) ? *bound.find(0) : Value(0.0);
}

Value round_filter(const Value& input, const Arguments& arguments) {
  const BoundArguments bound("round", arguments, {"precision", "method"});
  const int64_t precision = bound.integer_or(0, 0);
  const std::string method = bound.string_or(1, "common");
  require_defined(input);
  if (!input.is_number()) fail(str("'round' needs a number, got '", input.type_name(), "'"));
  if (precision < 0 || precision > 15) fail("'round' is supported to between 0 and 15 digits");
  if (method != "common" && method != "ceil" && method != "floor")
    fail("method must be common, ceil or floor");
  if (input.is_integer() && method == "common") return Value(input.as_int());
  const double value = input.as_double();
  if (!std::isfinite(value)) return Value(value);
  spend(200);
  if (method == "common") {  // printf rounds the exact value, as Python does
    char text[400];
    std::snprintf(text, sizeof text, "%.*f", static_cast<int>(precision), value);
    return Value(std::strtod(text, nullptr));
  }
  const double scale = std::pow(10.0, static_cast<double>(precision));
  return Value((method == "ceil" ? std::ceil(value * scale) : std::floor(value * scale)) / scale);
}

Value safe_filter(const Value& input, const Arguments& arguments) {
  BoundArguments("safe", arguments, {});
  return Value(to_text(input));
}

using Filter = Value (*)(const Value&, const Arguments&);

const std::map<std::string_view, Filter>& filters() {
  static const std::map<std::string_view, Filter> table = [] {
    std::map<std::string_view, Filter> all = {
        {"abs", abs_filter},         {"capitalize", capitalize_filter},
        {"count", length_filter},    {"d", default_filter},
        {"default", default_filter}, {"float", float_filter},
        {"indent", indent_filter},   {"int", int_filter},
        {"length", length_filter},   {"lower", lower_filter},
        {"replace", replace_filter}, {"round", round_filter},
        {"safe", safe_filter},       {"string", string_filter},
        {"title", title_filter},     {"tojson", tojson_filter},
        {"trim", trim_filter},       {"upper", upper_filter},
    };
    for (const auto& [name, filter] : kSequenceFilters) all.emplace(name, filter);
    return all;
  }();
  return table;
}

}  // namespace

BoundArguments::BoundArguments(std::string_view function, const Arguments& arguments,
                               std::initializer_list<std::string_view> parameters)
    : function_(function), parameters_(parameters), values_(parameters.size()) {
  if (arguments.positional.size() > parameters_.size()) {
    fail(str("'", function, "' takes at most ", parameters_.size(), " arguments, got ",
             arguments.positional.size()));
  }
  for (size_t i = 0; i < arguments.positional.size(); ++i) values_[i] = &arguments.positional[i];
  for (const auto& [name, value] : arguments.named) {
    const auto at =
        static_cast<size_t>(std::find(parameters_.begin(), parameters_.end(), name) - parameters_.begin());
    if (at == parameters_.size() || values_[at])
      fail(str("'", function, "' does not take the argument '", name, "'"));
    values_[at] = &value;
  }
}

const Value& BoundArguments::required(size_t parameter) const {
  if (!values_[parameter]) fail(str("'", function_, "' needs the argument '", parameters_[parameter], "'"));
  return *values_[parameter];
}

int64_t BoundArguments::integer_or(size_t parameter, int64_t absent) const {
  const Value* value = values_[parameter];
  return value && !value->is(Kind::kNone) ? require_integer(*value, function_) : absent;
}

bool BoundArguments::boolean_or(size_t parameter, bool absent) const {
  return values_[parameter] ? is_true(*values_[parameter]) : absent;
}

std::string BoundArguments::string_or(size_t parameter, std::string_view absent) const {
  return values_[parameter] ? require_string(*values_[parameter], function_) : std::string(absent);
}

bool is_filter(std::string_view name) { return filters().contains(name); }

Value apply_filter(std::string_view name, const Value& input, const Arguments& arguments) {
  spend(10);
  const auto found = filters().find(name);
  if (found == filters().end()) fail(str("the filter '", name, "' is not supported"));
  return found->second(input, arguments);
}

}  // namespace quire::chat
