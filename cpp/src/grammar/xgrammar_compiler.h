// Grammars of xgrammar, compiled with masks that grammars of a vocabulary share. It compiles as C++17.
#pragma once

#include <xgrammar/xgrammar.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace quire_grammar {

// Whether all that the library takes for matches of a regular expression are, as they are, the inside of a
// JSON string: it leaves out what JSON escapes where it makes an automaton of the expression, and not where
// it cannot.
bool is_json_text(const std::string& regex);

// A code point that a grammar names and that is no character: a surrogate, or above Unicode's.
std::optional<int32_t> find_no_character(const xgrammar::Grammar& grammar);

// Thread-safe.
class Compiler {
 public:
  // At most `max_bytes` of masks are kept, whichever grammar they came from: those used longest ago go.
  Compiler(const xgrammar::TokenizerInfo& tokenizer, int64_t max_bytes);
  // On the caller's thread.
  xgrammar::CompiledGrammar compile(const xgrammar::Grammar& grammar);

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace quire_grammar
