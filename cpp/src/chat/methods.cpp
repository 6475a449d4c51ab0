#include <algorithm>
#include <array>

#include "chat/budget.h"
#include "chat/filters.h"
#include "chat/python_strings.h"
#include "util/str.h"

namespace quire::chat {
namespace {

using Kind = Value::Kind;

// Every method of Python's types, so that one we do not have is refused and is no undefined value.
constexpr std::string_view kStringMethods[] = {
    "capitalize", "casefold",     "center",       "count",   "encode",     "endswith",    "expandtabs",
    "find",       "format",       "format_map",   "index",   "isalnum",    "isalpha",     "isascii",
    "isdecimal",  "isdigit",      "isidentifier", "islower", "isnumeric",  "isprintable", "isspace",
    "istitle",    "isupper",      "join",         "ljust",   "lower",      "lstrip",      "maketrans",
    "partition",  "removeprefix", "removesuffix", "replace", "rfind",      "rindex",      "rjust",
    "rpartition", "rsplit",       "rstrip",       "split",   "splitlines", "startswith",  "strip",
    "swapcase",   "title",        "translate",    "upper",   "zfill"};
constexpr std::string_view kDictMethods[] = {"copy", "fromkeys", "get", "items", "keys", "values"};
constexpr std::string_view kDictChanges[] = {"clear", "pop", "popitem", "setdefault", "update"};
constexpr std::string_view kListMethods[] = {"copy", "count", "index"};
constexpr std::string_view kListChanges[] = {"append", "clear",  "extend",  "insert",
                                             "pop",    "remove", "reverse", "sort"};
constexpr std::string_view kTupleMethods[] = {"count", "index"};
constexpr std::string_view kLoopMethods[] = {"changed", "cycle"};

template <size_t N>
bool has(const std::string_view (&names)[N], std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

bool has_method(const Value& value, std::string_view name) {
  switch (value.kind()) {
    case Kind::kString: return has(kStringMethods, name);
    case Kind::kDict: return has(kDictMethods, name);
    case Kind::kList: return has(kListMethods, name);
    case Kind::kTuple:
    case Kind::kRange: return has(kTupleMethods, name);
    case Kind::kLoop: return has(kLoopMethods, name);
    default: return false;
  }
}

// Methods that change their object are not for templates.
bool is_unsafe(const Value& value, std::string_view name) {
  return name.starts_with("__") || (value.is(Kind::kDict) && has(kDictChanges, name)) ||
         (value.is(Kind::kList) && has(kListChanges, name));
}

Value loop_attribute(const Loop& loop, std::string_view name) {
  const auto index0 = static_cast<int64_t>(loop.index0), size = static_cast<int64_t>(loop.items.size());
  if (name == "index") return Value(index0 + 1);
  if (name == "index0") return Value(index0);
  if (name == "revindex") return Value(size - index0);
  if (name == "revindex0") return Value(size - index0 - 1);
  if (name == "first") return Value(index0 == 0);
  if (name == "last") return Value(index0 + 1 == size);
  if (name == "length") return Value(size);
  if (name == "depth") return Value(int64_t{1});
  if (name == "depth0") return Value(int64_t{0});
  if (name == "previtem") {
    return index0 > 0 ? loop.items[loop.index0 - 1] : Value::undefined("there is no previous item");
  }
  if (name == "nextitem") {
    return index0 + 1 < size ? loop.items[loop.index0 + 1] : Value::undefined("there is no next item");
  }
  return Value::undefined(str("'LoopContext' object has no attribute '", name, "'"));
}

// An attribute that is no key: a method or, for some types, a value. Null when there is none.
std::optional<Value> own_attribute(const Value& value, const std::string& name) {
  if (is_unsafe(value, name)) {
    return Value::undefined(
        str("access to attribute '", name, "' of '", value.type_name(), "' object is unsafe"));
  }
  if (has_method(value, name)) {
    return Value::function({.kind = Function::Kind::kMethod, .name = name, .self = value, .scope = {}});
  }
  if (value.is(Kind::kNamespace)) {
    if (const Value* found = value.as_namespace().find(name)) return *found;
  }
  if (value.is(Kind::kLoop)) return loop_attribute(value.as_loop(), name);
  if (value.is(Kind::kFunction)) fail(str("the attribute '", name, "' of a function is not supported"));
  return std::nullopt;
}

std::optional<Value> own_item(const Value& value, const Value& index) {
  if (value.is(Kind::kDict)) {
    // A key that cannot be hashed is in no dict.
    const bool hashable = !index.is(Kind::kList) && !index.is(Kind::kDict);
    const Value* found = hashable ? value.as_dict().find(index) : nullptr;
    return found ? std::optional(*found) : std::nullopt;
  }
  const bool indexable =
      value.is(Kind::kString) || value.is(Kind::kList) || value.is(Kind::kTuple) || value.is(Kind::kRange);
  if (!indexable || !index.is_integer()) return std::nullopt;
  const int64_t size = *length(value);
  const int64_t at = index.as_int() < 0 ? index.as_int() + size : index.as_int();
  if (at < 0 || at >= size) return std::nullopt;
  if (!value.is(Kind::kString)) return value.as_sequence().items[static_cast<size_t>(at)];
  return Value(slice_characters(value.as_string(), static_cast<size_t>(at), static_cast<size_t>(at) + 1));
}

// Enough of a key to know it by: undefined values may be many, and nobody counts what their complaints take.
constexpr size_t kMaxQuotedBytes = 100;

Value missing(const Value& value, const Value& index) {
  const std::string object = value.is(Kind::kNone) ? "None" : str("'", value.type_name(), " object'");
  if (index.is(Kind::kString))
    return Value::undefined(
        str(object, " has no attribute '", index.as_string().substr(0, kMaxQuotedBytes), "'"));
  return Value::undefined(str(object, " has no such element"));
}

// Strings of characters or of parts, as a list.
Value list_of(const std::vector<std::string_view>& parts) {
  Values items;
  items.reserve(parts.size());
  for (std::string_view part : parts) items.emplace_back(part);
  return Value::list(std::move(items));
}

Value tuple_of(std::initializer_list<std::string_view> parts) {
  Values items;
  for (std::string_view part : parts) items.emplace_back(part);
  return Value::tuple(std::move(items));
}

std::optional<std::string_view> optional_string(const BoundArguments& bound, size_t parameter,
                                                std::string_view user) {
  const Value* value = bound.find(parameter);
  if (!value || value->is(Kind::kNone)) return std::nullopt;
  return require_string(*value, user);
}

bool has_affix(std::string_view text, const Value& affix, std::string_view method) {
  const auto matches = [&](const Value& one) {
    const std::string& part = require_string(one, method);
    spend(1);
    spend_copy(std::min(part.size(), text.size()));
    return method == "startswith" ? text.starts_with(part) : text.ends_with(part);
  };
  if (!affix.is(Kind::kTuple)) return matches(affix);
  const Values& parts = affix.as_sequence().items;
  return std::any_of(parts.begin(), parts.end(), matches);
}

Value padded(std::string_view text, std::string_view method, const Arguments& arguments) {
  const BoundArguments bound(method, arguments, {"width", "fillchar"});
  const int64_t width = require_integer(bound.required(0), method);
  const std::string fill = method == "zfill" ? "0" : bound.string_or(1, " ");
  if (count_characters(fill) != 1) fail(str(method, " needs one fill character"));
  const int64_t missing = width - static_cast<int64_t>(count_characters(text));
  if (missing <= 0) return Value(text);
  check_string_size(static_cast<size_t>(std::min<int64_t>(missing, INT32_MAX)) * fill.size());
  int64_t left = missing;
  if (method == "ljust") left = 0;
  if (method == "center") left = missing / 2 + (missing & width & 1);
  spend(missing);
  std::string out;
  if (method == "zfill" && (text.starts_with('-') || text.starts_with('+'))) {
    out += text[0];
    text.remove_prefix(1);
  }
  for (int64_t i = 0; i < left; ++i) out += fill;
  out += text;
  for (int64_t i = left; i < missing; ++i) out += fill;
  return Value(std::move(out));
}

Value found_at(std::string_view text, std::string_view method, const Arguments& arguments) {
  const BoundArguments bound(method, arguments, {"sub"});
  const std::string& part = require_string(bound.required(0), method);
  const size_t at = method[0] == 'r' ? rfind_text(text, part) : find_text(text, part);
  if (at != text.npos) return Value(static_cast<int64_t>(count_characters(text.substr(0, at))));
  if (method.ends_with("index")) fail("substring not found");
  return Value(int64_t{-1});
}

Value partition(std::string_view text, std::string_view method, const Arguments& arguments) {
  const BoundArguments bound(method, arguments, {"sep"});
  const std::string& separator = require_string(bound.required(0), method);
  if (separator.empty()) fail("empty separator");
  const bool from_right = method[0] == 'r';
  const size_t at = from_right ? rfind_text(text, separator) : find_text(text, separator);
  if (at == text.npos) return from_right ? tuple_of({"", "", text}) : tuple_of({text, "", ""});
  return tuple_of({text.substr(0, at), separator, text.substr(at + separator.size())});
}

Value join_strings(const std::string& separator, const Arguments& arguments) {
  const BoundArguments bound("join", arguments, {"iterable"});
  std::string out;
  bool is_first = true;
  for (const Value& item : iterate(bound.required(0))) {
    if (!is_first) out += separator;
    is_first = false;
    spend_copy(separator.size());
    out += require_string(item, "join");
    check_string_size(out.size() + separator.size());
  }
  return Value(std::move(out));
}

Value string_method(const std::string& text, std::string_view name, const Arguments& arguments) {
  const auto no_arguments = [&] { BoundArguments(name, arguments, {}); };
  if (name == "strip" || name == "lstrip" || name == "rstrip") {
    const BoundArguments bound(name, arguments, {"chars"});
    const Side side = name[0] == 'l' ? Side::kLeft : name[0] == 'r' ? Side::kRight : Side::kBoth;
    return Value(strip(text, side, optional_string(bound, 0, name)));
  }
  if (name == "split" || name == "rsplit") {
    const BoundArguments bound(name, arguments, {"sep", "maxsplit"});
    return list_of(split(text, optional_string(bound, 0, name), bound.integer_or(1, -1), name[0] == 'r'));
  }
  if (name == "splitlines") {
    const BoundArguments bound(name, arguments, {"keepends"});
    return list_of(split_lines(text, bound.boolean_or(0, false)));
  }
  if (name == "startswith" || name == "endswith") {
    const BoundArguments bound(name, arguments, {"prefix"});
    return Value(has_affix(text, bound.required(0), name));
  }
  if (name == "replace") {
    const BoundArguments bound(name, arguments, {"old", "new", "count"});
    return Value(replace(text, require_string(bound.required(0), name),
                         require_string(bound.required(1), name), bound.integer_or(2, -1)));
  }
  if (name == "removeprefix" || name == "removesuffix") {
    const BoundArguments bound(name, arguments, {"affix"});
    const std::string& affix = require_string(bound.required(0), name);
    const std::string_view whole = text;
    if (name == "removeprefix") return Value(whole.substr(whole.starts_with(affix) ? affix.size() : 0));
    return Value(whole.substr(0, whole.size() - (whole.ends_with(affix) ? affix.size() : 0)));
  }
  if (name == "count") {
    const BoundArguments bound(name, arguments, {"sub"});
    return Value(static_cast<int64_t>(count_occurrences(text, require_string(bound.required(0), name))));
  }
  if (name == "find" || name == "rfind" || name == "index" || name == "rindex")
    return found_at(text, name, arguments);
  if (name == "partition" || name == "rpartition") return partition(text, name, arguments);
  if (name == "center" || name == "ljust" || name == "rjust" || name == "zfill")
    return padded(text, name, arguments);
  if (name == "join") return join_strings(text, arguments);
  if (name == "lower") return no_arguments(), Value(to_lower(text));
  if (name == "upper") return no_arguments(), Value(to_upper(text));
  if (name == "title") return no_arguments(), Value(to_title(text));
  if (name == "capitalize") return no_arguments(), Value(capitalize(text));
  if (const auto answer = ask_characters(name, text)) return no_arguments(), Value(*answer);
  fail(str("the string method '", name, "' is not supported"));
}

Value dict_method(const Value& self, std::string_view name, const Arguments& arguments) {
  const Dict& dict = self.as_dict();
  if (name == "get") {
    const BoundArguments bound(name, arguments, {"key", "default"});
    if (const Value* found = dict.find(bound.required(0))) return *found;
    return bound.find(1) ? *bound.find(1) : Value();
  }
  const BoundArguments none(name, arguments, {});
  Values items;
  if (name == "copy") return self;
  if (name == "fromkeys") fail("the dict method 'fromkeys' is not supported");
  spend_values(name == "items" ? dict.items.size() * 2 : dict.items.size() / 4);
  for (const auto& [key, value] : dict.items) {
    items.push_back(name == "keys" ? key : name == "values" ? value : Value::tuple({key, value}));
  }
  return Value::sequence(Kind::kView, std::move(items), str("dict_", name));
}

Value sequence_method(const Value& self, std::string_view name, const Arguments& arguments) {
  const Values& items = self.as_sequence().items;
  if (name == "copy") return BoundArguments(name, arguments, {}), self;
  const BoundArguments bound(name, arguments, {"value"});
  const auto matches = [&](const Value& item) { return equals(item, bound.required(0)); };
  if (name == "count") return Value(static_cast<int64_t>(std::count_if(items.begin(), items.end(), matches)));
  const auto found = std::find_if(items.begin(), items.end(), matches);
  if (found == items.end()) fail("the value is not in the list");
  return Value(static_cast<int64_t>(found - items.begin()));
}

Value loop_method(Loop& loop, std::string_view name, const Arguments& arguments) {
  const Values& values = arguments.positional;
  if (name == "cycle") {
    if (values.empty()) fail("no items for cycling given");
    return values[loop.index0 % values.size()];
  }
  Value now = Value::tuple(values);
  const bool changed = !loop.last_changed || !equals(*loop.last_changed, now);
  loop.last_changed = std::move(now);
  return Value(changed);
}

}  // namespace

Value get_attribute(const Value& value, const std::string& name) {
  require_defined(value);
  if (auto found = own_attribute(value, name)) return *found;
  const Value index(name);
  if (auto found = own_item(value, index)) return *found;
  return missing(value, index);
}

Value get_item(const Value& value, const Value& index) {
  require_defined(value);
  if (auto found = own_item(value, index)) return *found;
  if (index.is(Kind::kString)) {
    if (auto found = own_attribute(value, index.as_string())) return *found;
  }
  return missing(value, index);
}

Value call_method(const Value& self, std::string_view name, const Arguments& arguments) {
  switch (self.kind()) {
    case Kind::kString: return string_method(self.as_string(), name, arguments);
    case Kind::kDict: return dict_method(self, name, arguments);
    case Kind::kLoop: return loop_method(self.as_loop(), name, arguments);
    default: return sequence_method(self, name, arguments);
  }
}

}  // namespace quire::chat
