// A value in a body, with its place: complaints read "messages[0].content must be a string, got 5".
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/json.h"
#include "quire/error.h"
#include "util/str.h"

namespace quire {

// Borrows the value. Every complaint is an InvalidArgument.
class JsonPlace {
 public:
  JsonPlace(const OrderedJson& value, std::string place) : value_(&value), place_(std::move(place)) {}

  const OrderedJson& json() const { return *value_; }

  [[noreturn]] void fail(std::string_view what) const { throw InvalidArgument(str(place_, " ", what)); }
  // `expected`: "a string".
  [[noreturn]] void fail_type(std::string_view expected) const {
    // Shown as far as anybody reads, and never copied whole.
    const std::string shown = value_->is_structured() ? std::string(value_->type_name()) : value_->dump();
    fail(str("must be ", expected, ", got ", shown.substr(0, 100)));
  }

  // The member, unless it is absent or null.
  std::optional<JsonPlace> find(const char* name) const {
    if (!value_->is_object()) fail_type("an object");
    const auto found = value_->find(name);
    if (found == value_->end() || found->is_null()) return std::nullopt;
    return JsonPlace(*found, str(place_, ".", name));
  }
  JsonPlace at(const char* name) const {
    if (auto found = find(name)) return *found;
    throw InvalidArgument(str(place_, ".", name, " is missing"));
  }
  std::vector<JsonPlace> elements() const {
    if (!value_->is_array()) fail_type("an array");
    std::vector<JsonPlace> all;
    for (size_t i = 0; i < value_->size(); ++i) all.emplace_back((*value_)[i], str(place_, "[", i, "]"));
    return all;
  }
  const std::string& string() const {
    if (!value_->is_string()) fail_type("a string");
    return value_->get_ref<const std::string&>();
  }
  bool boolean() const {
    if (!value_->is_boolean()) fail_type("true or false");
    return value_->get<bool>();
  }
  // The member's string, or what it is without one.
  std::string string_or(const char* name, std::string otherwise) const {
    const auto found = find(name);
    return found ? found->string() : otherwise;
  }
  // What kind of object it is.
  const std::string& type() const { return at("type").string(); }

 private:
  const OrderedJson* value_;
  std::string place_;
};

// One text, or what `text_of` says of each element.
template <typename TextOf>
std::vector<std::string> texts(const JsonPlace& content, const TextOf& text_of) {
  if (content.json().is_string()) return {content.string()};
  std::vector<std::string> all;
  for (const JsonPlace& element : content.elements()) all.push_back(text_of(element));
  return all;
}

}  // namespace quire
