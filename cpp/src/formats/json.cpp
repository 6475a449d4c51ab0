#include "formats/json.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <memory>
#include <unordered_set>

#include "quire/error.h"
#include "util/str.h"
#include "util/utf8.h"

namespace quire {
namespace {

// What the parser complains of, without its own name for that.
std::string reason(const std::exception& error) {
  const std::string text = error.what();
  const size_t begin = text.starts_with("[json.") ? text.find("] ") : std::string::npos;
  return begin == std::string::npos ? text : text.substr(begin + 2);
}

// Passes the parser's events on.
class SaxAdapter final : public nlohmann::json_sax<Json> {
 public:
  SaxAdapter(const std::string& where, JsonHandler& handler) : where_(where), handler_(handler) {}

  bool null() override { return handler_.on_null(), true; }
  bool boolean(bool value) override { return handler_.on_boolean(value), true; }
  bool number_integer(int64_t value) override { return handler_.on_integer(value), true; }
  bool number_unsigned(uint64_t value) override {
    if (value > uint64_t{INT64_MAX}) fail_large(std::to_string(value));
    return handler_.on_integer(static_cast<int64_t>(value)), true;
  }
  bool number_float(double value, const std::string& text) override {
    if (text.find_first_of(".eE") == std::string::npos) fail_large(text);
    return handler_.on_float(value), true;
  }
  bool string(std::string& value) override { return handler_.on_string(std::move(value)), true; }
  bool binary(Json::binary_t&) override { return false; }  // JSON text has none
  bool key(std::string& value) override {
    key_ = shorten_text(value);
    return handler_.on_key(std::move(value)), true;
  }
  bool start_object(size_t) override { return handler_.on_object_start(), true; }
  bool end_object() override { return handler_.on_object_end(), true; }
  bool start_array(size_t) override { return handler_.on_array_start(), true; }
  bool end_array() override { return handler_.on_array_end(), true; }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& error) override {
    throw InvalidArgument(str(where_, ": not valid JSON: ", reason(error)));
  }

 private:
  [[noreturn]] void fail_large(const std::string& number) const {
    const std::string of = key_.empty() ? "" : str(" of '", key_, "'");
    throw InvalidArgument(str(where_, ": the integer ", number, of, " does not fit 64 bits"));
  }

  const std::string& where_;
  JsonHandler& handler_;
  std::string key_;  // the latest
};

// The members on the way to where the parser is, and those that the objects on it have had.
class MemberCounter final : public nlohmann::json_sax<Json> {
 public:
  explicit MemberCounter(const std::string& where) : where_(where) {}

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(int64_t) override { return true; }
  bool number_unsigned(uint64_t) override { return true; }
  bool number_float(double, const std::string&) override { return true; }
  bool string(std::string&) override { return true; }
  bool binary(Json::binary_t&) override { return true; }
  bool start_object(size_t) override { return open_.emplace_back(), true; }
  bool end_object() override { return open_.pop_back(), true; }
  bool start_array(size_t) override { return open_.emplace_back(), true; }
  bool end_array() override { return open_.pop_back(), true; }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }
  bool key(std::string& name) override {
    if (!open_.back().names.insert(name).second) {
      std::string path;
      for (const Open& each : open_) {
        if (&each != &open_.back() && !each.last.empty()) path += each.last + '.';
      }
      throw InvalidArgument(str(where_, ": '", path, name, "' is there twice"));
    }
    open_.back().last = name;
    return true;
  }

 private:
  struct Open {
    std::unordered_set<std::string> names;
    std::string last;
  };
  const std::string& where_;
  std::vector<Open> open_;
};

// Counts brackets outside of strings, since the text need not be JSON.
bool is_nested_too_deeply(std::string_view text) {
  int depth = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    switch (text[i]) {
      case '"':
        for (++i; i < text.size() && text[i] != '"'; ++i) i += text[i] == '\\';
        break;
      case '[':
      case '{':
        if (++depth > kMaxJsonDepth) return true;
        break;
      case ']':
      case '}': --depth; break;
      default: break;
    }
  }
  return false;
}

void check_depth(std::string_view text, const std::string& where) {
  if (is_nested_too_deeply(text))
    throw InvalidArgument(str(where, ": nested more than ", kMaxJsonDepth, " deep"));
}

}  // namespace

