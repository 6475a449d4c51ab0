// Another working directory for a while.
#pragma once

#include <filesystem>

namespace quire {

// All threads are there until it goes.
class WorkingDirectory {
 public:
  explicit WorkingDirectory(const std::filesystem::path& path) { std::filesystem::current_path(path); }
  ~WorkingDirectory() { std::filesystem::current_path(before_); }
  WorkingDirectory(const WorkingDirectory&) = delete;
  WorkingDirectory& operator=(const WorkingDirectory&) = delete;

 private:
  const std::filesystem::path before_ = std::filesystem::current_path();
};

}  // namespace quire
