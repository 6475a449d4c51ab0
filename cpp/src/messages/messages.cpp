// The messages' few functions.
#include <algorithm>
#include <csignal>
#include <filesystem>
#include <iterator>

#include "messages/check_fields.h"
#include "messages/scheduling_policy.h"
#include "quire/engine_config.h"
#include "quire/error.h"
#include "quire/request_output.h"
#include "quire/sampling_params.h"
#include "quire/utf8.h"
#include "util/str.h"

namespace quire {
namespace {

void require(bool ok, const char* field, const auto& value, const char* what_would_do) {
  if (!ok) throw InvalidArgument(str(field, " must be ", what_would_do, ", got ", value));
}

// "cuda", or "cuda:" and at most three digits.
bool is_cuda_device(const std::string& device) {
  if (device == "cuda") return true;
  const std::string index = device.substr(0, 5) == "cuda:" ? device.substr(5) : "";
  return !index.empty() && index.size() <= 3 && index.find_first_not_of("0123456789") == std::string::npos;
}

// A search takes the model's own log-probabilities as they are, and all that is told of it is its answers.
void check_beam_search(const SamplingParams& params) {
  if (params.n > params.beam_width) {
    throw InvalidArgument(str("n must be at most beam_width (", params.beam_width, "), got ", params.n));
  }
  constexpr std::string_view kTaken[] = {"temperature",
                                         "seed",
                                         "beam_width",
                                         "length_penalty",
                                         "early_stopping",
                                         "max_tokens",
                                         "min_tokens",
                                         "stop_token_ids",
                                         "ignore_eos",
                                         "include_stop_str_in_output",
                                         "n",
                                         "logprobs",
                                         "detokenize",
                                         "skip_special_tokens",
                                         "spaces_between_special_tokens",
                                         "truncate_prompt_tokens",
                                         "output_kind"};
  const SamplingParams defaults;
  for_each_field(kSamplingParamsFields, [&](const auto& field) {
    if (std::ranges::find(kTaken, field.name) != std::end(kTaken)) return;
    if (params.*field.member != defaults.*field.member)
      throw InvalidArgument(str(field.name, " cannot be set with a beam_width above 1, which is ",
                                params.beam_width, ": leave one of them out"));
  });
  if (params.temperature != 0.0F && params.temperature != defaults.temperature) {
    throw InvalidArgument(str("temperature must be 0 or left out with a beam_width above 1, got ",
                              params.temperature, ": a beam search does not sample"));
  }
}

}  // namespace

const char* finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone: return "";
    case FinishReason::kStop: return "stop";
    case FinishReason::kLength: return "length";
    case FinishReason::kAbort: return "abort";
    case FinishReason::kError: return "error";
  }
  return "";
}

void SamplingParams::validate(int32_t vocab_size) const {
  check_fields(*this, kSamplingParamsFields, vocab_size);
  // Fields that must fit each other.
  if (min_tokens > max_tokens) {
    throw InvalidArgument(
        str("min_tokens must be between 0 and max_tokens (", max_tokens, "), got ", min_tokens));
  }
  if (structured_outputs) {
    structured_outputs->validate();
    if (ignore_eos)
      throw InvalidArgument(
          "ignore_eos cannot be set with structured_outputs: the grammar says where an answer ends");
    if (min_tokens > 0) {
      throw InvalidArgument(str("min_tokens must be 0 with structured_outputs, got ", min_tokens,
                                ": the grammar says where an answer ends"));
    }
  }
  if (allowed_token_ids && allowed_token_ids->empty())
    throw InvalidArgument("allowed_token_ids is an empty list; give at least one token id, or none for all");
  if (const auto count = static_cast<int64_t>(logprob_token_ids.size());
      count > 0 && logprobs && *logprobs != count) {
    throw InvalidArgument(
        str("logprobs must be none, or ", count, " as the number of logprob_token_ids is, got ", *logprobs));
  }
  if (beam_width > 1) check_beam_search(*this);
  if (truncate_prompt_tokens == 0)
    throw InvalidArgument("truncate_prompt_tokens must be at least 1, or -1 for as many as fit, got 0");
  if (!stop.empty() && !detokenize) {
    throw InvalidArgument("stop needs detokenize=True: strings are found in the text");
  }
}

