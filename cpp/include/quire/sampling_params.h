// How the next token is chosen, when to stop, and what to report.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "quire/export.h"
#include "quire/field.h"
#include "quire/json_object.h"
#include "quire/structured_outputs.h"

namespace quire {

// What a stream of RequestOutputs carries: everything so far, only what is new, or one at the end.
enum class RequestOutputKind : uint8_t { kCumulative = 0, kDelta = 1, kFinalOnly = 2 };

// When beam search ends, as transformers has it: when no beam that goes on is likely to become better than
// those that ended, going by the present length; as soon as beam_width beams have ended; or when none can
// become better.
enum class EarlyStopping : uint8_t { kFalse = 0, kTrue = 1, kNever = 2 };

// Each field's meaning and range is in the table below.
struct QUIRE_API SamplingParams {
  // Choosing.
  float temperature = 1.0F;
  int32_t top_k = 0;
  float top_p = 1.0F;
  float min_p = 0.0F;
  float presence_penalty = 0.0F;
  float frequency_penalty = 0.0F;
  float repetition_penalty = 1.0F;
  std::map<int32_t, float> logit_bias;
  std::optional<std::vector<int32_t>> allowed_token_ids;
  std::vector<std::string> bad_words;
  JsonObject extra_args;
  std::optional<uint64_t> seed;
  std::optional<StructuredOutputsParams> structured_outputs;

  // Searching.
  int32_t beam_width = 1;
  float length_penalty = 1.0F;
  EarlyStopping early_stopping = EarlyStopping::kFalse;

  // Stopping.
  int32_t max_tokens = 16;
  int32_t min_tokens = 0;
  std::optional<int32_t> max_thinking_tokens;
  std::vector<std::string> stop;
  std::vector<int32_t> stop_token_ids;
  bool ignore_eos = false;
  bool include_stop_str_in_output = false;

  // Reporting.
  int32_t n = 1;
  std::optional<int32_t> logprobs;
  std::vector<int32_t> logprob_token_ids;
  std::optional<int32_t> prompt_logprobs;
  bool detokenize = true;
  bool skip_special_tokens = true;
  bool spaces_between_special_tokens = true;
  std::optional<int32_t> truncate_prompt_tokens;
  RequestOutputKind output_kind = RequestOutputKind::kCumulative;

  bool wants_logprobs() const { return logprobs.has_value() || !logprob_token_ids.empty(); }

  // Throws InvalidArgument naming the first field out of range, its value and what would do.
  // `vocab_size` bounds the token ids.
  void validate(int32_t vocab_size) const;

