#include "formats/hf_config.h"

#include <cmath>

#include "formats/json.h"
#include "quire/error.h"
#include "util/str.h"

namespace quire {

struct HfConfig::Node {
  Json value;
};

namespace {

const Json& json(const void* value) { return *static_cast<const Json*>(value); }

std::string shorten(const Json& value) {
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  return text.size() > 80 ? text.substr(0, 77) + "..." : text;
}

bool is_int_within(const Json& value, int64_t min, int64_t max) {
  // A whole number may be written 4096.0.
  if (value.is_number_unsigned())
    return value.get<uint64_t>() <= static_cast<uint64_t>(max) && value.get<int64_t>() >= min;
  if (value.is_number_integer()) return value.get<int64_t>() >= min && value.get<int64_t>() <= max;
  if (!value.is_number_float()) return false;
  const double number = value.get<double>();
  return number == std::floor(number) && number >= static_cast<double>(min) &&
         number <= static_cast<double>(max);
}

}  // namespace

HfConfig::HfConfig(std::shared_ptr<const Node> node, std::string path, std::string prefix)
    : node_(std::move(node)), path_(std::move(path)), prefix_(std::move(prefix)) {}

HfConfig HfConfig::load(const std::string& path, int64_t max_bytes) {
  return parse(read_text_file(path, max_bytes), path);
}

HfConfig HfConfig::parse(const std::string& text, const std::string& path) {
  auto node = std::make_shared<Node>();
  node->value = parse_json(text, path);
  if (!node->value.is_object()) throw InvalidArgument(str(path, ": must hold a JSON object"));
  check_unique_members(text, path);
  return HfConfig(std::move(node), path, "");
}

void HfConfig::fail(const std::string& message) const { throw InvalidArgument(str(path_, ": ", message)); }

const void* HfConfig::find(const std::string& key) const {
  const auto found = node_->value.find(key);
  return found == node_->value.end() || found->is_null() ? nullptr : &*found;
}

std::string HfConfig::get_json(const std::string& key) const {
  const auto found = node_->value.find(key);
  return found == node_->value.end() ? "null" : found->dump(-1, ' ', false, Json::error_handler_t::replace);
}

const void* HfConfig::require(const std::string& key) const {
  const void* value = find(key);
  if (!value) fail(str("key '", prefix_, key, "' is missing"));
  return value;
}

bool HfConfig::is_object(const std::string& key) const {
  const void* value = find(key);
  return value != nullptr && json(value).is_object();
}

bool HfConfig::is_null(const std::string& key) const {
  const auto found = node_->value.find(key);
  return found != node_->value.end() && found->is_null();
}

bool HfConfig::has(const std::string& key) const { return find(key) != nullptr; }

std::vector<std::string> HfConfig::keys() const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : node_->value.items()) keys.push_back(key);
  return keys;
}

int32_t HfConfig::get_int(const std::string& key, int32_t min, int32_t max) const {
  const Json& value = json(require(key));
  if (!is_int_within(value, min, max)) {
    fail(
        str("'", prefix_, key, "' must be a whole number from ", min, " to ", max, ", got ", shorten(value)));
  }
  return static_cast<int32_t>(value.get<double>());
}

int32_t HfConfig::get_int(const std::string& key, int32_t min, int32_t max, int32_t otherwise) const {
  return has(key) ? get_int(key, min, max) : otherwise;
}

double HfConfig::get_positive(const std::string& key) const {
  const Json& value = json(require(key));
  // Layers compute in 32 bits, where a larger number is infinite and a smaller one zero.
  const float single = value.is_number() ? static_cast<float>(value.get<double>()) : 0.0F;
  if (!(single > 0) || !std::isfinite(single)) {
    fail(str("'", prefix_, key, "' must be a number above 0 that fits 32 bits, got ", shorten(value)));
  }
  return value.get<double>();
}

double HfConfig::get_positive(const std::string& key, double otherwise) const {
  return has(key) ? get_positive(key) : otherwise;
}

