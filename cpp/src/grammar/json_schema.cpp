#include "grammar/json_schema.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string_view>
#include <vector>

#include "formats/json_tree.h"
#include "quire/error.h"
#include "quire/structured_outputs.h"
#include "util/str.h"

namespace quire {
namespace {

using Keyword = JsonSchemaKeyword;
using Support = JsonSchemaKeyword::Support;

// Of which types a keyword speaks, where it does not speak of all.
constexpr std::string_view kObjectKeywords[] = {"properties",    "required",         "additionalProperties",
                                                "minProperties", "maxProperties",    "unevaluatedProperties",
                                                "propertyNames", "patternProperties"};
constexpr std::string_view kArrayKeywords[] = {"items",    "prefixItems", "unevaluatedItems",
                                               "minItems", "maxItems",    "uniqueItems"};
constexpr std::string_view kOtherKeywords[] = {"minimum",          "maximum",   "exclusiveMinimum",
                                               "exclusiveMaximum", "minLength", "multipleOf",
                                               "maxLength",        "pattern",   "format"};
// What holds schemas by their names, and what is one.
constexpr std::string_view kContainers[] = {"$defs", "definitions", "properties", "patternProperties"};
constexpr std::string_view kSchemas[] = {"items", "unevaluatedItems", "additionalProperties",
                                         "unevaluatedProperties", "propertyNames"};
template <size_t count>
bool is_one_of(std::string_view name, const std::string_view (&names)[count]) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

bool has_type(const JsonTree& value, std::string_view type) {
  if (type == "object") return value.object() != nullptr;
  if (type == "array") return value.array() != nullptr;
  if (type == "string") return value.string() != nullptr;
  if (type == "number") return value.is_number();
  if (type == "integer") return value.is_number() && value.number() == std::floor(value.number());
  if (type == "boolean") return std::holds_alternative<bool>(value.value);
  return type == "null" && std::holds_alternative<std::nullptr_t>(value.value);
}

class SchemaReader {
 public:
  // `field`: of the request, for complaints.
  SchemaReader(JsonTree& root, const char* field, std::vector<JsonSchemaPattern>& patterns)
      : root_(root), field_(field), patterns_(patterns) {}

  void read_all(const std::string& path) {
    root_path_ = path;
    read(root_, path);
    // One after the other: a schema is rewritten when it is read, and what is in it then has other places.
    while (!references_.empty()) {
      const Reference reference = references_.back();
      references_.pop_back();
      read_reference(reference);
    }
  }

 private:
  struct Reference {
    std::string path, target;
  };

  void read(JsonTree& schema, const std::string& path) {
    if (!read_.insert(path).second) return;
    if (std::holds_alternative<bool>(schema.value)) {
      if (!std::get<bool>(schema.value)) fail(path, "false lets nothing through");
      return;
    }
    if (schema.object() == nullptr) fail(path, "must be a schema: an object");
    refuse_keywords(schema, path);
    for (const char* container : {"$defs", "definitions"}) read_members(schema, container, path);
    for (const char* combinator : {"$ref", "const", "enum", "anyOf", "oneOf", "allOf"}) {
      if (schema.find(combinator) != nullptr) return read_combinator(schema, combinator, path);
    }
    read_types(schema, path);
  }

  [[noreturn]] void fail(const std::string& path, const std::string& what) const {
    throw InvalidArgument(str("structured_outputs: ", field_, ": ", path, ": ", what));
  }
  // A name in a path, as JSON pointers write it: two schemas have two paths.
  static std::string escaped(const std::string& name) {
    std::string out;
    for (const char c : name) {
      if (c == '~' || c == '/') {
        out += c == '~' ? "~0" : "~1";
      } else {
        out += c;
      }
    }
    return out;
  }
  static JsonTree* member(JsonTree& schema, std::string_view key) {
    return const_cast<JsonTree*>(schema.find(key));
  }
  static void drop(JsonTree& schema, std::string_view key) {
    std::erase_if(*schema.object(), [key](const auto& entry) { return entry.first == key; });
  }
  static void set(JsonTree& schema, const char* key, bool value) {
    drop(schema, key);
    schema.object()->emplace_back(key, JsonTree{value});
  }

