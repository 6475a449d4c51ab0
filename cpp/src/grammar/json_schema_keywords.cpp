#include <algorithm>
#include <iterator>

#include "grammar/json_schema.h"

namespace quire {
namespace {

using Support = JsonSchemaKeyword::Support;

constexpr JsonSchemaKeyword kKeywords[] = {
    {"$ref", Support::kPartly, "within the schema, by a path such as #/$defs/name; alone"},
    {"$defs", Support::kKept, ""},
    {"definitions", Support::kKept, ""},
    {"const", Support::kPartly, "beside `type` only"},
    {"enum", Support::kPartly, "beside `type` only"},
    {"anyOf", Support::kPartly, "alone"},
    {"oneOf", Support::kPartly, "alone; of schemas that are seen to exclude each other"},
    {"allOf", Support::kPartly, "alone; of one schema"},
    {"type", Support::kKept, ""},
    {"properties", Support::kPartly, "in the order of the schema"},
    {"required", Support::kPartly, "of `properties`"},
    {"additionalProperties", Support::kPartly,
     "a schema: without `properties` and `patternProperties`; beside them, true and nothing are read as "
     "false"},
    {"unevaluatedProperties", Support::kPartly, "as additionalProperties"},
    {"patternProperties", Support::kPartly,
     "one pattern, which matches the whole name; without `properties`"},
    {"propertyNames", Support::kPartly, "without `properties` and `patternProperties`"},
    {"minProperties", Support::kPartly, "above 1: of `properties`"},
    {"maxProperties", Support::kKept, ""},
    {"items", Support::kKept, ""},
    {"prefixItems", Support::kPartly, "all of them are there"},
    {"unevaluatedItems", Support::kPartly, "as items"},
    {"minItems", Support::kKept, ""},
    {"maxItems", Support::kKept, ""},
    {"uniqueItems", Support::kPartly, "false"},
    {"minimum", Support::kKept, ""},
    {"maximum", Support::kKept, ""},
    {"exclusiveMinimum", Support::kKept, ""},
    {"exclusiveMaximum", Support::kKept, ""},
    {"multipleOf", Support::kPartly, "of integers, up to 1,024; with bounds: with both, not too far apart"},
    {"minLength", Support::kPartly, "without `pattern` and `format`; such strings have no escapes"},
    {"maxLength", Support::kPartly, "as minLength"},
    {"pattern", Support::kPartly,
     "matches the whole string, of characters that JSON writes as they are; without `format`"},
    {"format", Support::kPartly,
     "date, time, date-time, duration, email, hostname, ipv4, ipv6, uri, uri-reference, "
     "uri-template, uuid, json-pointer, relative-json-pointer; others say nothing"},
    {"minContains", Support::kPartly, "without `contains`, where it says nothing"},
    {"maxContains", Support::kPartly, "without `contains`, where it says nothing"},
    {"contains", Support::kRefused, ""},
    {"not", Support::kRefused, ""},
    {"if", Support::kRefused, ""},
    {"then", Support::kPartly, "without `if`, where it says nothing"},
    {"else", Support::kPartly, "without `if`, where it says nothing"},
    {"dependentRequired", Support::kRefused, ""},
    {"dependentSchemas", Support::kRefused, ""},
    {"$dynamicRef", Support::kRefused, "give $ref"},
    {"$dynamicAnchor", Support::kRefused, ""},
    {"$anchor", Support::kRefused, "give a path to $ref"},
    {"$recursiveRef", Support::kRefused, "of draft 2019-09; give $ref"},
    {"dependencies", Support::kRefused, "of an older draft"},
    {"additionalItems", Support::kRefused, "of an older draft; give prefixItems and items"},
    {"$id", Support::kPartly, "of the whole schema"},
    {"$schema", Support::kAnnotation, ""},
    {"$vocabulary", Support::kAnnotation, ""},
    {"$comment", Support::kAnnotation, ""},
    {"title", Support::kAnnotation, ""},
    {"description", Support::kAnnotation, ""},
    {"default", Support::kAnnotation, ""},
    {"examples", Support::kAnnotation, ""},
    {"deprecated", Support::kAnnotation, ""},
    {"readOnly", Support::kAnnotation, ""},
    {"writeOnly", Support::kAnnotation, ""},
    {"contentEncoding", Support::kAnnotation, ""},
    {"contentMediaType", Support::kAnnotation, ""},
    {"contentSchema", Support::kAnnotation, ""},
};

}  // namespace

const JsonSchemaKeyword* find_json_schema_keyword(std::string_view name) {
  const auto* const end = std::end(kKeywords);
  const auto* const found = std::find_if(
      std::begin(kKeywords), end, [name](const JsonSchemaKeyword& known) { return name == known.name; });
  return found == end ? nullptr : found;
}

std::vector<JsonSchemaKeyword> json_schema_keywords() { return {std::begin(kKeywords), std::end(kKeywords)}; }

}  // namespace quire
