// What the backend has logged. Thread-safe.
#pragma once

#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "abi.h"

namespace quire::triton::host {

class ServerLog {
 public:
  struct Line {
    TRITONSERVER_LogLevel level;
    std::string text;
  };

  static ServerLog& instance() {
    static auto* log = new ServerLog;
    return *log;
  }
  void add(TRITONSERVER_LogLevel level, const char* text) {
    const std::lock_guard lock(mutex_);
    lines_.push_back({level, text});
  }
  std::vector<Line> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(lines_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<Line> lines_;
};

}  // namespace quire::triton::host