  bool operator==(const SamplingParams&) const = default;
};

// Every field, in the order of the struct: what doors, messages and validate() know of it.
inline constexpr std::tuple kSamplingParamsFields{
    Field{"temperature", &SamplingParams::temperature,
          "divides the logits; 0 is greedy: the likeliest token, the lowest id among equals",
          at_least(0, "at least 0 and finite")},
    Field{"top_k", &SamplingParams::top_k, "keeps the k likeliest tokens",
          at_least(-1, "at least 1, or 0 or -1 for all tokens")},
    Field{"top_p", &SamplingParams::top_p, "keeps the smallest set of tokens with at least this probability",
          above_and_at_most(0, 1)},
    Field{"min_p", &SamplingParams::min_p, "before those, drops tokens below min_p times the likeliest one",
          between(0, 1)},
    Field{"presence_penalty", &SamplingParams::presence_penalty,
          "is subtracted once from the logit of each token already generated", between(-2, 2)},
    Field{"frequency_penalty", &SamplingParams::frequency_penalty,
          "is subtracted for each time a token was generated", between(-2, 2)},
    Field{"repetition_penalty", &SamplingParams::repetition_penalty,
          "divides (or multiplies) the logits of tokens seen, the prompt's included",
          above(0, "above 0 and finite")},
    Field{"logit_bias", &SamplingParams::logit_bias, "from token ids to what is added to their logits",
          between(-100, 100)},
    Field{"allowed_token_ids", &SamplingParams::allowed_token_ids,
          "only these tokens are chosen; log-probabilities stay those of all"},
    Field{"bad_words", &SamplingParams::bad_words,
          "texts whose tokens, with or without a blank before them, do not follow each other; others may "
          "spell them"},
    Field{"extra_args", &SamplingParams::extra_args, "what the engine's logits processors read"},
    Field{"seed", &SamplingParams::seed,
          "the same seed gives the same tokens; without one it is drawn afresh"},
    Field{"structured_outputs", &SamplingParams::structured_outputs,
          "what the answer must look like: a JSON schema, a regular expression, a grammar"},
    Field{"beam_width", &SamplingParams::beam_width,
          "above 1: searches for the likeliest answers with this many beams, as transformers does, and gives "
          "the "
          "n best, in order, all at the end",
          between(1, 256)},
    Field{"length_penalty", &SamplingParams::length_penalty,
          "of a beam search: an answer's score is its log-probability divided by its length to this power",
          between(-100, 100)},
    Field{
        "early_stopping", &SamplingParams::early_stopping,
        "of a beam search: true ends it as soon as beam_width answers have ended, false when better ones are "
        "unlikely, \"never\" when there can be none"},
    Field{"max_tokens", &SamplingParams::max_tokens, "ends the answer; capped by what max_model_len leaves",
          at_least(1), Also::kNoneForMax},
    Field{"min_tokens", &SamplingParams::min_tokens, "no stop token before this many; at most max_tokens",
          at_least(0)},
    Field{"max_thinking_tokens", &SamplingParams::max_thinking_tokens,
          "ends a reasoning block after this many tokens; needs the engine's think_end_token_ids",
          at_least(0)},
    Field{"stop", &SamplingParams::stop, "ends the answer when its text contains one of these strings"},
    Field{"stop_token_ids", &SamplingParams::stop_token_ids, "ends the answer after one of these token ids"},
    Field{"ignore_eos", &SamplingParams::ignore_eos, "goes on past the model's end-of-sequence tokens"},
    Field{"include_stop_str_in_output", &SamplingParams::include_stop_str_in_output,
          "keeps what ended the answer in its text"},
    Field{"n", &SamplingParams::n, "completions of one prompt", between(1, 256)},
    Field{"logprobs", &SamplingParams::logprobs,
          "reports log-probabilities of the chosen and this many likeliest tokens, at most the engine's "
          "max_logprobs, 20 unless set; true is 1, false is none",
          at_least(-1, "at least 0, or -1 for all tokens"), Also::kTrueForOne},
    Field{"logprob_token_ids", &SamplingParams::logprob_token_ids,
          "reports log-probabilities of the chosen and of exactly these tokens"},
    Field{"prompt_logprobs", &SamplingParams::prompt_logprobs,
          "reports log-probabilities of each prompt token and this many likeliest ones in its place, at most "
          "the engine's max_logprobs; such a prompt is computed whole, whatever is cached; true is 1, false "
          "is none",
          at_least(-1, "at least 0, or -1 for all tokens"), Also::kTrueForOne},
    Field{"detokenize", &SamplingParams::detokenize, "false: token ids only"},
    Field{"skip_special_tokens", &SamplingParams::skip_special_tokens,
          "leaves special tokens out of the text"},
    Field{
        "spaces_between_special_tokens", &SamplingParams::spaces_between_special_tokens,
        "the same text either way: what stands between tokens is what the decoder of tokenizer.json writes"},
    Field{"truncate_prompt_tokens", &SamplingParams::truncate_prompt_tokens,
          "keeps the last tokens of the prompt, BOS counted like any; -1 as many as max_model_len leaves for "
          "one more",
          at_least(-1, "at least 1, or -1 for as many as fit")},
    Field{"output_kind", &SamplingParams::output_kind, "what a stream of outputs carries", Range{},
          Also::kNothing, SetBy::kCode},
};

}  // namespace quire
