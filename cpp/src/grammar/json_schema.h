// What of JSON Schema an answer can be held to.
//
// The compiler of grammars passes over keywords that it does not know, and lets some win over others
// silently. So a schema is read here first: what would not be kept to is refused by its name and place, and
// what says nothing is rewritten in the compiler's terms.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "grammar/grammar.h"
#include "quire/structured_outputs.h"

namespace quire {

// The schema for the compiler: every text of its grammar fits the schema given, by draft 2020-12. Throws
// InvalidArgument for text that is no schema, and for one with a keyword that could not be kept to. Appends
// what strings and names have to match.
std::string prepare_json_schema(const std::string& text, std::vector<JsonSchemaPattern>& patterns);

// Null when it is none of those that are known, and says nothing.
const JsonSchemaKeyword* find_json_schema_keyword(std::string_view name);

// A structural tag whose schemas are prepared. Patterns are those of answers in JSON.
std::string prepare_structural_tag(const std::string& text, std::vector<JsonSchemaPattern>& patterns);

}  // namespace quire
