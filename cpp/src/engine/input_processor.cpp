#include "engine/input_processor.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "engine/bad_words.h"
#include "formats/json.h"
#include "grammar/grammar.h"
#include "messages/check_fields.h"
#include "util/check.h"

namespace quire {

InputProcessor::InputProcessor(const ModelInfo& model, std::vector<int32_t> eos_token_ids,
                               std::shared_ptr<const Tokenizer> tokenizer,
                               std::shared_ptr<GrammarCompiler> grammar_compiler, const EngineConfig& config)
    : model_(model),
      eos_token_ids_(std::move(eos_token_ids)),
      tokenizer_(std::move(tokenizer)),
      grammar_door_(grammar_compiler ? std::make_unique<GrammarDoor>(std::move(grammar_compiler)) : nullptr),
      max_token_bytes_(tokenizer_ ? tokenizer_->max_token_bytes() : 0),
      max_logprobs_(config.max_logprobs == -1 ? model.vocab_size : config.max_logprobs),
      max_logprob_token_ids_(config.max_logprob_token_ids),
      max_logit_bias_(config.max_logit_bias),
      max_stop_token_ids_(config.max_stop_token_ids),
      max_stop_bytes_(config.max_stop_bytes),
      max_bad_words_bytes_(config.max_bad_words_bytes),
      max_answer_logprobs_(config.max_answer_logprobs),
      max_structured_output_bytes_(config.max_structured_output_bytes),
      max_extra_args_bytes_(config.max_extra_args_bytes),
      uses_kv_connector_(!config.kv_connector.empty()),
      can_think_(!config.think_end_token_ids.empty()),
      logits_processors_(find_logits_processors(config.logits_processors, config.own_logits_processors)),
      seeds_(config.seed ? *config.seed : std::random_device{}() | uint64_t{std::random_device{}()} << 32) {}

std::vector<int32_t> InputProcessor::take_prompt_token_ids(EngineRequest& request) const {
  if (!request.prompt.empty() && !request.prompt_token_ids.empty()) {
    throw InvalidArgument("give prompt or prompt_token_ids, not both");
  }
  std::vector<int32_t> ids = std::move(request.prompt_token_ids);
  if (!request.prompt.empty()) {
    if (!tokenizer_)
      throw InvalidArgument("prompt is text, but skip_tokenizer_init is set; give prompt_token_ids");
    // Before it is read: a text costs fifty times its size in memory.
    const size_t max_bytes = static_cast<size_t>(model_.max_model_len) * max_token_bytes_;
    if (request.prompt.size() > max_bytes) {
      throw InvalidArgument(str("prompt has ", request.prompt.size(), " bytes; with max_model_len ",
                                model_.max_model_len, " and tokens of at most ", max_token_bytes_,
                                " bytes it may have at most ", max_bytes));
    }
    ids = tokenizer_->encode(request.prompt, request.add_special_tokens);
  }
  if (ids.empty()) throw InvalidArgument("prompt is empty; give at least one token");
  if (const std::optional<int32_t> keep = request.sampling_params.truncate_prompt_tokens) {
    if (*keep > model_.max_model_len) {
      throw InvalidArgument(str("truncate_prompt_tokens is ", *keep, "; max_model_len is ",
                                model_.max_model_len, ": give at most ", model_.max_model_len - 1,
                                ", or -1 for as many as fit"));
    }
    const auto num_kept = static_cast<size_t>(*keep == -1 ? model_.max_model_len - 1 : *keep);
    if (ids.size() > num_kept) ids.erase(ids.begin(), ids.end() - static_cast<std::ptrdiff_t>(num_kept));
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= model_.vocab_size) {
      throw InvalidArgument(
          str("prompt_token_ids[", i, "] is ", ids[i], "; ids go from 0 to ", model_.vocab_size - 1));
    }
  }
  if (ids.size() >= static_cast<size_t>(model_.max_model_len)) {
    throw InvalidArgument(str("prompt has ", ids.size(), " tokens; with max_model_len ", model_.max_model_len,
                              " it may have at most ", model_.max_model_len - 1));
  }
  return ids;
}

void InputProcessor::check_logits_processors(const SamplingParams& params) const {
  if (params.max_thinking_tokens && !can_think_) {
    throw InvalidArgument(str("max_thinking_tokens is ", *params.max_thinking_tokens,
                              ", but the engine has no think_end_token_ids; leave it out"));
  }
  const std::string& extra_args = params.extra_args.text;
  if (extra_args != JsonObject().text && !try_parse_json(extra_args).is_object())
    throw InvalidArgument("extra_args must be a JSON object");
  for (const NamedLogitsProcessor& processor : logits_processors_) {
    try {
      if (processor.factory.validate_params(params) && processor.factory.check_params)
        processor.factory.check_params(params);
    } catch (const std::exception& error) {
      throw InvalidArgument(str("logits processor '", processor.name, "': ", error.what()));
    }
  }
}

