#include "quire/error.h"

#include <cstring>

#include "util/check.h"

namespace quire {

// Out of line, so that each class has one home for its type information.
Error::~Error() = default;
InvalidArgument::~InvalidArgument() = default;
ResourceExhausted::~ResourceExhausted() = default;
InternalError::~InternalError() = default;

void fail_check(const char* condition, const char* file, int line, const std::string& evidence) {
  const char* name = std::strrchr(file, '/');
  std::string message = str("internal error at ", name ? name + 1 : file, ":", line, ": ", condition);
  if (!evidence.empty()) message += str(" (", evidence, ")");
  throw InternalError(message);
}

}  // namespace quire
