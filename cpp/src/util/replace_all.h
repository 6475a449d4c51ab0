// Replaces text in text.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace quire {

// `what` from left to right, wherever it is, by `by`, which is not looked through again. Empty: nothing.
inline std::string replace_all(std::string_view text, std::string_view what, std::string_view by) {
  std::string out;
  for (size_t found; !what.empty() && (found = text.find(what)) != text.npos;) {
    out.append(text.substr(0, found)).append(by);
    text.remove_prefix(found + what.size());
  }
  return out.append(text);
}

}  // namespace quire
