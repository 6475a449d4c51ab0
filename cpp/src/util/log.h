// One line to stderr, when QUIRE_LOG_LEVEL (error, warning, info, debug; default warning) lets it through.
#pragma once

#include <cstdint>
#include <string_view>

#include "util/str.h"

namespace quire {

enum class LogLevel : uint8_t { kError, kWarning, kInfo, kDebug };

bool log_enabled(LogLevel level);
void log_line(LogLevel level, std::string_view message);

template <typename... Parts>
void log(LogLevel level, const Parts&... parts) {
  if (log_enabled(level)) log_line(level, str(parts...));
}

}  // namespace quire
