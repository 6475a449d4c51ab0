// Included ahead of every source of xgrammar (cmake/xgrammar): the checks it makes count its work, so that a
// hostile grammar ends at a limit, wherever the library is at that time. It compiles as C++17.
#pragma once

#include <cstdint>
#include <string_view>
#include <type_traits>

#include "support/logging.h"

// Checks until `quire_grammar_check` looks at the clock; the thread's.
extern __thread int64_t quire_grammar_checks_left;
// Throws when the thread's work has taken longer, or more memory, than it may.
void quire_grammar_check();

namespace quire_grammar {
// Not in headers, whose destructors and moves must not throw; but in that whose edges automata are made of.
constexpr bool may_throw(std::string_view file) {
  const auto ends_with = [file](std::string_view end) {
    return file.size() > end.size() && file.substr(file.size() - end.size()) == end;
  };
  return ends_with(".cc") || ends_with("/fsm.h");
}
}  // namespace quire_grammar

#define QUIRE_GRAMMAR_COUNT()                                                                       \
  (std::bool_constant<quire_grammar::may_throw(__FILE__)>::value && --quire_grammar_checks_left < 0 \
       ? quire_grammar_check()                                                                      \
       : void())

#undef XGRAMMAR_CHECK
#define XGRAMMAR_CHECK(x) \
  if (QUIRE_GRAMMAR_COUNT(); !(x)) ::xgrammar::LogFatal(__FILE__, __LINE__).stream()
#undef XGRAMMAR_DCHECK
#define XGRAMMAR_DCHECK(x) \
  for (QUIRE_GRAMMAR_COUNT(); false;) XGRAMMAR_ICHECK(x)
