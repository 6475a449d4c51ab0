// Files of JSON lines: one value a line, blank lines between them allowed.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

#include "formats/json.h"
#include "util/str.h"

namespace quire {

// Calls `read` with each line's value, in order. Errors name `name` and the line's number, from 1.
template <typename Read>
void for_each_json_line(std::string_view text, const std::string& name, const Read& read) {
  for (int64_t number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string where = str(name, " line ", number);
    const Json json = parse_json(line, where);
    read(JsonNode(json, where));
  }
}

}  // namespace quire
