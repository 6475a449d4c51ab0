// The messages' few functions.
#include <algorithm>
#include <csignal>
#include <filesystem>
#include <iterator>
#include <limits>
#include <string_view>

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

void require(bool ok, const char* field, const auto& value, const std::string& what_would_do) {
  if (!ok) throw InvalidArgument(str(field, " must be ", what_would_do, ", got ", value));
}

template <typename Table>
Range find_range(const Table& table, std::string_view name) {
  Range range;
  for_each_field(table, [&](const auto& field) {
    if (name == field.name) range = field.range;
  });
  return range;
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
  check_fields(*this, kEngineConfigFields, std::numeric_limits<int32_t>::max());
  require(device == "auto" || device == "cpu" || is_cuda_device(device), "device", device,
          describe(find_range(kEngineConfigFields, "device")));
  if (think_start_token_ids.empty() != think_end_token_ids.empty()) {
    throw InvalidArgument(
        "think_start_token_ids and think_end_token_ids belong together: give both, or neither");
  }
  if (std::error_code error;
      !flight_recorder_dir.empty() && !std::filesystem::is_directory(flight_recorder_dir, error)) {
    throw InvalidArgument(str("flight_recorder_dir: no directory '", flight_recorder_dir,
                              "'; make it first, or leave it empty for no recordings"));
  }
  // A fault's handler would return to the fault, again and again; and what ends programs should end them.
  constexpr int kReserved[] = {SIGABRT, SIGBUS,  SIGFPE,  SIGILL,  SIGINT,
                               SIGKILL, SIGSEGV, SIGSTOP, SIGTERM, SIGTRAP};
  require(std::ranges::find(kReserved, flight_recorder_signal) == std::end(kReserved),
          "flight_recorder_signal", flight_recorder_signal,
          describe(find_range(kEngineConfigFields, "flight_recorder_signal")));
  if (max_cpu_loras > 0 && max_cpu_loras < max_loras) {
    throw InvalidArgument(str("max_cpu_loras ", max_cpu_loras, " is less than max_loras ", max_loras,
                              ": raise it, or set 0 for as many"));
  }
  if (kv_arena && (kv_cache_memory_bytes > 0 || num_gpu_blocks_override > 0)) {
    throw InvalidArgument(
        "kv_arena decides the size of the KV cache; leave kv_cache_memory_bytes and "
        "num_gpu_blocks_override at 0");
  }
}

}  // namespace quire
