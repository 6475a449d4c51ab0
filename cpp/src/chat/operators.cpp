#include <algorithm>
#include <cmath>

#include "chat/budget.h"
#include "chat/filters.h"
#include "chat/python_strings.h"
#include "util/str.h"

namespace quire::chat {
namespace {

using Kind = Value::Kind;

[[noreturn]] void fail_types(std::string_view op, const Value& left, const Value& right) {
  fail(str("unsupported operand types for ", op, ": '", left.type_name(), "' and '", right.type_name(), "'"));
}

// What one of the overflow builtins said and computed.
Value checked(bool overflows, const int64_t& result) {
  if (overflows) fail("an integer beyond 64 bits");
  return Value(result);
}

int64_t floor_divide(int64_t a, int64_t b) {
  const int64_t quotient = a / b;
  return quotient - (a % b != 0 && (a < 0) != (b < 0));
}

double floor_modulo(double a, double b) {
  const double remainder = std::fmod(a, b);
  if (remainder == 0) return std::copysign(0.0, b);
  return (remainder < 0) != (b < 0) ? remainder + b : remainder;
}

double floor_divide(double a, double b) {
  const double quotient = (a - floor_modulo(a, b)) / b;
  if (quotient == 0) return std::copysign(0.0, a / b);
  const double floored = std::floor(quotient);
  return quotient - floored > 0.5 ? floored + 1 : floored;
}

double float_power(double base, double exponent) {
  const double result = std::pow(base, exponent);
  if (base == 0 && exponent < 0) fail("0.0 cannot be raised to a negative power");
  if (std::isnan(result) && !std::isnan(base) && !std::isnan(exponent))
    fail("a complex number is not supported");
  if (std::isinf(result) && std::isfinite(base) && std::isfinite(exponent))
    fail("numerical result out of range");
  return result;
}

Value integer_power(int64_t base, int64_t exponent) {
  if (exponent < 0) return Value(float_power(static_cast<double>(base), static_cast<double>(exponent)));
  int64_t result = 1;
  bool overflows = false;
  // Beyond 64 factors only 0, 1 and -1 stay within 64 bits.
  if (exponent > 64 && (base > 1 || base < -1)) overflows = true;
  if (exponent > 64) exponent = 64 + exponent % 2;
  for (int64_t i = 0; i < exponent && !overflows; ++i)
    overflows = __builtin_mul_overflow(result, base, &result);
  return checked(overflows, result);
}

Value arithmetic(std::string_view op, const Value& left, const Value& right) {
  const char sign = op[0];
  const bool doubled = op.size() == 2;
  if ((sign == '/' || sign == '%') && right.as_double() == 0) fail("division by zero");
  if (left.is_integer() && right.is_integer() && !(sign == '/' && !doubled)) {
    const int64_t a = left.as_int(), b = right.as_int();
    int64_t result = 0;
    if (sign == '+') return checked(__builtin_add_overflow(a, b, &result), result);
    if (sign == '-') return checked(__builtin_sub_overflow(a, b, &result), result);
    if (sign == '*' && doubled) return integer_power(a, b);
    if (sign == '*') return checked(__builtin_mul_overflow(a, b, &result), result);
    if (b == -1)
      return sign == '%' ? Value(int64_t{0})
                         : checked(__builtin_sub_overflow(int64_t{0}, a, &result), result);
    return Value(sign == '%' ? a - floor_divide(a, b) * b : floor_divide(a, b));
  }
  const double a = left.as_double(), b = right.as_double();
  if (sign == '+') return Value(a + b);
  if (sign == '-') return Value(a - b);
  if (sign == '*') return Value(doubled ? float_power(a, b) : a * b);
  if (sign == '%') return Value(floor_modulo(a, b));
  return Value(doubled ? floor_divide(a, b) : a / b);
}

Values joined(const Values& a, const Values& b) {
  spend(static_cast<int64_t>(a.size() + b.size()));
  Values items = a;
  items.insert(items.end(), b.begin(), b.end());
  return items;
}

Value repeated(const Value& value, int64_t count) {
  count = std::max<int64_t>(count, 0);
  if (value.is(Kind::kString)) {
    const std::string& text = value.as_string();
    if (!text.empty() && count > static_cast<int64_t>(kMaxStringBytes)) check_string_size(SIZE_MAX);
    check_string_size(text.size() * static_cast<size_t>(text.empty() ? 0 : count));
    std::string out;
    if (text.empty()) return Value(std::move(out));
    spend(count / 2);
    spend_copy(text.size() * static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) out += text;
    return Value(std::move(out));
  }
  const Values& items = value.as_sequence().items;
  Values out;
  if (!items.empty() && count > kMaxWeight / static_cast<int64_t>(items.size()))
    fail("a list would be too long");
  if (!items.empty()) spend(count * (1 + static_cast<int64_t>(items.size())));
  for (int64_t i = 0; i < count && !items.empty(); ++i) out.insert(out.end(), items.begin(), items.end());
  return Value::sequence(value.kind(), std::move(out));
}

bool is_repeatable(const Value& value) {
  return value.is(Kind::kString) || value.is(Kind::kList) || value.is(Kind::kTuple);
}

}  // namespace

void require_defined(const Value& value) {
  if (!value.is_defined()) fail(value.why_undefined());
}

const std::string& require_string(const Value& value, std::string_view user) {
  require_defined(value);
  if (!value.is(Kind::kString)) fail(str(user, " needs a str, got '", value.type_name(), "'"));
  return value.as_string();
}

int64_t require_integer(const Value& value, std::string_view user) {
  require_defined(value);
  if (!value.is_integer()) fail(str(user, " needs an int, got '", value.type_name(), "'"));
  return value.as_int();
}

Value apply_operator(std::string_view op, const Value& left, const Value& right) {
  require_defined(left);
  require_defined(right);
  if (left.is_number() && right.is_number()) return arithmetic(op, left, right);
  if (op == "+" && left.kind() == right.kind()) {
    if (left.is(Kind::kString)) {
      check_string_size(left.as_string().size() + right.as_string().size());
      spend_copy(left.as_string().size() + right.as_string().size());
      return Value(left.as_string() + right.as_string());
    }
    if (is_repeatable(left)) {
      return Value::sequence(left.kind(), joined(left.as_sequence().items, right.as_sequence().items));
    }
  }
  if (op == "*" && is_repeatable(left) && right.is_integer()) return repeated(left, right.as_int());
  if (op == "*" && is_repeatable(right) && left.is_integer()) return repeated(right, left.as_int());
  if (op == "%" && left.is(Kind::kString)) fail("formatting a string with '%' is not supported");
  fail_types(op, left, right);
}

Value negate(const Value& value) {
  require_defined(value);
  if (value.is(Kind::kFloat)) return Value(-value.as_double());
  if (!value.is_integer()) fail(str("bad operand type for unary -: '", value.type_name(), "'"));
  return apply_operator("-", Value(int64_t{0}), value);
}

bool is_contained(const Value& item, const Value& container) {
  switch (container.kind()) {
    case Kind::kString:
      return find_text(container.as_string(), require_string(item, "'in <string>'")) != std::string::npos;
    case Kind::kDict: return container.as_dict().find(item) != nullptr;
    default: {
      const Values items = iterate(container);
      return std::any_of(items.begin(), items.end(), [&](const Value& other) { return equals(item, other); });
    }
  }
}

bool apply_comparison(std::string_view op, const Value& left, const Value& right) {
  if (op == "==") return equals(left, right);
  if (op == "!=") return !equals(left, right);
  if (op == "in") return is_contained(left, right);
  if (op == "not in") return !is_contained(left, right);
  const bool has_nan = (left.is(Kind::kFloat) && std::isnan(left.as_double())) ||
                       (right.is(Kind::kFloat) && std::isnan(right.as_double()));
  const int order = compare(left, right);
  if (has_nan) return false;
  if (op == "<") return order < 0;
  if (op == "<=") return order <= 0;
  if (op == ">") return order > 0;
  return order >= 0;
}

Value get_slice(const Value& value, const Value* start, const Value* end, const Value* step) {
  require_defined(value);
  const bool is_text = value.is(Kind::kString);
  const bool sliceable = value.is(Kind::kList) || value.is(Kind::kTuple) || value.is(Kind::kRange);
  if (!is_text && !sliceable) fail(str("'", value.type_name(), "' object cannot be sliced"));
  const auto bound = [](const Value* part, int64_t absent) {
    return !part || part->is(Kind::kNone) ? absent : require_integer(*part, "a slice");
  };
  const int64_t size =
      static_cast<int64_t>(is_text ? count_characters(value.as_string()) : value.as_sequence().items.size());
  const int64_t stride = bound(step, 1);
  if (stride == 0) fail("slice step cannot be zero");
  const int64_t lowest = stride > 0 ? 0 : -1, highest = stride > 0 ? size : size - 1;
  // An explicit -1 means the last item; a bound left out may lie before the first.
  const auto place = [&](const Value* part, int64_t absent) {
    if (!part || part->is(Kind::kNone)) return absent;
    const int64_t at = bound(part, 0);
    return at < -size ? lowest : std::clamp(at < 0 ? at + size : at, lowest, highest);
  };
  const int64_t from = place(start, stride > 0 ? lowest : highest);
  const int64_t to = place(end, stride > 0 ? highest : lowest);
  if (is_text && stride == 1)
    return Value(slice_characters(value.as_string(), static_cast<size_t>(from), static_cast<size_t>(to)));
  const std::vector<std::string_view> characters =
      is_text ? split_characters(value.as_string()) : std::vector<std::string_view>();
  if (!is_text) spend(size);
  Values items;
  std::string text;
  for (int64_t i = from; stride > 0 ? i < to : i > to;) {
    const auto at = static_cast<size_t>(i);
    if (is_text) {
      text += characters[at];
    } else {
      items.push_back(value.as_sequence().items[at]);
    }
    if (__builtin_add_overflow(i, stride, &i)) break;
  }
  if (is_text) return Value(std::move(text));
  return Value::sequence(value.kind(), std::move(items));  // a slice of a range cannot be printed
}

}  // namespace quire::chat
