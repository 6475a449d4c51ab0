#include "util/log.h"

#include <cstdio>
#include <cstdlib>
#include <string>

namespace quire {
namespace {

LogLevel level_from_environment() {
  const char* name = std::getenv("QUIRE_LOG_LEVEL");
  const std::string_view level = name ? name : "warning";
  if (level == "error") return LogLevel::kError;
  if (level == "info") return LogLevel::kInfo;
  if (level == "debug") return LogLevel::kDebug;
  return LogLevel::kWarning;
}

}  // namespace

bool log_enabled(LogLevel level) {
  static const LogLevel highest = level_from_environment();
  return level <= highest;
}

void log_line(LogLevel level, std::string_view message) {
  static constexpr const char* kNames[] = {"ERROR", "WARNING", "INFO", "DEBUG"};
  // One call, so that lines of several threads do not mix.
  std::fprintf(stderr, "quire %s: %.*s\n", kNames[static_cast<size_t>(level)],
               static_cast<int>(message.size()), message.data());
}

}  // namespace quire
