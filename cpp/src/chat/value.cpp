#include "chat/value.h"

#include <algorithm>
#include <cmath>

#include "chat/budget.h"
#include "chat/python_strings.h"
#include "quire/error.h"
#include "util/str.h"

namespace quire::chat {
namespace {

using Kind = Value::Kind;

int checked_depth(int depth) {
  if (depth > kMaxDepth) {
    fail(str("values are nested more than ", kMaxDepth, " deep"));
  }
  return depth;
}

int64_t checked_weight(int64_t weight) {
  if (weight > kMaxWeight) fail(str("a value holds more than ", kMaxWeight, " others"));
  return weight;
}

// The whole number that a float is, if it is one.
std::optional<int64_t> whole_number(double value) {
  if (!(std::abs(value) < 9.0e18) || value != std::floor(value)) return std::nullopt;
  return static_cast<int64_t>(value);
}

int compare_items(const Values& a, const Values& b) {
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    if (!equals(a[i], b[i])) return compare(a[i], b[i]);
  }
  return a.size() < b.size() ? -1 : a.size() > b.size();
}

// Every name that a template looks up comes this way, so not by a stream.
void append_hash_part(char kind, int64_t number, char end, std::string& out) {
  out += kind;
  out += std::to_string(number);
  out += end;
}

// What tells the members of a tuple apart must say where it ends.
void append_hash_key(const Value& key, std::string& out) {
  spend(4);
  switch (key.kind()) {
    case Kind::kString:
      spend_copy(key.as_string().size());
      append_hash_part('s', static_cast<int64_t>(key.as_string().size()), ':', out);
      out += key.as_string();
      return;
    case Kind::kNone: out += '-'; return;
    case Kind::kUndefined: out += '?'; return;
    case Kind::kBool:
    case Kind::kInt: append_hash_part('n', key.as_int(), ';', out); return;
    case Kind::kFloat: {
      const auto whole = whole_number(key.as_double());
      if (whole) return append_hash_part('n', *whole, ';', out);
      out += str("f", std::hexfloat, key.as_double(), ";");
      return;
    }
    case Kind::kTuple:
    case Kind::kRange:
      append_hash_part(key.is(Kind::kTuple) ? '(' : 'r', static_cast<int64_t>(key.as_sequence().items.size()),
                       ':', out);
      for (const Value& item : key.as_sequence().items) append_hash_key(item, out);
      return;
    default: fail(str("unhashable type: '", key.type_name(), "'"));
  }
}

}  // namespace

void spend_values(size_t count) {
  constexpr int64_t kBytes = 128;  // the value, and what it refers to
  spend(static_cast<int64_t>(count) * 4);
  spend_bytes(static_cast<int64_t>(count) * kBytes);
}

Value::Value(std::string value)
    : kind_(Kind::kString), data_(std::make_shared<const std::string>(std::move(value))) {}

Value Value::undefined(std::string why) {
  Value value(std::move(why));
  value.kind_ = Kind::kUndefined;
  return value;
}

Value Value::sequence(Kind kind, Values items, std::string name) {
  int depth = 1;
  int64_t weight = 1;
  for (const Value& item : items) {
    depth = std::max(depth, item.depth() + 1);
    weight = checked_weight(weight + item.weight());
  }
  Value value(kind);
  value.data_ = std::make_shared<Sequence>(
      Sequence{std::move(items), std::move(name), /*next=*/0, checked_depth(depth), weight});
  return value;
}

Value Value::dict(Dict dict) {
  Value value(Kind::kDict);
  value.data_ = std::make_shared<const Dict>(std::move(dict));
  return value;
}

Value Value::function(Function function) {
  checked_depth(function.self.depth() + 1);
  Value value(Kind::kFunction);
  value.data_ = std::make_shared<const Function>(std::move(function));
  return value;
}

Value Value::loop(std::shared_ptr<Loop> loop) {
  Value value(Kind::kLoop);
  value.data_ = std::move(loop);
  return value;
}

Value Value::name_space(Namespace* name_space) {
  Value value(Kind::kNamespace);
  value.data_ = name_space;
  return value;
}

std::string Value::type_name() const {
  switch (kind_) {
    case Kind::kUndefined: return "Undefined";
    case Kind::kNone: return "NoneType";
    case Kind::kBool: return "bool";
    case Kind::kInt: return "int";
    case Kind::kFloat: return "float";
    case Kind::kString: return "str";
    case Kind::kList: return "list";
    case Kind::kTuple: return "tuple";
    case Kind::kRange: return "range";
    case Kind::kView: return as_sequence().name;
    case Kind::kIterator: return "generator";
    case Kind::kDict: return "dict";
    case Kind::kNamespace: return "Namespace";
    case Kind::kLoop: return "LoopContext";
    case Kind::kFunction: return as_function().kind == Function::Kind::kMacro ? "Macro" : "function";
  }
  return "";
}

bool Value::is_same_object(const Value& other) const {
  if (kind_ != other.kind_) return false;
  switch (kind_) {
    case Kind::kNone: return true;
    case Kind::kBool:
    case Kind::kInt:
    case Kind::kFloat:
    case Kind::kString: return equals(*this, other);
    default: return data_ == other.data_;
  }
}

int Value::depth() const {
  if (is_sequence()) return as_sequence().depth;
  if (is(Kind::kDict)) return as_dict().depth;
  if (is(Kind::kFunction)) return as_function().self.depth() + 1;
  return 0;
}

int64_t Value::weight() const {
  if (is_sequence()) return as_sequence().weight;
  if (is(Kind::kDict)) return as_dict().weight;
  if (is(Kind::kFunction)) return as_function().self.weight() + 1;
  if (is(Kind::kString)) return 1 + static_cast<int64_t>(as_string().size() / 32);
  return 1;
}

