#pragma once

#include <cstdint>
#include <iomanip>
#include <sstream>
#include <string>

namespace quire {

// "14.96 GiB", with more digits of what would be nothing otherwise.
inline std::string gib_text(int64_t bytes) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(bytes != 0 && bytes < (int64_t{10} << 20) ? 5 : 2)
       << static_cast<double>(bytes) / (1 << 30) << " GiB";
  return text.str();
}

}  // namespace quire
