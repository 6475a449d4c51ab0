// A budget of tokens for thinking: behind it the end of the reasoning block is forced.
#pragma once

#include "quire/logits_processor.h"

namespace quire {

// What engines with think_end_token_ids have, whatever logits_processors lists.
inline constexpr const char* kThinkingBudget = "thinking_budget";
LogitsProcessorFactory thinking_budget_factory();

}  // namespace quire
