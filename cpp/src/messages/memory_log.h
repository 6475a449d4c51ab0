// What stands in the log beside a refusal for want of memory, whose message is one line.
#pragma once

#include <sstream>
#include <string>

#include "quire/memory_plan.h"
#include "util/log.h"

namespace quire {

// The plan's table, as warnings.
inline void log_memory_table(const RankMemory& memory) {
  std::istringstream lines(memory_table(memory));
  for (std::string line; std::getline(lines, line);) log(LogLevel::kWarning, line);
}

}  // namespace quire
