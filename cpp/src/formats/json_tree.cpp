#include "formats/json_tree.h"

#include <algorithm>
#include <charconv>

#include "formats/json.h"
#include "quire/error.h"
#include "util/str.h"

namespace quire {
namespace {

class TreeBuilder final : public JsonHandler {
 public:
  TreeBuilder(JsonTree& root, const std::string& where) : root_(root), where_(where) {}

  void on_null() override { place().value = nullptr; }
  void on_boolean(bool value) override { place().value = value; }
  void on_integer(int64_t value) override { place().value = value; }
  void on_float(double value) override { place().value = value; }
  void on_string(std::string value) override { place().value = std::move(value); }
  void on_key(std::string key) override { open_.back()->object()->emplace_back(std::move(key), JsonTree{}); }
  void on_object_start() override { open(JsonTree::Object()); }
  void on_object_end() override {
    check_names(*open_.back()->object());
    open_.pop_back();
  }
  void on_array_start() override { open(JsonTree::Array()); }
  void on_array_end() override { open_.pop_back(); }

 private:
  // Where the value at hand goes. What is open does not move: only its last member grows.
  JsonTree& place() {
    if (open_.empty()) return root_;
    JsonTree& parent = *open_.back();
    if (JsonTree::Array* array = parent.array()) return array->emplace_back();
    return parent.object()->back().second;
  }
  template <typename Container>
  void open(Container&& container) {
    JsonTree& tree = place();
    tree.value = std::forward<Container>(container);
    open_.push_back(&tree);
  }
  void check_names(const JsonTree::Object& object) {
    names_.clear();
    for (const auto& [name, value] : object) names_.push_back(name);
    std::sort(names_.begin(), names_.end());
    const auto twice = std::adjacent_find(names_.begin(), names_.end());
    if (twice != names_.end())
      throw InvalidArgument(
          str(where_, ": an object has the member '", std::string(twice->substr(0, 100)), "' twice"));
  }

  JsonTree& root_;
  const std::string& where_;
  std::vector<JsonTree*> open_;
  std::vector<std::string_view> names_;
};

void write_string(const std::string& text, std::string& out) {
  out += '"';
  for (const char c : text) {
    switch (c) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\b': out += "\\b"; break;
      case '\f': out += "\\f"; break;
      case '\n': out += "\\n"; break;
      case '\r': out += "\\r"; break;
      case '\t': out += "\\t"; break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          constexpr const char* kDigits = "0123456789abcdef";
          out += "\\u00";
          out += kDigits[c >> 4];
          out += kDigits[c & 0xf];
        } else {
          out += c;
        }
    }
  }
  out += '"';
}

void write(const JsonTree& tree, std::string& out) {
  if (const auto* boolean = std::get_if<bool>(&tree.value)) {
    out += *boolean ? "true" : "false";
  } else if (const auto* integer = std::get_if<int64_t>(&tree.value)) {
    out += std::to_string(*integer);
  } else if (const auto* real = std::get_if<double>(&tree.value)) {
    char digits[32];
    const auto end = std::to_chars(digits, digits + sizeof digits, *real).ptr;
    const std::string_view written(digits, static_cast<size_t>(end - digits));
    out += written;
    if (written.find_first_of(".e") == std::string_view::npos) out += ".0";  // it stays no integer
  } else if (const std::string* text = tree.string()) {
    write_string(*text, out);
  } else if (const JsonTree::Array* array = tree.array()) {
    out += '[';
    for (const JsonTree& element : *array) {
      if (&element != array->data()) out += ',';
      write(element, out);
    }
    out += ']';
  } else if (const JsonTree::Object* object = tree.object()) {
    out += '{';
    for (const auto& member : *object) {
      if (&member != object->data()) out += ',';
      write_string(member.first, out);
      out += ':';
      write(member.second, out);
    }
    out += '}';
  } else {
    out += "null";
  }
}

}  // namespace

double JsonTree::number() const {
  const auto* integer = std::get_if<int64_t>(&value);
  return integer != nullptr ? static_cast<double>(*integer) : std::get<double>(value);
}

const JsonTree* JsonTree::find(std::string_view key) const {
  if (const Object* members = object()) {
    for (const auto& [name, member] : *members)
      if (name == key) return &member;
  }
  return nullptr;
}

bool JsonTree::same_as(const JsonTree& other) const {
  if (is_number() && other.is_number()) return number() == other.number();
  if (value.index() != other.value.index()) return false;
  if (const Array* elements = array()) {
    return std::equal(elements->begin(), elements->end(), other.array()->begin(), other.array()->end(),
                      [](const JsonTree& a, const JsonTree& b) { return a.same_as(b); });
  }
  if (const Object* members = object()) {
    return members->size() == other.object()->size() &&
           std::all_of(members->begin(), members->end(), [&](const auto& member) {
             const JsonTree* found = other.find(member.first);
             return found != nullptr && member.second.same_as(*found);
           });
  }
  if (const std::string* text = string()) return *text == *other.string();
  if (const bool* boolean = std::get_if<bool>(&value)) return *boolean == std::get<bool>(other.value);
  return true;
}

std::string JsonTree::text() const {
  std::string out;
  write(*this, out);
  return out;
}

JsonTree parse_json_tree(std::string_view text, const std::string& where) {
  JsonTree tree;
  TreeBuilder builder(tree, where);
  parse_json(text, where, builder);
  return tree;
}

}  // namespace quire