bool is_present(const std::string& path) {
  std::error_code error;
  return std::filesystem::symlink_status(path, error).type() > std::filesystem::file_type::not_found;
}

std::string read_text_file(const std::string& path, int64_t max_bytes) {
  // A FIFO would wait for a writer, also one that has just come into a file's place.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  const bool is_socket = descriptor < 0 && errno == ENXIO;
  if (descriptor < 0 && (errno == EMFILE || errno == ENFILE))
    throw InvalidArgument(str(path, ": cannot be read: ", std::strerror(errno)));
  if (descriptor < 0 && !is_socket) throw InvalidArgument(str(path, ": no such file, or it cannot be read"));
  const auto close = [](const int* open) { ::close(*open); };
  const std::unique_ptr<const int, decltype(close)> closed(is_socket ? nullptr : &descriptor, close);
  struct stat status{};
  if (is_socket || ::fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode))
    throw InvalidArgument(str(path, ": is not a file"));  // a device might never end
  if (status.st_size > max_bytes)
    throw InvalidArgument(str(path, ": has ", status.st_size, " bytes, more than ", max_bytes));
  std::string text(static_cast<size_t>(status.st_size), '\0');
  for (size_t size = 0; size < text.size();) {
    const ssize_t count = ::read(descriptor, text.data() + size, text.size() - size);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) throw InvalidArgument(str(path, ": cannot be read"));
    size += static_cast<size_t>(count);
  }
  return text;
}

Json parse_json(std::string_view text, const std::string& where) {
  check_depth(text, where);
  try {
    return Json::parse(text);
  } catch (const Json::exception& error) {
    throw InvalidArgument(str(where, ": not valid JSON: ", reason(error)));
  }
}

void check_unique_members(std::string_view text, const std::string& where) {
  check_depth(text, where);
  MemberCounter counter(where);
  Json::sax_parse(text, &counter);
}

Json try_parse_json(std::string_view text) {
  if (is_nested_too_deeply(text)) return Json(Json::value_t::discarded);
  return Json::parse(text, nullptr, /*allow_exceptions=*/false);
}

std::string_view find_member_text(std::string_view object, std::string_view key) {
  constexpr const char* kBlank = " \t\r\n";
  const auto end_of_string = [&](size_t at) {
    for (++at; at < object.size() && object[at] != '"'; ++at) at += object[at] == '\\';
    return at;
  };
  size_t at = object.find_first_not_of(kBlank);
  if (at == std::string_view::npos || object[at] != '{') return {};
  while ((at = object.find_first_not_of(kBlank, at + 1)) < object.size() && object[at] == '"') {
    const size_t end_of_name = end_of_string(at);
    const std::string_view name = object.substr(at + 1, end_of_name - at - 1);
    const size_t colon = object.find(':', end_of_name);
    if (colon == std::string_view::npos) return {};
    const size_t begin = object.find_first_not_of(kBlank, colon + 1);
    int depth = 0;
    for (at = begin; at < object.size(); ++at) {
      const char c = object[at];
      if (c == '"') {
        at = end_of_string(at);
      } else if (c == '{' || c == '[') {
        ++depth;
      } else if ((c == '}' || c == ']') && depth-- == 0) {
        break;
      } else if (c == ',' && depth == 0) {
        break;
      }
    }
    if (name == key && begin < at) {
      const std::string_view value = object.substr(begin, at - begin);
      return value.substr(0, value.find_last_not_of(kBlank) + 1);
    }
    if (at >= object.size() || object[at] != ',') return {};
  }
  return {};
}

OrderedJson parse_ordered_json(std::string_view text, const std::string& where) {
  check_depth(text, where);
  try {
    return OrderedJson::parse(text);
  } catch (const OrderedJson::exception& error) {
    throw InvalidArgument(str(where, ": not valid JSON: ", reason(error)));
  }
}

void parse_json(std::string_view text, const std::string& where, JsonHandler& handler) {
  check_depth(text, where);
  SaxAdapter adapter(where, handler);
  Json::sax_parse(text, &adapter);
}

JsonNode JsonNode::at(std::string_view key) const {
  const Json& members = object();
  const auto member = members.find(std::string(key));
  std::string path = path_;  // not by str(): a tokenizer.json has a million of these
  if (!path.empty()) path += '.';
  path += key;
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
    nodes.push_back(JsonNode(element, file_, path_ + '[' + std::to_string(nodes.size()) + ']'));
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
