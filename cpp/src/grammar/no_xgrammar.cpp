// A build without a grammar library.
#include "grammar/grammar.h"
#include "quire/error.h"

namespace quire {

bool has_grammar_compiler() { return false; }

std::unique_ptr<GrammarCompiler> make_grammar_compiler(std::shared_ptr<const Tokenizer>, int32_t,
                                                       std::vector<int32_t>, const GrammarLimits&) {
  throw InvalidArgument(
      "structured_outputs: this build has no grammar library; build it with QUIRE_XGRAMMAR");
}

}  // namespace quire
