#include "parsers/tools.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <set>
#include <unordered_map>
#include <utility>

#include "parsers/stage.h"
#include "quire/error.h"
#include "util/str.h"

namespace quire::parsers {
namespace {

constexpr int kMaxSchemaDepth = 8;  // of choices within choices

using Types = std::set<std::string, std::less<>>;

const char* type_of(const OrderedJson& value) {
  if (value.is_null()) return "null";
  if (value.is_boolean()) return "boolean";
  if (value.is_number_integer()) return "integer";
  if (value.is_number()) return "number";
  if (value.is_array()) return "array";
  return value.is_object() ? "object" : "string";
}

void add_types(const OrderedJson& schema, Types& types, int depth) {
  if (!schema.is_object() || depth > kMaxSchemaDepth) {
    types.insert("string");
    return;
  }
  const size_t before = types.size();
  bool found = false;
  if (const auto type = schema.find("type"); type != schema.end()) {
    if (type->is_string()) types.insert(type->get<std::string>());
    if (type->is_array()) {
      for (const auto& each : *type) {
        if (each.is_string()) types.insert(each.get<std::string>());
      }
    }
    found = types.size() > before;
  }
  if (const auto values = schema.find("enum"); values != schema.end() && values->is_array()) {
    for (const auto& value : *values) types.insert(type_of(value));
    found = found || !values->empty();
  }
  for (const char* key : {"anyOf", "oneOf", "allOf"}) {
    const auto choices = schema.find(key);
    if (choices == schema.end() || !choices->is_array()) continue;
    for (const auto& choice : *choices) add_types(choice, types, depth + 1);
    found = found || !choices->empty();
  }
  if (!found) types.insert("string");
}

Types types_of(const OrderedJson* schema) {
  Types types;
  if (schema == nullptr) {
    types.insert("string");
  } else {
    add_types(*schema, types, 0);
  }
  return types;
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; });
  return out;
}

bool is_integer(std::string_view text) {
  if (!text.empty() && text.front() == '-') text.remove_prefix(1);
  return !text.empty() && (text.size() == 1 || text.front() != '0') &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// As JSON writes it; a number without a fraction is written without one. Empty: no number.
std::string number_json(std::string_view text) {
  if (is_integer(text)) return std::string(text);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return "";
  if (value == std::trunc(value) && std::abs(value) < 9e15)
    return std::to_string(static_cast<int64_t>(value));
  return Json(value).dump();
}

// Whether the schema names this string among the values that there are.
bool lists(const OrderedJson* schema, std::string_view text) {
  if (schema == nullptr || !schema->is_object()) return false;
  const auto is_it = [text](const OrderedJson& value) {
    return value.is_string() && value.get_ref<const std::string&>() == text;
  };
  if (const auto only = schema->find("const"); only != schema->end() && is_it(*only)) return true;
  const auto values = schema->find("enum");
  return values != schema->end() && values->is_array() && std::any_of(values->begin(), values->end(), is_it);
}

std::string string_json(std::string_view text) {
  return Json(std::string(text)).dump(-1, ' ', false, Json::error_handler_t::replace);
}

// A model writes names into its calls as they are, between the signs of its form.
void check_name(const std::string& name, size_t i) {
  constexpr size_t kMaxLength = 256;
  const auto fail = [&](const std::string& what) {
    throw InvalidArgument(str("tools[", i, "].function.name '", name.substr(0, 100), "' ", what));
  };
  if (name.size() > kMaxLength)
    fail(str("has ", name.size(), " bytes; at most ", kMaxLength, " are possible"));
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte <= ' ' || byte == 0x7f || std::string_view("\"\\<>").find(c) != std::string_view::npos)
      fail(
          "has a space, a control character, a quote, a backslash or an angle bracket; give it letters, "
          "digits, '_' and '-'");
  }
}

}  // namespace

Tools::Tools(std::string_view tools_json) {
  // The order of properties is the schema's author's, and grammars follow it.
  const OrderedJson document = parse_ordered_json(tools_json, "tools");
  if (!document.is_array()) throw InvalidArgument("tools must be an array");
  std::unordered_map<std::string, size_t> places;
  for (size_t i = 0; i < document.size(); ++i) {
    const auto fail = [i](const std::string& what) { throw InvalidArgument(str("tools[", i, "]", what)); };
    const OrderedJson& entry = document[i];
    if (!entry.is_object()) fail(" must be an object");
    const auto function = entry.find("function");
    if (function == entry.end() || !function->is_object()) fail(".function must be an object");
    const auto name = function->find("name");
    if (name == function->end() || !name->is_string() || name->get_ref<const std::string&>().empty())
      fail(".function.name must be a string that is not empty");
    check_name(name->get_ref<const std::string&>(), i);
    if (const auto [first, is_new] = places.try_emplace(name->get<std::string>(), i); !is_new)
      fail(str(".function.name '", first->first, "' is that of tools[", first->second, "], too"));
    Tool& tool = tools_.emplace_back();
    tool.name = name->get<std::string>();
    tool.parameters = {
        {"type", "object"}, {"properties", OrderedJson::object()}, {"additionalProperties", false}};
    const auto parameters = function->find("parameters");
    if (parameters == function->end() || parameters->is_null()) continue;
    if (!parameters->is_object()) fail(".function.parameters must be an object, a JSON schema");
    tool.parameters = *parameters;
  }
}

const OrderedJson* Tools::find_parameter(std::string_view tool, std::string_view parameter) const {
  for (const Tool& each : tools_) {
    if (each.name != tool) continue;
    const auto properties = each.parameters.find("properties");
    if (properties == each.parameters.end() || !properties->is_object()) return nullptr;
    const auto found = properties->find(std::string(parameter));
    return found == properties->end() ? nullptr : &*found;
  }
  return nullptr;
}

bool is_only_string(const OrderedJson* schema) {
  const bool is_listed =
      schema != nullptr && schema->is_object() && (schema->contains("enum") || schema->contains("const"));
  return !is_listed && types_of(schema) == Types{"string"};
}

std::string typed_value(std::string_view text, const OrderedJson* schema) {
  const Types types = types_of(schema);
  const std::string_view bare = trim(text);
  const std::string word = lower(bare);
  if (types.contains("null") && word == "null") return "null";
  if (types.contains("integer") && is_integer(bare)) return std::string(bare);
  if (types.contains("number")) {
    std::string number = number_json(bare);
    if (!number.empty()) return number;
  }
  if (types.contains("boolean")) {
    if (word == "true" || word == "1") return "true";
    if (word == "false" || word == "0") return "false";
  }
  if (types.contains("object") || types.contains("array") || !types.contains("string")) {
    return json_value(text);
  }
  return string_json(lists(schema, text) || !lists(schema, bare) ? text : bare);
}

std::string json_value(std::string_view text) {
  // The arguments are around it.
  const bool is_json = !try_parse_json("[" + std::string(text) + "]").is_discarded();
  return is_json && !trim(text).empty() ? std::string(trim(text)) : string_json(text);
}

}  // namespace quire::parsers