  void refuse_keywords(JsonTree& schema, const std::string& path) {
    for (const auto& [name, value] : *schema.object()) {
      const Keyword* keyword = find_json_schema_keyword(name);
      if (keyword == nullptr || keyword->support != Support::kRefused) continue;
      fail(path, str(name, " is not supported", *keyword->note != '\0' ? ": " : "", keyword->note));
    }
    if (&schema != &root_ && schema.find("$id") != nullptr)
      fail(path, "$id is supported for the whole schema only");
    // They say nothing here, and the compiler would count or complain.
    for (const char* nothing : {"minContains", "maxContains", "then", "else"}) drop(schema, nothing);
    if (const JsonTree* unique = schema.find("uniqueItems")) {
      const bool* value = std::get_if<bool>(&unique->value);
      if (value == nullptr || *value)
        fail(path, "uniqueItems is not supported: an answer cannot be held to it");
      drop(schema, "uniqueItems");
    }
  }

  void read_members(JsonTree& schema, const char* key, const std::string& path) {
    JsonTree* container = member(schema, key);
    if (container == nullptr) return;
    if (container->object() == nullptr) fail(path, str(key, " must be an object"));
    for (auto& [name, value] : *container->object()) {
      // What nobody refers to may be false.
      if (std::holds_alternative<bool>(value.value)) continue;
      read(value, str(path, "/", key, "/", escaped(name)));
    }
  }

  void read_combinator(JsonTree& schema, const std::string& which, const std::string& path) {
    const bool lists_values = which == "const" || which == "enum";
    for (const auto& [name, value] : *schema.object()) {
      const Keyword* keyword = find_json_schema_keyword(name);
      if (name == which || keyword == nullptr || keyword->support == Support::kAnnotation) continue;
      if (name == "$defs" || name == "definitions" || name == "$id") continue;
      if (lists_values && name == "type") continue;
      fail(path, str(name, " beside ", which, " is not supported: only one of them could be kept to"));
    }
    JsonTree& value = *member(schema, which);
    if (which == "$ref") return check_reference(value, path);
    if (lists_values) {
      if (which == "enum" && (value.array() == nullptr || value.array()->empty()))
        fail(path, "enum must be an array with at least one value");
      if (const JsonTree* type = schema.find("type")) check_values(value, which, *type, path);
      return drop(schema, "type");
    }
    if (value.array() == nullptr || value.array()->empty())
      fail(path, str(which, " must be an array of schemas"));
    if (which == "allOf" && value.array()->size() > 1)
      fail(path, "allOf of several schemas is not supported; write them as one");
    for (size_t i = 0; i < value.array()->size(); ++i)
      read((*value.array())[i], str(path, "/", which, "/", i));
  }

  void check_values(const JsonTree& values, const std::string& which, const JsonTree& type,
                    const std::string& path) const {
    const auto check = [&](const JsonTree& value) {
      const auto fits = [&](const JsonTree& one) {
        return one.string() != nullptr && has_type(value, *one.string());
      };
      const bool ok = type.array() != nullptr ? std::any_of(type.array()->begin(), type.array()->end(), fits)
                                              : fits(type);
      if (!ok)
        fail(path, str(which, " has ", value.text().substr(0, 100), ", which is not of type ", type.text()));
    };
    if (which == "const") return check(values);
    for (const JsonTree& value : *values.array()) check(value);
  }

