// str(a, b, ...): the pieces of a message, joined.
#pragma once

#include <sstream>
#include <string>

namespace quire {

template <typename... Parts>
std::string str(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return std::move(out).str();
}

}  // namespace quire
