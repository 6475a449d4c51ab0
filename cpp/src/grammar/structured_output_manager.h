// Grammars of requests: compiled by a cache's threads, advanced and asked for masks by the scheduler.
#pragma once

#include <cstdint>
#include <memory>

#include "grammar/grammar_cache.h"
#include "request/structured_output.h"

namespace quire {

struct StructuredOutputConfig {
  int32_t num_threads = 1;  // that compile; as many fill masks, when there are many
  int64_t max_cache_bytes = 0;
  int32_t vocab_size = 0;
};

// `compiler` is used by the manager's threads.
std::unique_ptr<StructuredOutputManager> make_structured_output_manager(
    std::shared_ptr<GrammarCompiler> compiler, const StructuredOutputConfig& config);

}  // namespace quire
