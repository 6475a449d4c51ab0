// What an answer must look like: it is generated under a grammar, token by token.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "quire/export.h"
#include "quire/field.h"

namespace quire {

// JSON as text. At the doors it may be written as a JSON value, too.
struct JsonText {
  std::string text;

  bool operator==(const JsonText&) const = default;
};

// Exactly one of `json`, `regex`, `choice`, `grammar`, `json_object` and `structural_tag` is given. Names are
// vLLM's. docs/structured_output.md says what each of them takes.
struct QUIRE_API StructuredOutputsParams {
  std::optional<JsonText> json;
  std::optional<std::string> regex;
  std::optional<std::vector<std::string>> choice;
  std::optional<std::string> grammar;
  bool json_object = false;
  std::optional<JsonText> structural_tag;

  bool disable_any_whitespace = false;

  // Throws InvalidArgument naming the field, its value and what would do.
  void validate() const;

  bool operator==(const StructuredOutputsParams&) const = default;
};

// Every field, in the order of the struct.
inline constexpr std::tuple kStructuredOutputsFields{
    Field{"json", &StructuredOutputsParams::json, "a JSON schema that the answer fits"},
    Field{"regex", &StructuredOutputsParams::regex, "a regular expression that matches the whole answer"},
    Field{"choice", &StructuredOutputsParams::choice, "the answer is one of these strings"},
    Field{"grammar", &StructuredOutputsParams::grammar,
          "a grammar of the answer: EBNF whose root rule is root, or Lark whose root rule is start"},
    Field{"json_object", &StructuredOutputsParams::json_object, "the answer is some JSON object"},
    Field{"structural_tag", &StructuredOutputsParams::structural_tag,
          "where in the answer which grammar holds: xgrammar's JSON"},
    Field{"disable_any_whitespace", &StructuredOutputsParams::disable_any_whitespace,
          "of JSON: no whitespace but a space after a comma or colon"},
};

// What is made of a keyword of JSON Schema (draft 2020-12).
struct JsonSchemaKeyword {
  enum class Support : uint8_t {
    kKept,        // answers keep to it
    kPartly,      // answers keep to it; some schemas with it are refused, or some texts that fit are not
                  // generated
    kAnnotation,  // it says nothing of what fits
    kRefused,     // a schema with it is refused, by its name and place
  };
  const char* name;
  Support support;
  const char* note;  // what is meant by kPartly, or why it is refused; perhaps empty
};
QUIRE_API std::vector<JsonSchemaKeyword> json_schema_keywords();

}  // namespace quire