void Dict::set(const Value& key, Value value) {
  weight = checked_weight(weight + key.weight() + value.weight());
  depth = checked_depth(std::max({depth, key.depth() + 1, value.depth() + 1}));
  const auto [entry, is_new] = index.try_emplace(hash_key(key), items.size());
  if (is_new) {
    items.emplace_back(key, std::move(value));
  } else {
    items[entry->second].second = std::move(value);
  }
}

const Value* Dict::find(const Value& key) const {
  const auto entry = index.find(hash_key(key));
  return entry != index.end() ? &items[entry->second].second : nullptr;
}

const Value* Dict::find(std::string_view key) const { return find(Value(key)); }

void Namespace::set(std::string_view name, Value value) {
  spend(static_cast<int64_t>(attributes.size() / 8));
  for (auto& [known, attribute] : attributes) {
    if (known == name) {
      attribute = std::move(value);
      return;
    }
  }
  if (attributes.size() == kMaxAttributes) {
    fail(str("a namespace has at most ", kMaxAttributes, " attributes"));
  }
  attributes.emplace_back(name, std::move(value));
}

const Value* Namespace::find(std::string_view name) const {
  spend(static_cast<int64_t>(attributes.size() / 8));
  for (const auto& [known, attribute] : attributes) {
    if (known == name) return &attribute;
  }
  return nullptr;
}

std::string hash_key(const Value& key) {
  std::string out;
  append_hash_key(key, out);
  return out;
}

bool is_true(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kNone: return false;
    case Kind::kBool: return value.as_bool();
    case Kind::kInt: return value.as_int() != 0;
    case Kind::kFloat: return value.as_double() != 0;
    case Kind::kString: return !value.as_string().empty();
    case Kind::kDict: return !value.as_dict().items.empty();
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kRange:
    case Kind::kView: return !value.as_sequence().items.empty();
    default: return true;
  }
}

void fail(const std::string& message) { throw InvalidArgument(std::string(kComplaintPrefix) + message); }

bool equals(const Value& a, const Value& b) {
  spend(1);
  if (a.is_number() && b.is_number()) {
    if (a.is_integer() && b.is_integer()) return a.as_int() == b.as_int();
    return a.as_double() == b.as_double();
  }
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kUndefined:
    case Kind::kNone: return true;
    case Kind::kString:
      if (a.as_string().size() != b.as_string().size()) return false;
      spend_copy(a.as_string().size());
      return a.as_string() == b.as_string();
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kRange: {
      const Values &x = a.as_sequence().items, &y = b.as_sequence().items;
      return std::equal(x.begin(), x.end(), y.begin(), y.end(), equals);
    }
    case Kind::kDict: {
      const Dict &x = a.as_dict(), &y = b.as_dict();
      return x.items.size() == y.items.size() &&
             std::all_of(x.items.begin(), x.items.end(), [&](const auto& item) {
               const Value* other = y.find(item.first);
               return other && equals(item.second, *other);
             });
    }
    default: return a.is_same_object(b);
  }
}

int compare(const Value& a, const Value& b) {
  spend(1);
  if (a.is_number() && b.is_number()) {
    if (a.is_integer() && b.is_integer()) return a.as_int() < b.as_int() ? -1 : a.as_int() > b.as_int();
    return a.as_double() < b.as_double() ? -1 : a.as_double() > b.as_double();
  }
  if (a.is(Kind::kString) && b.is(Kind::kString)) {
    spend_copy(std::min(a.as_string().size(), b.as_string().size()));
    return a.as_string().compare(b.as_string());
  }
  if (a.kind() == b.kind() && (a.is(Kind::kList) || a.is(Kind::kTuple))) {
    return compare_items(a.as_sequence().items, b.as_sequence().items);
  }
  for (const Value* value : {&a, &b}) {
    if (!value->is_defined()) fail(str("", value->why_undefined()));
  }
  fail(str("'", a.type_name(), "' and '", b.type_name(), "' have no order"));
}

Values iterate(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined: return {};
    case Kind::kString: {
      spend_values(count_characters(value.as_string()));
      Values characters;
      for (std::string_view c : split_characters(value.as_string())) characters.emplace_back(c);
      return characters;
    }
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kRange:
    case Kind::kView:
      spend(static_cast<int64_t>(value.as_sequence().items.size()));
      return value.as_sequence().items;
    case Kind::kIterator: {
      Sequence& iterator = value.as_iterator();
      spend(static_cast<int64_t>(iterator.items.size() - iterator.next));
      Values rest(iterator.items.begin() + static_cast<ptrdiff_t>(iterator.next), iterator.items.end());
      iterator.next = iterator.items.size();
      return rest;
    }
    case Kind::kDict: {
      spend(static_cast<int64_t>(value.as_dict().items.size()));
      Values keys;
      for (const auto& [key, item] : value.as_dict().items) keys.push_back(key);
      return keys;
    }
    default: fail(str("'", value.type_name(), "' object is not iterable"));
  }
}

std::optional<int64_t> length(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined: return 0;
    case Kind::kString: return static_cast<int64_t>(count_characters(value.as_string()));
    case Kind::kDict: return static_cast<int64_t>(value.as_dict().items.size());
    case Kind::kLoop: return static_cast<int64_t>(value.as_loop().items.size());
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kRange:
    case Kind::kView: return static_cast<int64_t>(value.as_sequence().items.size());
    default: return std::nullopt;
  }
}

}  // namespace quire::chat