// Before anything is made of them: what has to be kept, and looked through for each token, has an end.
void InputProcessor::check_limits(const SamplingParams& params) const {
  const auto check = [](const char* what, int64_t size, const char* limit, int64_t max) {
    if (size > max) {
      throw InvalidArgument(str(what, " ", size, "; the engine's ", limit, " allows at most ", max));
    }
  };
  const auto check_logprobs = [&](const char* name, const std::optional<int32_t>& count) {
    if (count == -1) {
      check(str(name, " is -1, which is the whole vocabulary of").c_str(), model_.vocab_size, "max_logprobs",
            max_logprobs_);
    } else {
      check(str(name, " is").c_str(), count.value_or(0), "max_logprobs", max_logprobs_);
    }
  };
  check_logprobs("logprobs", params.logprobs);
  check_logprobs("prompt_logprobs", params.prompt_logprobs);
  check("logprob_token_ids has this many:", std::ssize(params.logprob_token_ids), "max_logprob_token_ids",
        max_logprob_token_ids_);
  check("logit_bias has this many token ids:", std::ssize(params.logit_bias), "max_logit_bias",
        max_logit_bias_);
  check("stop_token_ids has this many:", std::ssize(params.stop_token_ids), "max_stop_token_ids",
        max_stop_token_ids_);
  const auto bytes_of = [](const std::vector<std::string>& texts) {
    int64_t sum = 0;
    for (const std::string& text : texts) sum += std::ssize(text);
    return sum;
  };
  check("stop has this many bytes of strings:", bytes_of(params.stop), "max_stop_bytes", max_stop_bytes_);
  check("bad_words has this many bytes of strings:", bytes_of(params.bad_words), "max_bad_words_bytes",
        max_bad_words_bytes_);
  check("extra_args has this many bytes:", std::ssize(params.extra_args.text), "max_extra_args_bytes",
        max_extra_args_bytes_);
  if (params.allowed_token_ids && std::ssize(*params.allowed_token_ids) > model_.vocab_size) {
    throw InvalidArgument(str("allowed_token_ids has ", params.allowed_token_ids->size(),
                              " ids; the vocabulary has ", model_.vocab_size, ": give each once"));
  }
  check_logits_processors(params);
  if (const auto& structured = params.structured_outputs) {
    int64_t num_bytes = 0;
    const auto add = [&](const auto& text) {
      if (text) num_bytes += std::ssize(*text);
    };
    add(structured->regex);
    add(structured->grammar);
    if (structured->json) num_bytes += std::ssize(structured->json->text);
    if (structured->structural_tag) num_bytes += std::ssize(structured->structural_tag->text);
    if (structured->choice) {
      for (const std::string& text : *structured->choice) num_bytes += std::ssize(text) + 5;
    }
    check("structured_outputs has this many bytes:", num_bytes, "max_structured_output_bytes",
          max_structured_output_bytes_);
  }
}

// Checks what a grammar needs, and writes a schema as the grammar room wants it.
void InputProcessor::prepare_structured_outputs(StructuredOutputsParams& params) const {
  if (!tokenizer_)
    throw InvalidArgument("structured_outputs needs a tokenizer, but skip_tokenizer_init is set");
  if (!grammar_door_) {
    throw InvalidArgument(
        "structured_outputs: this build has no grammar library; build Quire where xgrammar's source can be "
        "fetched, or give QUIRE_XGRAMMAR_ARCHIVE");
  }
  if (eos_token_ids_->empty()) {
    throw InvalidArgument(
        "structured_outputs needs an end-of-sequence token, and the model's directory names no eos_token_id");
  }
  grammar_door_->enter(params);
}

// Throws when none of them could ever come first.
void InputProcessor::check_allowed_tokens(const SamplingParams& params, const EngineCoreRequest& message) {
  const auto contains = [](const std::vector<int32_t>& ids, int32_t id) {
    return std::find(ids.begin(), ids.end(), id) != ids.end();
  };
  const auto ends = [&](int32_t id) {
    return contains(*message.eos_token_ids, id) || contains(params.stop_token_ids, id);
  };
  if (params.min_tokens > 0 && std::ranges::all_of(*params.allowed_token_ids, ends)) {
    throw InvalidArgument(
        str("allowed_token_ids holds nothing but tokens that end the answer, which min_tokens ",
            params.min_tokens, " forbids at first; allow another token, or leave out one of them"));
  }
  std::vector<int32_t> bad;
  for (const std::vector<int32_t>& word : *message.bad_words_token_ids)
    if (word.size() == 1) bad.push_back(word[0]);
  std::ranges::sort(bad);
  const auto is_bad = [&](int32_t id) { return std::ranges::binary_search(bad, id); };
  if (std::ranges::all_of(*params.allowed_token_ids, is_bad)) {
    throw InvalidArgument(
        "allowed_token_ids holds nothing but tokens that bad_words forbids; allow another token");
  }
}

