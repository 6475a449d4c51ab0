#include "formats/json.h"

#include <algorithm>
#include <fstream>
#include <iterator>

#include "quire/error.h"
#include "util/str.h"

namespace quire {

std::string read_text_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) throw InvalidArgument(str(path, ": cannot be opened"));
  const std::streamoff size = file.tellg();
  std::string text(size > 0 ? static_cast<size_t>(size) : 0, '\0');
  file.seekg(0);
  if (size < 0 || !file.read(text.data(), size)) throw InvalidArgument(str(path, ": cannot be read"));
  return text;
}

Json parse_json(std::string_view text, const std::string& where) {
  try {
    return Json::parse(text);
  } catch (const Json::exception& error) {
    throw InvalidArgument(str(where, ": not valid JSON: ", error.what()));
  }
}

JsonNode JsonNode::at(std::string_view key) const {
  const Json& members = object();
  const auto member = members.find(std::string(key));
  const std::string path = path_.empty() ? std::string(key) : str(path_, ".", key);
  if (member == members.end()) throw InvalidArgument(str(file_, ": ", path, " is missing"));
  return JsonNode(*member, file_, path);
}

std::optional<JsonNode> JsonNode::find(std::string_view key) const {
  const Json& members = object();
  const auto member = members.find(std::string(key));
  if (member == members.end() || member->is_null()) return std::nullopt;
  return at(key);
}

std::vector<JsonNode> JsonNode::elements() const {
  if (!value_->is_array()) fail("must be an array");
  std::vector<JsonNode> nodes;
  nodes.reserve(value_->size());
  for (const Json& element : *value_) {
    nodes.push_back(JsonNode(element, file_, str(path_, "[", nodes.size(), "]")));
  }
  return nodes;
}

const std::string& JsonNode::string() const {
  if (!value_->is_string()) fail("must be a string");
  return value_->get_ref<const std::string&>();
}

bool JsonNode::boolean() const {
  if (!value_->is_boolean()) fail("must be true or false");
  return value_->get<bool>();
}

int64_t JsonNode::integer(int64_t min, int64_t max) const {
  const bool fits = value_->is_number_integer() &&
                    !(value_->is_number_unsigned() && value_->get<uint64_t>() > uint64_t{INT64_MAX});
  if (!fits || value_->get<int64_t>() < min || value_->get<int64_t>() > max) {
    fail(str("must be an integer from ", min, " to ", max));
  }
  return value_->get<int64_t>();
}

const Json& JsonNode::object() const {
  if (!value_->is_object()) fail("must be an object");
  return *value_;
}

bool JsonNode::boolean_or(std::string_view key, bool absent) const {
  const std::optional<JsonNode> member = find(key);
  return member ? member->boolean() : absent;
}

void JsonNode::allow_only(std::initializer_list<std::string_view> keys) const {
  for (const auto& [key, value] : object().items()) {
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
      at(key).fail("is not a key we know, and it may change the result");
    }
  }
}

void JsonNode::fail(const std::string& message) const {
  throw InvalidArgument(str(file_, ": ", path_.empty() ? "the document" : path_, " ", message));
}

}  // namespace quire