bool HfConfig::get_bool(const std::string& key, bool otherwise) const {
  if (!has(key)) return otherwise;
  const Json& value = json(require(key));
  if (!value.is_boolean()) fail(str("'", prefix_, key, "' must be true or false, got ", shorten(value)));
  return value.get<bool>();
}

std::string HfConfig::get_string(const std::string& key) const {
  const Json& value = json(require(key));
  if (!value.is_string()) fail(str("'", prefix_, key, "' must be a string, got ", shorten(value)));
  return value.get<std::string>();
}

std::string HfConfig::get_string(const std::string& key, const std::string& otherwise) const {
  return has(key) ? get_string(key) : otherwise;
}

std::vector<double> HfConfig::get_numbers(const std::string& key) const {
  const Json& value = json(require(key));
  std::vector<double> numbers;
  if (!value.is_array()) fail(str("'", prefix_, key, "' must be a list of numbers, got ", shorten(value)));
  for (const Json& item : value) {
    if (!item.is_number()) fail(str("'", prefix_, key, "' must be a list of numbers, got ", shorten(value)));
    numbers.push_back(item.get<double>());
  }
  return numbers;
}

std::vector<int32_t> HfConfig::get_ints(const std::string& key, int32_t min, int32_t max) const {
  std::vector<int32_t> ints;
  if (!has(key)) return ints;
  const Json& value = json(require(key));
  const auto add = [&](const Json& item) {
    if (!is_int_within(item, min, max)) {
      fail(str("'", prefix_, key, "' must hold whole numbers from ", min, " to ", max, ", got ",
               shorten(item)));
    }
    ints.push_back(static_cast<int32_t>(item.get<double>()));
  };
  if (value.is_array()) {
    for (const Json& item : value) add(item);
  } else {
    add(value);
  }
  return ints;
}

std::vector<std::string> HfConfig::get_strings(const std::string& key) const {
  const Json& value = json(require(key));
  std::vector<std::string> strings;
  if (!value.is_array()) fail(str("'", prefix_, key, "' must be a list of strings, got ", shorten(value)));
  for (const Json& item : value) {
    if (!item.is_string()) fail(str("'", prefix_, key, "' must be a list of strings, got ", shorten(value)));
    strings.push_back(item.get<std::string>());
  }
  return strings;
}

HfConfig HfConfig::with_alias(const std::string& key, const std::string& older) const {
  if (has(key) || !has(older)) return *this;
  auto node = std::make_shared<Node>(*node_);
  node->value[key] = json(find(older));
  return HfConfig(std::move(node), path_, prefix_);
}

HfConfig HfConfig::with_members_of(const std::string& key) const {
  const auto object = get_object(key);
  if (!object) return *this;
  auto node = std::make_shared<Node>(*node_);
  for (const auto& [name, value] : object->node_->value.items()) {
    if (name != "architectures") node->value[name] = value;
  }
  return HfConfig(std::move(node), path_, prefix_);
}

HfConfig HfConfig::with_default(const std::string& key, int32_t value) const {
  if (has(key)) return *this;
  auto node = std::make_shared<Node>(*node_);
  node->value[key] = value;
  return HfConfig(std::move(node), path_, prefix_);
}

HfConfig HfConfig::with_default_object(const std::string& key, const std::string& json) const {
  if (has(key)) return *this;
  auto node = std::make_shared<Node>(*node_);
  node->value[key] = parse_json(json, path_);
  return HfConfig(std::move(node), path_, prefix_);
}

std::optional<HfConfig> HfConfig::get_object(const std::string& key) const {
  if (!has(key)) return std::nullopt;
  const Json& value = json(require(key));
  if (!value.is_object()) fail(str("'", prefix_, key, "' must be an object, got ", shorten(value)));
  auto node = std::make_shared<Node>();
  node->value = value;
  return HfConfig(std::move(node), path_, prefix_ + key + ".");
}

}  // namespace quire