void StructuredOutputsParams::validate() const {
  std::string given;
  int count = 0;
  const auto note = [&](bool is_given, const char* name) {
    if (!is_given) return;
    given += str(count++ > 0 ? " and " : "", name);
  };
  note(json.has_value(), "json");
  note(regex.has_value(), "regex");
  note(choice.has_value(), "choice");
  note(grammar.has_value(), "grammar");
  note(json_object, "json_object");
  note(structural_tag.has_value(), "structural_tag");
  if (count != 1) {
    throw InvalidArgument(str(
        "structured_outputs takes one of json, regex, choice, grammar, json_object and structural_tag, got ",
        count == 0 ? "none" : given));
  }
  const auto require_text = [](const std::string& text, const char* name) {
    if (text.empty()) throw InvalidArgument(str("structured_outputs: ", name, " is empty"));
    if (find_invalid_utf8(text) != std::string::npos)
      throw InvalidArgument(str("structured_outputs: ", name, " is not UTF-8"));
  };
  if (json) require_text(json->text, "json");
  if (regex) require_text(*regex, "regex");
  if (grammar) require_text(*grammar, "grammar");
  if (structural_tag) require_text(structural_tag->text, "structural_tag");
  if (choice) {
    if (choice->empty())
      throw InvalidArgument("structured_outputs: choice is empty; give at least one string");
    for (const std::string& text : *choice) require_text(text, "a string of choice");
  }
  if (!json && !json_object) {
    const auto refuse = [](bool is_set, const char* name) {
      if (is_set) throw InvalidArgument(str("structured_outputs: ", name, " is for json and json_object"));
    };
    refuse(disable_any_whitespace, "disable_any_whitespace");
  }
}

SchedulingPolicy find_scheduling_policy(const std::string& name) {
  if (name == "fcfs") return SchedulingPolicy::kFcfs;
  if (name == "priority") return SchedulingPolicy::kPriority;
  if (name == "cache_aware") return SchedulingPolicy::kCacheAware;
  if (name == "fair") return SchedulingPolicy::kFair;
  throw InvalidArgument(
      str("scheduling_policy must be 'fcfs', 'priority', 'cache_aware' or 'fair', got '", name, "'"));
}

