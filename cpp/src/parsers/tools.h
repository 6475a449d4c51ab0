// The tools of a request, as parsers and structural tags need them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "formats/json.h"

namespace quire::parsers {

struct Tool {
  std::string name;
  OrderedJson parameters;  // a JSON schema of an object; an empty one where the tool says nothing
};

class Tools {
 public:
  Tools() = default;
  // An array as OpenAI's API has it. Throws InvalidArgument naming the field.
  explicit Tools(std::string_view tools_json);

  const std::vector<Tool>& all() const { return tools_; }
  // The schema of a parameter, or null when there is none.
  const OrderedJson* find_parameter(std::string_view tool, std::string_view parameter) const;

 private:
  std::vector<Tool> tools_;
};

// Whether a parameter is its text, as a string, whatever that is: its schema allows all strings and nothing
// else, or there is none.
bool is_only_string(const OrderedJson* schema);

// The JSON for a value that a model wrote as plain text, of the first of the schema's types that it fits
// (null, integer, number, boolean, object and array, string), else a string. White space around one of the
// strings that the schema lists is not part of it.
std::string typed_value(std::string_view text, const OrderedJson* schema);
// The text itself where it is JSON, else a string.
std::string json_value(std::string_view text);

}  // namespace quire::parsers