void InputProcessor::prepare_beam_search(EngineRequest& request, SamplingParams& params) const {
  if (uses_kv_connector_) {
    throw InvalidArgument(
        str("beam_width is ", params.beam_width,
            ", but the engine has a kv_connector, which knows nothing of forks; leave it out"));
  }
  const size_t num_stops = params.stop_token_ids.size() + (params.ignore_eos ? 0 : eos_token_ids_->size());
  const auto num_needed = static_cast<int64_t>(std::max<size_t>(2, 1 + num_stops) + num_stops);
  if (num_needed * params.beam_width > model_.vocab_size) {
    throw InvalidArgument(str("beam_width must be at most ", model_.vocab_size / num_needed,
                              " for a vocabulary of ", model_.vocab_size, " with ", num_stops,
                              " stop tokens, got ", params.beam_width));
  }
  for (const NamedLogitsProcessor& processor : logits_processors_) {
    if (processor.factory.validate_params(params)) {
      throw InvalidArgument(str("beam_width is ", params.beam_width, ", but the engine's logits processor '",
                                processor.name,
                                "' changes every request, and a search takes the model's own "
                                "log-probabilities; leave it out"));
    }
  }
  // The chosen tokens' are known anyway, and are the answers' scores.
  if (!params.logprobs) params.logprobs = request.sampling_params.logprobs = 0;
}

std::vector<EngineCoreRequest> InputProcessor::process(EngineRequest& request) {
  check_limits(request.sampling_params);
  request.sampling_params.validate(model_.vocab_size);
  check_fields(request, kEngineRequestFields, model_.vocab_size);
  EngineCoreRequest message;
  message.prompt_token_ids = take_prompt_token_ids(request);
  SamplingParams params = request.sampling_params;
  if (params.structured_outputs) prepare_structured_outputs(*params.structured_outputs);
  if (!tokenizer_ && !params.stop.empty()) {
    throw InvalidArgument("stop holds strings, but skip_tokenizer_init is set; give stop_token_ids");
  }
  if (!tokenizer_ && !params.bad_words.empty())
    throw InvalidArgument("bad_words holds strings, but skip_tokenizer_init is set; give logit_bias");
  const auto num_prompt_tokens = static_cast<int32_t>(message.prompt_token_ids->size());
  params.max_tokens = std::min(params.max_tokens, model_.max_model_len - num_prompt_tokens);
  params.min_tokens = std::min(params.min_tokens, params.max_tokens);
  for (std::optional<int32_t>* count : {&params.logprobs, &params.prompt_logprobs}) {
    if (*count) *count = **count == -1 ? model_.vocab_size : std::min(**count, model_.vocab_size);
  }
  if (params.beam_width > 1) prepare_beam_search(request, params);
  if (params.wants_logprobs()) {
    const int64_t per_token =
        params.logprob_token_ids.empty() ? *params.logprobs : std::ssize(params.logprob_token_ids);
    const int64_t num_kept = std::max(params.n, params.beam_width);
    const int64_t num_logprobs = num_kept * (per_token + 1) * params.max_tokens;
    if (num_logprobs > max_answer_logprobs_) {
      throw InvalidArgument(str(params.beam_width > 1 ? "beam_width " : "n ", num_kept,
                                params.logprob_token_ids.empty() ? ", logprobs " : ", logprob_token_ids ",
                                per_token, " and max_tokens ", params.max_tokens, " make ", num_logprobs,
                                " log-probabilities; the engine's max_answer_logprobs allows at most ",
                                max_answer_logprobs_, ": ask for less of one of them"));
    }
  }
  if (params.prompt_logprobs) {
    const int64_t num_logprobs = (int64_t{*params.prompt_logprobs} + 1) * (num_prompt_tokens - 1);
    if (num_logprobs > max_answer_logprobs_) {
      throw InvalidArgument(str("prompt_logprobs ", *params.prompt_logprobs, " and a prompt of ",
                                num_prompt_tokens, " tokens make ", num_logprobs,
                                " log-probabilities; the engine's max_answer_logprobs allows at most ",
                                max_answer_logprobs_, ": ask for fewer, or give a shorter prompt"));
    }
  }
  // One completion computes them for all.
  const std::optional<int32_t> num_prompt_logprobs = std::exchange(params.prompt_logprobs, std::nullopt);
  if (!params.bad_words.empty())
    message.bad_words_token_ids = tokenize_bad_words(params.bad_words, *tokenizer_, model_.vocab_size);
  params.bad_words.clear();
  params.stop.clear();  // text is not the engine core's
  if (!params.ignore_eos) message.eos_token_ids = eos_token_ids_;
  if (params.allowed_token_ids) check_allowed_tokens(params, message);
  message.priority = request.priority;
  message.user = request.user;
  message.cache_salt = request.cache_salt;
  message.arrival_time =
      std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  if (request.deadline_ms > 0)
    message.deadline = message.arrival_time + static_cast<double>(request.deadline_ms) / 1000.0;
  if (request.queue_timeout_ms > 0)
    message.queue_deadline = message.arrival_time + static_cast<double>(request.queue_timeout_ms) / 1000.0;

  const auto n = static_cast<size_t>(params.n);
  const std::optional<uint64_t> seed = params.seed;
  message.sampling_params = std::move(params);
  std::vector<EngineCoreRequest> messages(n, message);
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < n; ++i) messages[i].seed = seed ? *seed + i : seeds_();
  messages[0].num_prompt_logprobs = num_prompt_logprobs;
  return messages;
}

}  // namespace quire
