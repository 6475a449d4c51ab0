// A shape as errors have it: "[4, 3]".
#pragma once

#include <string>

namespace quire {

std::string shape_text(const auto& shape) {
  std::string text = "[";
  for (const auto size : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  return text + "]";
}

}  // namespace quire