void EngineConfig::validate() const {
  if (model.empty()) throw InvalidArgument("model is empty; give a directory with config.json");
  require(dtype == "auto" || dtype == "float32" || dtype == "bfloat16" || dtype == "float16", "dtype", dtype,
          "'auto', 'float32', 'bfloat16' or 'float16'");
  require(load_format == "auto" || load_format == "safetensors" || load_format == "dummy", "load_format",
          load_format, "'auto', 'safetensors' or 'dummy'");
  require(max_model_len >= 0, "max_model_len", max_model_len, "at least 1, or 0 for the model's own");
  require(device == "auto" || device == "cpu" || is_cuda_device(device), "device", device,
          "'auto', 'cpu', 'cuda' or 'cuda:N'");
  require(gpu_memory_utilization > 0 && gpu_memory_utilization <= 1, "gpu_memory_utilization",
          gpu_memory_utilization, "above 0 and at most 1");
  require(gpu_memory_bytes >= 0, "gpu_memory_bytes", gpu_memory_bytes,
          "a number of bytes, or 0 to go by gpu_memory_utilization");
  require(num_threads >= 0 && num_threads <= 1024, "num_threads", num_threads,
          "between 1 and 1024, or 0 for all cores");
  require(tensor_parallel_size >= 1 && tensor_parallel_size <= 64, "tensor_parallel_size",
          tensor_parallel_size, "between 1 and 64");
  require(block_size == 16 || block_size == 32 || block_size == 64, "block_size", block_size, "16, 32 or 64");
  require(kv_cache_memory_bytes >= 0, "kv_cache_memory_bytes", kv_cache_memory_bytes,
          "a number of bytes, or 0 to size it from the memory available");
  require(num_gpu_blocks_override == 0 || num_gpu_blocks_override >= 2, "num_gpu_blocks_override",
          num_gpu_blocks_override, "at least 2 (block 0 is kept back), or 0");
  require(max_num_seqs >= 1 && max_num_seqs <= 4096, "max_num_seqs", max_num_seqs, "between 1 and 4096");
  require(max_num_batched_tokens >= 1 && max_num_batched_tokens <= 1048576, "max_num_batched_tokens",
          max_num_batched_tokens, "between 1 and 1048576");
  require(long_prefill_token_threshold >= 0, "long_prefill_token_threshold", long_prefill_token_threshold,
          "at least 1, or 0 for no limit");
  require(max_num_partial_prefills >= 0, "max_num_partial_prefills", max_num_partial_prefills,
          "at least 1, or 0 for no limit");
  require(max_long_partial_prefills >= 0, "max_long_partial_prefills", max_long_partial_prefills,
          "at least 1, or 0 for no limit");
  find_scheduling_policy(scheduling_policy);
  require(watermark >= 0 && watermark < 1, "watermark", watermark, "at least 0 and below 1");
  require(max_logprobs >= -1, "max_logprobs", max_logprobs, "at least 0, or -1 for the whole vocabulary");
  require(max_logprob_token_ids >= 0, "max_logprob_token_ids", max_logprob_token_ids, "at least 0");
  require(max_logit_bias >= 0, "max_logit_bias", max_logit_bias, "at least 0");
  require(max_stop_token_ids >= 0, "max_stop_token_ids", max_stop_token_ids, "at least 0");
  require(max_stop_bytes >= 0 && max_stop_bytes <= 1 << 28, "max_stop_bytes", max_stop_bytes,
          "between 0 and 268435456");
  require(max_bad_words_bytes >= 0 && max_bad_words_bytes <= 1 << 20, "max_bad_words_bytes",
          max_bad_words_bytes, "between 0 and 1048576");
  require(max_extra_args_bytes >= 0 && max_extra_args_bytes <= 1 << 24, "max_extra_args_bytes",
          max_extra_args_bytes, "between 0 and 16777216");
  if (think_start_token_ids.empty() != think_end_token_ids.empty()) {
    throw InvalidArgument(
        "think_start_token_ids and think_end_token_ids belong together: give both, or neither");
  }
  require(max_answer_logprobs >= 0, "max_answer_logprobs", max_answer_logprobs, "at least 0");
  require(max_structured_output_bytes >= 0 && max_structured_output_bytes <= 1 << 28,
          "max_structured_output_bytes", max_structured_output_bytes, "between 0 and 268435456");
  require(structured_output_threads >= 0 && structured_output_threads <= 64, "structured_output_threads",
          structured_output_threads, "between 1 and 64, or 0 for half the cores");
  require(structured_output_cache_bytes >= 0, "structured_output_cache_bytes", structured_output_cache_bytes,
          "at least 0");
  require(num_jump_forward_tokens >= 0 && num_jump_forward_tokens <= 32, "num_jump_forward_tokens",
          num_jump_forward_tokens, "between 1 and 32, or 0 for none");
  require(max_waiting_requests >= 0, "max_waiting_requests", max_waiting_requests,
          "at least 1, or 0 for no limit");
  require(max_queued_tokens >= 0, "max_queued_tokens", max_queued_tokens, "at least 1, or 0 for no limit");
  require(flight_recorder_bytes == 0 || flight_recorder_bytes >= 1 << 16, "flight_recorder_bytes",
          flight_recorder_bytes, "at least 65536, or 0 for no recorder");
  require(flight_recorder_minutes > 0, "flight_recorder_minutes", flight_recorder_minutes, "above 0");
  if (std::error_code error;
      !flight_recorder_dir.empty() && !std::filesystem::is_directory(flight_recorder_dir, error)) {
    throw InvalidArgument(str("flight_recorder_dir: no directory '", flight_recorder_dir,
                              "'; make it first, or leave it empty for no recordings"));
  }
  // A fault's handler would return to the fault, again and again; and what ends programs should end them.
  constexpr int kReserved[] = {SIGABRT, SIGBUS,  SIGFPE,  SIGILL,  SIGINT,
                               SIGKILL, SIGSEGV, SIGSTOP, SIGTERM, SIGTRAP};
  require(flight_recorder_signal >= 0 && flight_recorder_signal < 65 &&
              std::find(std::begin(kReserved), std::end(kReserved), flight_recorder_signal) ==
                  std::end(kReserved),
          "flight_recorder_signal", flight_recorder_signal,
          "the number of a signal that ends nothing and reports no fault (12 is SIGUSR2), or 0 for none");
  if (kv_arena && (kv_cache_memory_bytes > 0 || num_gpu_blocks_override > 0)) {
    throw InvalidArgument(
        "kv_arena decides the size of the KV cache; leave kv_cache_memory_bytes and "
        "num_gpu_blocks_override at 0");
  }
  require(max_queued_requests >= 0, "max_queued_requests", max_queued_requests,
          "at least 1, or 0 for no limit");
}

}  // namespace quire