  // The schema that it refers to is read, too, wherever it stands.
  void check_reference(const JsonTree& reference, const std::string& path) {
    if (reference.string() == nullptr) fail(path, "$ref must be a string");
    const std::string& target = *reference.string();
    if (target == "#") return;
    if (!target.starts_with("#/") || target.find_first_of("~%") != std::string::npos ||
        target.ends_with("/") || target.find("//") != std::string::npos)
      fail(path, str("$ref '", target.substr(0, 100),
                     "' is not supported: give a path within the schema, such as #/$defs/name"));
    if (referred_.insert(target).second) references_.push_back({path, target});
  }

  void read_reference(const Reference& reference) {
    const std::string& target = reference.target;
    const auto refuse = [&](const char* why) {
      fail(reference.path, str("$ref '", target.substr(0, 100), "' ", why));
    };
    JsonTree* place = &root_;
    bool is_container = false;  // of schemas, by their names
    for (size_t begin = 2; begin <= target.size();) {
      const size_t end = std::min(target.find('/', begin), target.size());
      const std::string_view name = std::string_view(target).substr(begin, end - begin);
      place = member(*place, name);
      if (place == nullptr) refuse("names nothing in the schema");
      const bool was_container = is_container;
      is_container = !was_container && is_one_of(name, kContainers);
      // Elsewhere than under a keyword that is not known, nothing else is a schema.
      if (!was_container && !is_container && find_json_schema_keyword(name) != nullptr &&
          !is_one_of(name, kSchemas))
        refuse("names no schema");
      begin = end + 1;
    }
    if (is_container) refuse("names no schema");
    read(*place, root_path_ + target.substr(1));
  }

  void read_types(JsonTree& schema, const std::string& path) {
    std::vector<std::string_view> types;  // not the schema's own texts: it is rewritten meanwhile
    if (const JsonTree* type = schema.find("type")) {
      static constexpr std::string_view kTypes[] = {"object",  "array",   "string", "number",
                                                    "integer", "boolean", "null"};
      const auto add = [&](const JsonTree& one) {
        if (one.string() == nullptr || !is_one_of(*one.string(), kTypes))
          fail(path, str("type ", one.text().substr(0, 100), " is none of JSON's"));
        types.push_back(*std::find(std::begin(kTypes), std::end(kTypes), *one.string()));
      };
      if (type->array() == nullptr) {
        add(*type);
      } else {
        if (type->array()->empty()) fail(path, "type must name at least one type");
        for (const JsonTree& one : *type->array()) add(one);
      }
    } else if (!infer_type(schema, types, path)) {
      return;  // any value
    }
    const auto has = [&](std::string_view type) {
      return std::find(types.begin(), types.end(), type) != types.end();
    };
    if (has("object")) read_object(schema, path);
    if (has("array")) read_array(schema, path);
    if (has("string")) read_string(schema, path);
  }

  // Without a type, keywords speak of values of theirs and let all others through. An answer has the type
  // that they speak of, if that is one.
  bool infer_type(JsonTree& schema, std::vector<std::string_view>& types, const std::string& path) {
    std::string_view of_object, of_array;
    for (const auto& [name, value] : *schema.object()) {
      if (is_one_of(name, kObjectKeywords)) of_object = name;
      if (is_one_of(name, kArrayKeywords)) of_array = name;
      if (is_one_of(name, kOtherKeywords) && name != "format")
        fail(path, str(name, " needs a type beside it"));
    }
    if (!of_object.empty() && !of_array.empty())
      fail(path, str(of_object, " and ", of_array, " need a type beside them"));
    if (of_object.empty() && of_array.empty()) return false;
    types.emplace_back(of_object.empty() ? "array" : "object");
    schema.object()->emplace_back("type", JsonTree{std::string(types.back())});
    return true;
  }

  static bool is_false(const JsonTree* value) {
    return value != nullptr && std::holds_alternative<bool>(value->value) && !std::get<bool>(value->value);
  }

