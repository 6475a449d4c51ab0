// RequestOutput and what it holds.
#include "quire/request_output.h"

#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "quire/kv_events.h"
#include "values.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace quire::bindings {
namespace {

using StopReason = std::variant<std::string, int32_t>;

std::optional<StopReason> stop_reason(const CompletionOutput& output) {
  if (const auto* text = std::get_if<std::string>(&output.stop_reason)) return *text;
  if (const auto* id = std::get_if<int32_t>(&output.stop_reason)) return *id;
  return std::nullopt;
}

std::optional<std::string> finish_reason(const CompletionOutput& output) {
  if (!output.finished()) return std::nullopt;
  return finish_reason_name(output.finish_reason);
}

using LogprobsById = nb::typed<nb::dict, int, Logprob>;

// A dictionary by token id: the chosen token comes first.
LogprobsById by_id(const PositionLogprobs& position) {
  nb::dict values;
  for (const Logprob& logprob : position) values[nb::int_(logprob.token_id)] = nb::cast(logprob);
  return LogprobsById(values);
}

std::optional<std::vector<LogprobsById>> logprobs(const CompletionOutput& output) {
  if (!output.cumulative_logprob) return std::nullopt;
  std::vector<LogprobsById> positions;
  for (const PositionLogprobs& position : output.logprobs) positions.push_back(by_id(position));
  return positions;
}

std::optional<std::vector<std::optional<LogprobsById>>> prompt_logprobs(const RequestOutput& output) {
  if (!output.prompt_logprobs) return std::nullopt;
  std::vector<std::optional<LogprobsById>> positions;
  for (const PositionLogprobs& position : *output.prompt_logprobs)
    positions.push_back(position.empty() ? std::nullopt : std::optional(by_id(position)));
  return positions;
}

nb::bytes hash_bytes(const KVBlockHash& hash) { return nb::bytes(hash.data(), sizeof hash); }

using CompletionState =
    std::tuple<int32_t, std::string, std::vector<int32_t>, std::optional<double>,
               std::vector<PositionLogprobs>, uint8_t, std::optional<StopReason>, std::string, int32_t>;

CompletionState completion_state(const CompletionOutput& o) {
  return {o.index,
          o.text,
          o.token_ids,
          o.cumulative_logprob,
          o.logprobs,
          static_cast<uint8_t>(o.finish_reason),
          stop_reason(o),
          o.error,
          o.num_reasoning_tokens};
}
CompletionOutput completion_from(const CompletionState& state) {
  CompletionOutput o;
  uint8_t finish_reason = 0;
  std::optional<StopReason> stop_reason;
  std::tie(o.index, o.text, o.token_ids, o.cumulative_logprob, o.logprobs, finish_reason, stop_reason,
           o.error, o.num_reasoning_tokens) = state;
  o.finish_reason = static_cast<FinishReason>(finish_reason);
  if (stop_reason) std::visit([&](const auto& reason) { o.stop_reason = reason; }, *stop_reason);
  return o;
}

using RequestState =
    std::tuple<std::string, std::optional<std::string>, std::vector<int32_t>, std::vector<CompletionOutput>,
               bool, int32_t, RequestMetrics, std::optional<std::vector<PositionLogprobs>>, RequestUsage>;

RequestState request_state(const RequestOutput& o) {
  return {o.request_id,
          o.prompt ? std::optional(*o.prompt) : std::nullopt,
          *o.prompt_token_ids,
          o.outputs,
          o.finished,
          o.num_cached_tokens,
          o.metrics,
          o.prompt_logprobs ? std::optional(*o.prompt_logprobs) : std::nullopt,
          o.usage};
}
RequestOutput request_from(const RequestState& state) {
  RequestOutput o;
  std::optional<std::string> prompt;
  std::vector<int32_t> ids;
  std::optional<std::vector<PositionLogprobs>> logprobs;
  std::tie(o.request_id, prompt, ids, o.outputs, o.finished, o.num_cached_tokens, o.metrics, logprobs,
           o.usage) = state;
  if (logprobs)
    o.prompt_logprobs = std::make_shared<const std::vector<PositionLogprobs>>(std::move(*logprobs));
  if (prompt) o.prompt = std::make_shared<const std::string>(std::move(*prompt));
  o.prompt_token_ids = std::make_shared<const std::vector<int32_t>>(std::move(ids));
  return o;
}

}  // namespace

