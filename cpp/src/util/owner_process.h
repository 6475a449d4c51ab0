// Threads do not survive fork(), and locks may be held for ever after it: what has them belongs to one
// process.
#pragma once

#include <unistd.h>

#include "quire/error.h"
#include "util/str.h"

namespace quire {

class OwnerProcess {
 public:
  bool is_current() const { return getpid() == pid_; }
  // Throws Error in a child.
  void check() const {
    if (is_current()) return;
    throw Error(str("this engine belongs to process ", pid_, ", of which process ", getpid(),
                    " is a fork; make an engine in this process, or start it by spawn instead"));
  }

 private:
  pid_t pid_ = getpid();
};

}  // namespace quire
