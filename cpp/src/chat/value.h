// What the expressions of a template evaluate to: Python's values, as far as templates meet them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace quire::chat {

class Value;
using Values = std::vector<Value>;
struct Dict;
struct Function;
struct Loop;
struct Namespace;
struct Sequence;

// A container holds containers at most this deep, so that walking a value needs little stack.
inline constexpr int kMaxDepth = 150;
// The most values in a container, each counted as often as it is met: lists can share their parts.
inline constexpr int64_t kMaxWeight = int64_t{1} << 22;

// Cheap to copy. Nothing it refers to changes, but for namespaces, loops, and how far an iterator has come.
class Value {
 public:
  enum class Kind : uint8_t {
    kUndefined,
    kNone,
    kBool,
    kInt,
    kFloat,
    kString,  //
    kList,
    kTuple,
    kRange,
    kView,
    kIterator,  // as_sequence() is valid for these
    kDict,
    kNamespace,
    kLoop,
    kFunction,
  };

  Value() : Value(Kind::kNone) {}
  explicit Value(bool value) : kind_(Kind::kBool), data_(value) {}
  explicit Value(int64_t value) : kind_(Kind::kInt), data_(value) {}
  explicit Value(double value) : kind_(Kind::kFloat), data_(value) {}
  explicit Value(std::string value);
  explicit Value(std::string_view value) : Value(std::string(value)) {}
  explicit Value(const char* value) = delete;  // it would become a bool

  // `why` is the complaint of whoever needs it to be defined: "'x' is undefined".
  static Value undefined(std::string why);
  // These throw InvalidArgument when the container would be nested too deeply or hold too much.
  static Value list(Values items) { return sequence(Kind::kList, std::move(items)); }
  static Value tuple(Values items) { return sequence(Kind::kTuple, std::move(items)); }
  // Can be walked through once, as Python's generators.
  static Value iterator(Values items) { return sequence(Kind::kIterator, std::move(items)); }
  // `name` is for printing: "dict_keys", or the arguments of a range.
  static Value sequence(Kind kind, Values items, std::string name = {});
  static Value dict(Dict dict);
  static Value function(Function function);
  static Value loop(std::shared_ptr<Loop> loop);
  // Owned by the interpreter, which outlives the value.
  static Value name_space(Namespace* name_space);

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  bool is_defined() const { return kind_ != Kind::kUndefined; }
  bool is_number() const { return kind_ == Kind::kBool || kind_ == Kind::kInt || kind_ == Kind::kFloat; }
  bool is_integer() const { return kind_ == Kind::kBool || kind_ == Kind::kInt; }  // a bool is an int
  bool is_sequence() const { return kind_ >= Kind::kList && kind_ <= Kind::kIterator; }

  // Each requires the matching kind.
  bool as_bool() const { return std::get<bool>(data_); }
  int64_t as_int() const { return is(Kind::kBool) ? int64_t{as_bool()} : std::get<int64_t>(data_); }
  double as_double() const {
    return is(Kind::kFloat) ? std::get<double>(data_) : static_cast<double>(as_int());
  }
  const std::string& as_string() const { return *std::get<std::shared_ptr<const std::string>>(data_); }
  const std::string& why_undefined() const { return as_string_data(); }
  const Sequence& as_sequence() const { return *std::get<std::shared_ptr<Sequence>>(data_); }
  Sequence& as_iterator() const { return *std::get<std::shared_ptr<Sequence>>(data_); }
  const Dict& as_dict() const { return *std::get<std::shared_ptr<const Dict>>(data_); }
  const Function& as_function() const { return *std::get<std::shared_ptr<const Function>>(data_); }
  Loop& as_loop() const { return *std::get<std::shared_ptr<Loop>>(data_); }
  Namespace& as_namespace() const { return *std::get<Namespace*>(data_); }

  // Python's name of the type: "str", "list".
  std::string type_name() const;
  // Whether it is the very same object, or the same None, True or False: Python's `is`.
  bool is_same_object(const Value& other) const;
  int depth() const;
  // About how many steps it takes to walk all of it.
  int64_t weight() const;

 private:
  explicit Value(Kind kind) : kind_(kind) {}
  const std::string& as_string_data() const { return *std::get<std::shared_ptr<const std::string>>(data_); }

  Kind kind_;
  std::variant<std::monostate, bool, int64_t, double, std::shared_ptr<const std::string>,
               std::shared_ptr<Sequence>, std::shared_ptr<const Dict>, std::shared_ptr<const Function>,
               std::shared_ptr<Loop>, Namespace*>
      data_;
};

struct Sequence {
  Values items;
  std::string name;
  size_t next = 0;  // iterators: the first item not handed out yet
  int depth = 1;
  int64_t weight = 1;
};

// In order of insertion, as in Python.
struct Dict {
  std::vector<std::pair<Value, Value>> items;
  // By hash_key; ordered, since keys can be chosen so that hashes collide.
  std::map<std::string, size_t> index;
  int depth = 1;
  int64_t weight = 1;

  // Throws InvalidArgument for a key that Python cannot hash.
  void set(const Value& key, Value value);
  const Value* find(const Value& key) const;  // null when there is none
  const Value* find(std::string_view key) const;
};

struct MacroDefinition;
struct Scope;

// Something that can be called.
struct Function {
  enum class Kind { kGlobal, kMethod, kMacro };
  Kind kind = Kind::kGlobal;
  std::string name;
  Value self;                              // methods
  const MacroDefinition* macro = nullptr;  // macros: what to run ..
  std::weak_ptr<Scope> scope;              // .. and the scope in which it was defined, while there is one
};

// The variable `loop`.
struct Loop {
  Values items;
  size_t index0 = 0;
  std::optional<Value> last_changed;  // the arguments of loop.changed() last time
};

// Has few attributes, so they are searched one by one.
struct Namespace {
  static constexpr size_t kMaxAttributes = 1000;
  std::vector<std::pair<std::string, Value>> attributes;

  void set(std::string_view name, Value value);
  const Value* find(std::string_view name) const;
};

// Spends for so many values with memory of their own (see budget.h), before they are made.
void spend_values(size_t count);

// Equal keys, and only those, have equal hash keys: 1, 1.0 and True are one key.
std::string hash_key(const Value& key);

// What every complaint about a template begins with.
inline constexpr std::string_view kComplaintPrefix = "chat_template: ";
// Throws InvalidArgument: the prefix and the message.
[[noreturn]] void fail(const std::string& message);

bool is_true(const Value& value);
bool equals(const Value& a, const Value& b);
// Negative, 0 or positive; throws InvalidArgument for values that Python does not order.
int compare(const Value& a, const Value& b);
// The items one after the other, as a for loop meets them; what is left of an iterator, which is then empty.
// Throws InvalidArgument for values that cannot be walked through.
Values iterate(const Value& value);
// len(); nothing for values that have none.
std::optional<int64_t> length(const Value& value);

}  // namespace quire::chat