void bind_outputs(nb::module_& m) {
  nb::enum_<KVCacheEventKind>(m, "KVCacheEventKind")
      .value("BLOCK_STORED", KVCacheEventKind::kBlockStored, "Blocks can be found under their hashes.")
      .value("BLOCK_REMOVED", KVCacheEventKind::kBlockRemoved, "No block has that hash any more.")
      .value("ALL_BLOCKS_CLEARED", KVCacheEventKind::kAllBlocksCleared, "Nothing can be found.");
  nb::class_<KVCacheEvent> event(m, "KVCacheEvent",
                                 "What happened to cached prefixes; see quire/kv_events.h.");
  event.def_ro("kind", &KVCacheEvent::kind)
      .def_ro("group", &KVCacheEvent::group)
      .def_prop_ro("block_hashes",
                   [](const KVCacheEvent& event) {
                     std::vector<nb::bytes> hashes;
                     for (const KVBlockHash& hash : event.block_hashes) hashes.push_back(hash_bytes(hash));
                     return hashes;
                   })
      .def_prop_ro("parent_block_hash",
                   [](const KVCacheEvent& event) { return hash_bytes(event.parent_block_hash); })
      .def_ro("token_ids", &KVCacheEvent::token_ids)
      .def_ro("block_size", &KVCacheEvent::block_size)
      .def_ro("lora_id", &KVCacheEvent::lora_id, "The lora_int_id that the adapter was added with; 0: none.")
      .def_ro("lora_name", &KVCacheEvent::lora_name)
      .def_ro("cache_salt", &KVCacheEvent::cache_salt)
      .def_ro("kv_cache_spec_kind", &KVCacheEvent::kv_cache_spec_kind,
              "'full_attention', 'sliding_window', 'mla_attention' or 'mamba'.")
      .def_ro("kv_cache_spec_sliding_window", &KVCacheEvent::kv_cache_spec_sliding_window,
              "In tokens; 0: there is none.");
  def_plain_value<&KVCacheEvent::kind, &KVCacheEvent::group, &KVCacheEvent::block_hashes,
                  &KVCacheEvent::parent_block_hash, &KVCacheEvent::token_ids, &KVCacheEvent::block_size,
                  &KVCacheEvent::lora_id, &KVCacheEvent::lora_name, &KVCacheEvent::cache_salt,
                  &KVCacheEvent::kv_cache_spec_kind, &KVCacheEvent::kv_cache_spec_sliding_window>(
      event, {"kind", "group", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id",
              "lora_name", "cache_salt", "kv_cache_spec_kind", "kv_cache_spec_sliding_window"});

  nb::class_<Logprob> logprob(
      m, "Logprob", "A token's log-probability under the model, and its rank (1 is the likeliest).");
  logprob.def_ro("token_id", &Logprob::token_id)
      .def_ro("logprob", &Logprob::logprob)
      .def_ro("rank", &Logprob::rank);
  def_plain_value<&Logprob::token_id, &Logprob::logprob, &Logprob::rank>(logprob,
                                                                         {"token_id", "logprob", "rank"});

  nb::class_<CompletionOutput> completion(m, "CompletionOutput", "One completion of a prompt.");
  completion.def_ro("index", &CompletionOutput::index)
      .def_ro("text", &CompletionOutput::text)
      .def_ro("token_ids", &CompletionOutput::token_ids)
      .def_ro("cumulative_logprob", &CompletionOutput::cumulative_logprob)
      .def_prop_ro("logprobs", logprobs, "One dictionary for each token, by token id; None unless asked for.")
      .def_prop_ro("finish_reason", finish_reason,
                   "'stop', 'length', 'abort', 'error', or None while unfinished.")
      .def_prop_ro("stop_reason", stop_reason, "The stop string or stop token id that ended it, if one did.")
      .def_ro("error", &CompletionOutput::error)
      .def_ro("num_reasoning_tokens", &CompletionOutput::num_reasoning_tokens,
              "Of all tokens so far, those inside a reasoning block (think_start_token_ids, "
              "think_end_token_ids).")
      .def("finished", &CompletionOutput::finished);
  def_value(completion,
            {"index", "text", "token_ids", "cumulative_logprob", "logprobs", "finish_reason", "stop_reason",
             "?error"},
            completion_state, completion_from);

  nb::class_<RequestMetrics> metrics(
      m, "RequestMetrics",
      "When things happened to a request: seconds of time.monotonic(); 0 if they did "
      "not. Of several completions, the first and the last times.");
  metrics.def_ro("arrival_time", &RequestMetrics::arrival_time, "It was validated and tokenized.")
      .def_ro("first_scheduled_time", &RequestMetrics::first_scheduled_time,
              "Its first step was scheduled; known when that has given a token.")
      .def_ro("first_token_time", &RequestMetrics::first_token_time,
              "The step that gave its first token ended.")
      .def_ro("last_token_time", &RequestMetrics::last_token_time,
              "The step that gave its last token so far ended.")
      .def_ro("num_generation_tokens", &RequestMetrics::num_generation_tokens,
              "Tokens generated so far, of all completions.")
      .def_ro("mean_time_per_output_token", &RequestMetrics::mean_time_per_output_token,
              "Seconds from one token of a completion to its next one, on average; 0 when none has two.")
      .def_prop_ro("queued_time", &RequestMetrics::queued_time, "Seconds from arrival to the first step.")
      .def_prop_ro("prefill_time", &RequestMetrics::prefill_time,
                   "Seconds from the first step to the first token.")
      .def_prop_ro("first_token_latency", &RequestMetrics::first_token_latency,
                   "Seconds from arrival to the first token.")
      .def_prop_ro("decode_time", &RequestMetrics::decode_time,
                   "Seconds from the first token to the last one.")
      .def_prop_ro("inference_time", &RequestMetrics::inference_time,
                   "Seconds from the first step to the last token.");
  def_plain_value<&RequestMetrics::arrival_time, &RequestMetrics::first_scheduled_time,
                  &RequestMetrics::first_token_time, &RequestMetrics::last_token_time,
                  &RequestMetrics::num_generation_tokens, &RequestMetrics::mean_time_per_output_token>(
      metrics, {"arrival_time", "first_scheduled_time", "first_token_time", "last_token_time",
                "num_generation_tokens", "mean_time_per_output_token"});

  nb::class_<RequestUsage> usage(m, "RequestUsage",
                                 "What a request has used so far, of all its completions.");
  usage.def_ro("num_prompt_tokens", &RequestUsage::num_prompt_tokens, "Counted once, whatever n is.")
      .def_ro("num_cached_tokens", &RequestUsage::num_cached_tokens,
              "Of the prompt's, those whose keys and values were already there.")
      .def_ro("num_generation_tokens", &RequestUsage::num_generation_tokens)
      .def_ro("num_reasoning_tokens", &RequestUsage::num_reasoning_tokens,
              "Of the generated ones, those inside a reasoning block.");
  def_plain_value<&RequestUsage::num_prompt_tokens, &RequestUsage::num_cached_tokens,
                  &RequestUsage::num_generation_tokens, &RequestUsage::num_reasoning_tokens>(
      usage, {"num_prompt_tokens", "num_cached_tokens", "num_generation_tokens", "num_reasoning_tokens"});

  nb::class_<RequestOutput> request(m, "RequestOutput", "What a request gave back.");
  request.def_ro("request_id", &RequestOutput::request_id)
      .def_prop_ro("prompt",
                   [](const RequestOutput& o) { return o.prompt ? std::optional(*o.prompt) : std::nullopt; })
      .def_prop_ro("prompt_token_ids", [](const RequestOutput& o) { return *o.prompt_token_ids; })
      .def_prop_ro("prompt_logprobs", prompt_logprobs,
                   "One dictionary for each prompt token, by token id, given the tokens before it: None for "
                   "the first. None unless asked for, and until the first token came.")
      .def_ro("outputs", &RequestOutput::outputs)
      .def_ro("finished", &RequestOutput::finished)
      .def_ro("num_cached_tokens", &RequestOutput::num_cached_tokens)
      .def_ro("metrics", &RequestOutput::metrics)
      .def_ro("usage", &RequestOutput::usage);
  def_value(request,
            {"request_id", "prompt", "prompt_token_ids", "prompt_logprobs", "outputs", "finished",
             "num_cached_tokens", "metrics", "usage"},
            request_state, request_from);
}

}  // namespace quire::bindings
