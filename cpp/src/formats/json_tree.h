// A JSON document whose objects keep the order in which they were written, and cost no more the larger they
// are.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace quire {

struct JsonTree {
  using Array = std::vector<JsonTree>;
  using Object = std::vector<std::pair<std::string, JsonTree>>;

  std::variant<std::nullptr_t, bool, int64_t, double, std::string, Array, Object> value;

  const Object* object() const { return std::get_if<Object>(&value); }
  Object* object() { return std::get_if<Object>(&value); }
  const Array* array() const { return std::get_if<Array>(&value); }
  Array* array() { return std::get_if<Array>(&value); }
  const std::string* string() const { return std::get_if<std::string>(&value); }
  bool is_number() const {
    return std::holds_alternative<int64_t>(value) || std::holds_alternative<double>(value);
  }
  double number() const;  // it is one
  // The member `key`; null when this is no object or has no such member. Walks the members.
  const JsonTree* find(std::string_view key) const;

  // 1 and 1.0 are equal, and objects with the same members in another order.
  bool same_as(const JsonTree& other) const;

  // As short as it can be written; what is not ASCII stays as it is.
  std::string text() const;
};

// Throws as parse_json does, and for an object that has a member twice, and integers beyond 64 bits.
JsonTree parse_json_tree(std::string_view text, const std::string& where);

}  // namespace quire