  void read_object(JsonTree& schema, const std::string& path) {
    JsonTree* properties = member(schema, "properties");
    JsonTree* patterns = member(schema, "patternProperties");
    const bool has_names = schema.find("propertyNames") != nullptr;
    for (const char* name : {"properties", "patternProperties"}) {
      JsonTree* container = member(schema, name);
      if (container == nullptr) continue;
      if (container->object() == nullptr) fail(path, str(name, " must be an object"));
      for (auto& [key, value] : *container->object()) {
        const std::string place = str(path, "/", name, "/", escaped(key));
        read(value, place);
        if (container == patterns) patterns_.push_back({place, key});
      }
    }
    const bool has_properties = properties != nullptr && !properties->object()->empty();
    const bool has_patterns = patterns != nullptr && !patterns->object()->empty();
    if (has_patterns && (has_properties || patterns->object()->size() > 1))
      fail(path,
           "patternProperties is supported without properties and with one pattern: a name could match "
           "several");
    if (has_names && (has_properties || has_patterns))
      fail(path, "propertyNames is supported without properties and patternProperties");
    if (JsonTree* names = member(schema, "propertyNames")) {
      if (names->object() == nullptr) fail(path, "propertyNames must be a schema of strings: an object");
      if (names->find("type") == nullptr && names->find("enum") == nullptr && names->find("const") == nullptr)
        names->object()->emplace_back("type", JsonTree()).second.value = std::string("string");
      read(*names, str(path, "/propertyNames"));
    }
    read_required(schema, has_properties ? properties : nullptr, path);
    for (const char* name : {"additionalProperties", "unevaluatedProperties"}) {
      JsonTree* rest = member(schema, name);
      if (rest == nullptr) continue;
      if (std::holds_alternative<bool>(rest->value)) continue;
      if (has_properties || has_patterns) {
        fail(path,
             str(name, " beside properties must be true or false: names of both could not be kept apart"));
      }
      read(*rest, str(path, "/", name));
    }
    read_count(schema, "minProperties", has_properties ? 1e9 : 1, path);
    read_count(schema, "maxProperties", 1e9, path);
    // The compiler lets other names through that are then not told from those of the schema, or none at all.
    if (has_properties || has_patterns) {
      drop(schema, "unevaluatedProperties");
      set(schema, "additionalProperties", false);
    } else if (schema.find("additionalProperties") == nullptr &&
               schema.find("unevaluatedProperties") == nullptr) {
      set(schema, "additionalProperties", true);
    }
  }

  void read_required(const JsonTree& schema, const JsonTree* properties, const std::string& path) const {
    const JsonTree* required = schema.find("required");
    if (required == nullptr) return;
    if (required->array() == nullptr) fail(path, "required must be an array of names");
    std::set<std::string_view> known;
    if (properties != nullptr) {
      for (const auto& [name, value] : *properties->object()) known.insert(name);
    }
    for (const JsonTree& name : *required->array()) {
      if (name.string() == nullptr) fail(path, "required must be an array of names");
      if (!known.contains(*name.string()))
        fail(path, str("required names '", name.string()->substr(0, 100),
                       "', and properties does not: add it there"));
    }
  }

  void read_count(const JsonTree& schema, const char* name, double most, const std::string& path) const {
    const JsonTree* count = schema.find(name);
    if (count == nullptr) return;
    if (!has_type(*count, "integer") || count->number() < 0)
      fail(path, str(name, " must be an integer of at least 0"));
    if (count->number() > most)
      fail(path, str(name, " ", count->text(), " is not supported: at most ", most, " could be kept to"));
  }

