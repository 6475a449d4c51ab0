// Grammars of requests: compiled by a cache's threads, advanced and asked for masks by the scheduler.
#pragma once

#include <cstdint>
#include <memory>

#include "grammar/grammar_cache.h"
#include "grammar/thinking.h"
#include "quire/tokenizer.h"
#include "request/structured_output.h"

namespace quire {

struct StructuredOutputConfig {
  int32_t num_threads = 1;  // that compile; as many fill masks, when there are many
  int64_t max_cache_bytes = 0;
  int32_t vocab_size = 0;
  std::shared_ptr<const Tokenizer> tokenizer;  // cuts what must follow; null where nothing is proposed
  int32_t num_jump_forward_tokens = 0;
  // Grammars hold what comes behind the end of thinking; empty: all of the answer.
  ThinkTokens think_tokens;
};

// `compiler` is used by the manager's threads.
std::unique_ptr<StructuredOutputManager> make_structured_output_manager(
    std::shared_ptr<GrammarCompiler> compiler, const StructuredOutputConfig& config);

}  // namespace quire
