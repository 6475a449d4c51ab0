// A JSON object, as text.
#pragma once

#include <string>

namespace quire {

struct JsonObject {
  std::string text = "{}";
  bool operator==(const JsonObject&) const = default;
};

}  // namespace quire
