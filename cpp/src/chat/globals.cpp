#include "chat/globals.h"

#include <algorithm>
#include <ctime>

#include "chat/budget.h"
#include "chat/python_strings.h"
#include "util/str.h"

namespace quire::chat {
namespace {

constexpr std::string_view kGlobals[] = {"dict", "namespace", "raise_exception", "range", "strftime_now"};
constexpr int64_t kMaxRange = 100'000;  // as in Jinja's sandbox
constexpr size_t kMaxTimeBytes = 4096;

Value make_range(const Arguments& arguments) {
  const Values& values = arguments.positional;
  if (!arguments.named.empty() || values.empty() || values.size() > 3)
    fail("range takes 1 to 3 positional arguments");
  const auto at = [&](size_t i) { return require_integer(values[i], "range"); };
  const int64_t start = values.size() > 1 ? at(0) : 0;
  const int64_t stop = values.size() > 1 ? at(1) : at(0);
  const int64_t step = values.size() > 2 ? at(2) : 1;
  if (step == 0) fail("range() arg 3 must not be zero");
  Values items;
  for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
    if (items.size() == kMaxRange) fail(str("a range may have at most ", kMaxRange, " items"));
    items.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  std::string name = str(start, ", ", stop);
  if (step != 1) name += str(", ", step);
  return Value::sequence(Value::Kind::kRange, std::move(items), std::move(name));
}

Value format_time(const Arguments& arguments) {
  const BoundArguments bound("strftime_now", arguments, {"format"});
  std::string format = require_string(bound.required(0), "strftime_now");
  if (format.empty()) return Value(std::string());
  if (format.size() > kMaxTimeBytes / 16) fail("strftime_now needs a shorter format");
  spend(100 + static_cast<int64_t>(format.size()) * 10);
  // Python knows no time zone here, and microseconds are its own.
  timespec now{};
  std::timespec_get(&now, TIME_UTC);
  std::string microseconds = std::to_string(1'000'000 + now.tv_nsec / 1000).substr(1);
  format = replace(replace(replace(format, "%f", microseconds, -1), "%z", "", -1), "%Z", "", -1);
  std::tm local{};
  localtime_r(&now.tv_sec, &local);
  char buffer[kMaxTimeBytes];
  return Value(std::string(buffer, std::strftime(buffer, sizeof buffer, format.c_str(), &local)));
}

}  // namespace

bool is_global(std::string_view name) {
  return std::find(std::begin(kGlobals), std::end(kGlobals), name) != std::end(kGlobals);
}

Value apply_global(std::string_view name, const Arguments& arguments) {
  if (name == "range") return make_range(arguments);
  if (name == "dict") return make_dict(arguments);
  return format_time(arguments);
}

Value make_dict(const Arguments& arguments) {
  Dict dict;
  if (arguments.positional.size() > 1) fail("dict takes at most one positional argument");
  if (!arguments.positional.empty()) {
    const Value& source = arguments.positional[0];
    if (source.is(Value::Kind::kDict)) {
      spend_values(source.as_dict().items.size());
      dict = source.as_dict();
    } else {
      for (const Value& item : iterate(source)) {
        const Values pair = iterate(item);
        if (pair.size() != 2) fail("dict needs pairs of keys and values");
        dict.set(pair[0], pair[1]);
      }
    }
  }
  for (const auto& [name, value] : arguments.named) dict.set(Value(name), value);
  return Value::dict(std::move(dict));
}

void check_namespace_name(std::string_view name) {
  if (name.starts_with('_'))
    fail(str("a namespace cannot hold the underscore-prefixed attribute '", name, "'"));
}

}  // namespace quire::chat
