#pragma once

#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "quire/error.h"
#include "util/str.h"

namespace quire {

// Differs between files that differ, as far as their names, sizes, times and places tell. Throws
// InvalidArgument naming the file when it cannot be asked for.
inline std::string file_stamp(int descriptor, const std::string& path) {
  struct stat status{};
  if (::fstat(descriptor, &status) != 0) throw InvalidArgument(str(path, ": ", std::strerror(errno)));
  return str(path, ' ', status.st_size, ' ', status.st_mtim.tv_sec, '.', status.st_mtim.tv_nsec, ' ',
             status.st_dev, ' ', status.st_ino, '\n');
}

// When anything of the file was changed last, which nobody can set: also its name, owner or mode.
inline std::string change_stamp(const std::string& path) {
  struct stat status{};
  if (::stat(path.c_str(), &status) != 0) throw InvalidArgument(str(path, ": ", std::strerror(errno)));
  return str(status.st_ctim.tv_sec, '.', status.st_ctim.tv_nsec, '\n');
}

// Throws InvalidArgument naming the file when it has another stamp by now.
inline void check_file_stamp(int descriptor, const std::string& path, const std::string& stamp) {
  if (file_stamp(descriptor, path) != stamp)
    throw InvalidArgument(str(path, ": was written while it was read; load it again when it is whole"));
}

}  // namespace quire
