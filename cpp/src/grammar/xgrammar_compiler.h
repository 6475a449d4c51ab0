// Grammars of xgrammar, compiled with masks that grammars of a vocabulary share. It compiles as C++17.
#pragma once

#include <xgrammar/xgrammar.h>

#include <cstdint>
#include <memory>

namespace quire_grammar {

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
