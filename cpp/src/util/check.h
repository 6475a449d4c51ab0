// QUIRE_CHECK, QUIRE_DCHECK: promises the code makes to itself.
#pragma once

#include "quire/error.h"
#include "util/str.h"

namespace quire QUIRE_MODEL_API {

[[noreturn]] void fail_check(const char* condition, const char* file, int line, const std::string& evidence);

}  // namespace quire

// Throws InternalError, with the evidence, unless the condition holds. Never for user input.
#define QUIRE_CHECK(condition, ...)                                                                     \
  do {                                                                                                  \
    if (!(condition)) [[unlikely]]                                                                      \
      ::quire::fail_check(#condition, __FILE__, __LINE__, ::quire::str("" __VA_OPT__(, ) __VA_ARGS__)); \
  } while (false)

// A check that costs too much to ship: in builds with assertions, which the sanitizers' are.
#ifdef NDEBUG
#define QUIRE_DCHECK(condition, ...) \
  do {                               \
  } while (false)
#else
#define QUIRE_DCHECK(condition, ...) QUIRE_CHECK(condition __VA_OPT__(, ) __VA_ARGS__)
#endif