  void read_array(JsonTree& schema, const std::string& path) {
    if (JsonTree* prefix = member(schema, "prefixItems")) {
      if (prefix->array() == nullptr) fail(path, "prefixItems must be an array of schemas");
      for (size_t i = 0; i < prefix->array()->size(); ++i) {
        JsonTree& item = (*prefix->array())[i];
        read(item, str(path, "/prefixItems/", i));
        if (std::holds_alternative<bool>(item.value)) item.value = JsonTree::Object();  // any value
      }
    }
    for (const char* name : {"items", "unevaluatedItems"}) {
      JsonTree* items = member(schema, name);
      if (items == nullptr || is_false(items)) continue;
      if (items->array() != nullptr)
        fail(path, str(name, " must be a schema; an array of them is prefixItems now"));
      read(*items, str(path, "/", name));
    }
    read_count(schema, "minItems", 1e9, path);
    read_count(schema, "maxItems", 1e9, path);
    if (schema.find("items") == nullptr && schema.find("unevaluatedItems") == nullptr &&
        schema.find("prefixItems") == nullptr)
      set(schema, "items", true);
  }

  void read_string(JsonTree& schema, const std::string& path) {
    read_count(schema, "minLength", 1e9, path);
    read_count(schema, "maxLength", 1e9, path);
    for (const char* name : {"pattern", "format"}) {
      const JsonTree* text = schema.find(name);
      if (text != nullptr && text->string() == nullptr) fail(path, str(name, " must be a string"));
    }
    const auto refuse_beside = [&](const char* name, std::initializer_list<const char*> others) {
      for (const char* other : others) {
        if (schema.find(other) != nullptr)
          fail(path, str(other, " beside ", name, " is not supported: only one of them could be kept to"));
      }
    };
    if (const JsonTree* pattern = schema.find("pattern")) {
      refuse_beside("pattern", {"format", "minLength", "maxLength"});
      patterns_.push_back({path, *pattern->string()});
    }
    const JsonTree* format = schema.find("format");
    if (format == nullptr || *format->string() != "email") return;
    // The compiler's own has quoted names, with escapes that are not JSON's.
    refuse_beside("format", {"minLength", "maxLength"});
    const std::string atom = "[A-Za-z0-9_!#$%&'*+/=?^`{|}~-]+",
                      label = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?";
    drop(schema, "format");
    schema.object()->emplace_back("pattern",
                                  JsonTree{str("^", atom, "(\\.", atom, ")*@", label, "(\\.", label, ")*$")});
  }

  JsonTree& root_;
  const char* field_;
  std::vector<JsonSchemaPattern>& patterns_;
  std::string root_path_;
  std::set<std::string> read_, referred_;  // paths that were read, and that are referred to
  std::vector<Reference> references_;      // that were not followed yet
};

// Wherever a part of a tag says that it holds a schema.
void read_tag(JsonTree& part, const std::string& path, std::vector<JsonSchemaPattern>& patterns) {
  if (JsonTree::Array* elements = part.array()) {
    for (size_t i = 0; i < elements->size(); ++i) read_tag((*elements)[i], str(path, "/", i), patterns);
  } else if (JsonTree::Object* members = part.object()) {
    const JsonTree* style = part.find("style");
    const bool is_json = style == nullptr || style->string() == nullptr || *style->string() == "json";
    std::vector<JsonSchemaPattern> of_others;  // who write texts as they are
    for (auto& [name, value] : *members) {
      if (name == "json_schema" || name == "schema") {
        SchemaReader(value, "structural_tag", is_json ? patterns : of_others).read_all(str(path, "/", name));
      } else {
        read_tag(value, str(path, "/", name), patterns);
      }
    }
  }
}

}  // namespace

std::string prepare_json_schema(const std::string& text, std::vector<JsonSchemaPattern>& patterns) {
  JsonTree schema = parse_json_tree(text, "structured_outputs: json");
  SchemaReader(schema, "json", patterns).read_all("#");
  return schema.text();
}

std::string prepare_structural_tag(const std::string& text, std::vector<JsonSchemaPattern>& patterns) {
  JsonTree tag = parse_json_tree(text, "structured_outputs: structural_tag");
  read_tag(tag, "#", patterns);
  return tag.text();
}

}  // namespace quire
