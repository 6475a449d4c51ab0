// The door: the only place where a request is refused. Text and parameters become an EngineCoreRequest.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "grammar/grammar_door.h"
#include "messages/engine_core_messages.h"
#include "messages/model_info.h"
#include "quire/engine.h"
#include "quire/logits_processor.h"
#include "quire/tokenizer.h"

namespace quire {

// Thread-safe.
class InputProcessor {
 public:
  InputProcessor(const ModelInfo& model, std::vector<int32_t> eos_token_ids,
                 std::shared_ptr<const Tokenizer> tokenizer,
                 std::shared_ptr<GrammarCompiler> grammar_compiler, const EngineConfig& config);

  // One message for each of the request's n completions, without ids: they share the prompt, whose ids are
  // taken out of `request`, and the parameters, whose max_tokens is capped to what max_model_len leaves. Each
  // has a seed of its own. Throws InvalidArgument.
  std::vector<EngineCoreRequest> process(EngineRequest& request);

 private:
  std::vector<int32_t> take_prompt_token_ids(EngineRequest& request) const;
  void check_limits(const SamplingParams& params) const;
  void prepare_structured_outputs(StructuredOutputsParams& params) const;
  void check_logits_processors(const SamplingParams& params) const;
  void prepare_beam_search(EngineRequest& request, SamplingParams& params) const;
  static void check_allowed_tokens(const SamplingParams& params, const EngineCoreRequest& message);

  const ModelInfo model_;
  const Shared<std::vector<int32_t>> eos_token_ids_;
  const std::shared_ptr<const Tokenizer> tokenizer_;
  const std::unique_ptr<GrammarDoor> grammar_door_;  // null: this build has no grammars
  const size_t max_token_bytes_;
  const int32_t max_logprobs_, max_logprob_token_ids_, max_logit_bias_, max_stop_token_ids_;
  const int64_t max_stop_bytes_, max_bad_words_bytes_, max_answer_logprobs_, max_structured_output_bytes_;
  const int64_t max_extra_args_bytes_;
  const bool uses_kv_connector_;
  const bool can_think_;
  const std::vector<NamedLogitsProcessor> logits_processors_;
  std::mutex mutex_;
  std::mt19937_64 seeds_;
};

}  // namespace quire
