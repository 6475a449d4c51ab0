// SamplingParams and EngineConfig.
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <limits>
#include <utility>

#include "bindings.h"
#include "quire/engine.h"
#include "quire/engine_config.h"
#include "quire/sampling_params.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace quire::bindings {
namespace {

// A single stop string may be given without a list.
using StopStrings = std::variant<std::string, std::vector<std::string>>;

std::vector<std::string> stop_list(std::optional<StopStrings> stop) {
  if (!stop) return {};
  if (auto* one = std::get_if<std::string>(&*stop)) return {std::move(*one)};
  return std::get<1>(std::move(*stop));
}

// The engine's arena is known to Python only as a thing to pass on.
struct SharedArena {
  std::shared_ptr<KVArena> arena;
};

constexpr const char* kSamplingParamsDoc =
    "How the next token is chosen, when to stop, and what to report.\n\n"
    "temperature 0 is greedy. top_k 0 (or -1) keeps all tokens. Raises ValueError, naming the field, for a\n"
    "value out of range.";

}  // namespace

void bind_config(nb::module_& m) {
  nb::enum_<RequestOutputKind>(m, "RequestOutputKind", "What a stream of outputs carries.")
      .value("CUMULATIVE", RequestOutputKind::kCumulative, "everything so far")
      .value("DELTA", RequestOutputKind::kDelta, "what is new")
      .value("FINAL_ONLY", RequestOutputKind::kFinalOnly, "one output, at the end");

  nb::class_<SamplingParams>(m, "SamplingParams", kSamplingParamsDoc)
      .def(
          "__init__",
          [](SamplingParams* self, float temperature, int32_t top_k, float top_p, float min_p,
             float presence_penalty, float frequency_penalty, float repetition_penalty,
             std::map<int32_t, float> logit_bias, std::optional<uint64_t> seed, int32_t max_tokens,
             int32_t min_tokens, std::optional<StopStrings> stop, std::vector<int32_t> stop_token_ids,
             bool ignore_eos, bool include_stop_str_in_output, int32_t n, std::optional<int32_t> logprobs,
             bool detokenize, bool skip_special_tokens, RequestOutputKind output_kind) {
            SamplingParams p;
            p.temperature = temperature;
            p.top_k = top_k;
            p.top_p = top_p;
            p.min_p = min_p;
            p.presence_penalty = presence_penalty;
            p.frequency_penalty = frequency_penalty;
            p.repetition_penalty = repetition_penalty;
            p.logit_bias = std::move(logit_bias);
            p.seed = seed;
            p.max_tokens = max_tokens;
            p.min_tokens = min_tokens;
            p.stop = stop_list(std::move(stop));
            p.stop_token_ids = std::move(stop_token_ids);
            p.ignore_eos = ignore_eos;
            p.include_stop_str_in_output = include_stop_str_in_output;
            p.n = n;
            p.logprobs = logprobs;
            p.detokenize = detokenize;
            p.skip_special_tokens = skip_special_tokens;
            p.output_kind = output_kind;
            // The vocabulary is not known here: ids are checked again when the request is made.
            p.validate(std::numeric_limits<int32_t>::max());
            new (self) SamplingParams(std::move(p));
          },
          nb::kw_only(), "temperature"_a = 1.0F, "top_k"_a = 0, "top_p"_a = 1.0F, "min_p"_a = 0.0F,
          "presence_penalty"_a = 0.0F, "frequency_penalty"_a = 0.0F, "repetition_penalty"_a = 1.0F,
          "logit_bias"_a = std::map<int32_t, float>{}, "seed"_a = nb::none(), "max_tokens"_a = 16,
          "min_tokens"_a = 0, "stop"_a = nb::none(), "stop_token_ids"_a = std::vector<int32_t>{},
          "ignore_eos"_a = false, "include_stop_str_in_output"_a = false, "n"_a = 1,
          "logprobs"_a = nb::none(), "detokenize"_a = true, "skip_special_tokens"_a = true,
          "output_kind"_a = RequestOutputKind::kCumulative)
      .def_rw("temperature", &SamplingParams::temperature)
      .def_rw("top_k", &SamplingParams::top_k)
      .def_rw("top_p", &SamplingParams::top_p)
      .def_rw("min_p", &SamplingParams::min_p)
      .def_rw("presence_penalty", &SamplingParams::presence_penalty)
      .def_rw("frequency_penalty", &SamplingParams::frequency_penalty)
      .def_rw("repetition_penalty", &SamplingParams::repetition_penalty)
      .def_rw("logit_bias", &SamplingParams::logit_bias)
      .def_rw("seed", &SamplingParams::seed)
      .def_rw("max_tokens", &SamplingParams::max_tokens)
      .def_rw("min_tokens", &SamplingParams::min_tokens)
      .def_rw("stop", &SamplingParams::stop)
      .def_rw("stop_token_ids", &SamplingParams::stop_token_ids)
      .def_rw("ignore_eos", &SamplingParams::ignore_eos)
      .def_rw("include_stop_str_in_output", &SamplingParams::include_stop_str_in_output)
      .def_rw("n", &SamplingParams::n)
      .def_rw("logprobs", &SamplingParams::logprobs)
      .def_rw("detokenize", &SamplingParams::detokenize)
      .def_rw("skip_special_tokens", &SamplingParams::skip_special_tokens)
      .def_rw("output_kind", &SamplingParams::output_kind)
      .def(
          "copy", [](const SamplingParams& self) { return self; }, "An independent copy.")
      .def(
          "__eq__",
          [](const SamplingParams& self, nb::handle other) {
            return nb::isinstance<SamplingParams>(other) && self == nb::cast<const SamplingParams&>(other);
          },
          nb::sig("def __eq__(self, other: object, /) -> bool"));

  nb::class_<SharedArena>(m, "KVArena", "Memory for the KV caches of several engines of this process.")
      .def(
          "__init__", [](SharedArena* self, int64_t bytes) { new (self) SharedArena{make_kv_arena(bytes)}; },
          "bytes"_a);

  nb::class_<EngineConfig>(m, "EngineConfig",
                           "Everything an engine is told at start; see quire/engine_config.h.")
      .def(
          "__init__",
          [](EngineConfig* self, std::string model, std::string dtype, int32_t max_model_len,
             bool skip_tokenizer_init, std::string device, int32_t num_threads, int32_t tensor_parallel_size,
             int32_t block_size, int64_t kv_cache_memory_bytes, int32_t num_gpu_blocks_override,
             bool enable_prefix_caching, int32_t max_num_seqs, int32_t max_num_batched_tokens,
             bool enable_chunked_prefill, int32_t long_prefill_token_threshold, std::string scheduling_policy,
             std::optional<bool> async_scheduling, int32_t max_queued_requests, uint64_t seed,
             bool enable_kv_cache_events, const SharedArena* kv_arena, int32_t max_num_partial_prefills,
             int32_t max_long_partial_prefills, bool scheduler_reserve_full_isl, float watermark,
             int64_t max_queued_tokens, int64_t flight_recorder_bytes, double flight_recorder_minutes,
             std::string flight_recorder_dir, int32_t flight_recorder_signal, std::string load_format,
             double gpu_memory_utilization, int64_t gpu_memory_bytes, bool enforce_eager) {
            EngineConfig c;
            c.model = std::move(model);
            c.dtype = std::move(dtype);
            c.max_model_len = max_model_len;
            c.skip_tokenizer_init = skip_tokenizer_init;
            c.device = std::move(device);
            c.num_threads = num_threads;
            c.tensor_parallel_size = tensor_parallel_size;
            c.block_size = block_size;
            c.kv_cache_memory_bytes = kv_cache_memory_bytes;
            c.num_gpu_blocks_override = num_gpu_blocks_override;
            c.enable_prefix_caching = enable_prefix_caching;
            c.max_num_seqs = max_num_seqs;
            c.max_num_batched_tokens = max_num_batched_tokens;
            c.enable_chunked_prefill = enable_chunked_prefill;
            c.long_prefill_token_threshold = long_prefill_token_threshold;
            c.scheduling_policy = std::move(scheduling_policy);
            c.async_scheduling = async_scheduling;
            c.max_queued_requests = max_queued_requests;
            c.seed = seed;
            c.enable_kv_cache_events = enable_kv_cache_events;
            if (kv_arena) c.kv_arena = kv_arena->arena;
            c.max_num_partial_prefills = max_num_partial_prefills;
            c.max_long_partial_prefills = max_long_partial_prefills;
            c.scheduler_reserve_full_isl = scheduler_reserve_full_isl;
            c.watermark = watermark;
            c.max_queued_tokens = max_queued_tokens;
            c.flight_recorder_bytes = flight_recorder_bytes;
            c.flight_recorder_minutes = flight_recorder_minutes;
            c.flight_recorder_dir = std::move(flight_recorder_dir);
            c.flight_recorder_signal = flight_recorder_signal;
            c.load_format = std::move(load_format);
            c.gpu_memory_utilization = gpu_memory_utilization;
            c.gpu_memory_bytes = gpu_memory_bytes;
            c.enforce_eager = enforce_eager;
            c.validate();
            new (self) EngineConfig(std::move(c));
          },
          "model"_a, nb::kw_only(), "dtype"_a = EngineConfig{}.dtype, "max_model_len"_a = 0,
          "skip_tokenizer_init"_a = false, "device"_a = EngineConfig{}.device, "num_threads"_a = 0,
          "tensor_parallel_size"_a = 1, "block_size"_a = 16, "kv_cache_memory_bytes"_a = 0,
          "num_gpu_blocks_override"_a = 0, "enable_prefix_caching"_a = true,
          "max_num_seqs"_a = EngineConfig{}.max_num_seqs,
          "max_num_batched_tokens"_a = EngineConfig{}.max_num_batched_tokens,
          "enable_chunked_prefill"_a = true, "long_prefill_token_threshold"_a = 0,
          "scheduling_policy"_a = EngineConfig{}.scheduling_policy, "async_scheduling"_a = nb::none(),
          "max_queued_requests"_a = 0, "seed"_a = 0, "enable_kv_cache_events"_a = false,
          "kv_arena"_a = nb::none(), "max_num_partial_prefills"_a = 0, "max_long_partial_prefills"_a = 0,
          "scheduler_reserve_full_isl"_a = true, "watermark"_a = 0.0F, "max_queued_tokens"_a = 0,
          "flight_recorder_bytes"_a = EngineConfig{}.flight_recorder_bytes,
          "flight_recorder_minutes"_a = EngineConfig{}.flight_recorder_minutes, "flight_recorder_dir"_a = "",
          "flight_recorder_signal"_a = 0, "load_format"_a = EngineConfig{}.load_format,
          "gpu_memory_utilization"_a = EngineConfig{}.gpu_memory_utilization, "gpu_memory_bytes"_a = 0,
          "enforce_eager"_a = false)
      .def_ro("model", &EngineConfig::model)
      .def_ro("dtype", &EngineConfig::dtype)
      .def_ro("max_model_len", &EngineConfig::max_model_len)
      .def_ro("skip_tokenizer_init", &EngineConfig::skip_tokenizer_init)
      .def_ro("device", &EngineConfig::device)
      .def_ro("num_threads", &EngineConfig::num_threads)
      .def_ro("tensor_parallel_size", &EngineConfig::tensor_parallel_size)
      .def_ro("block_size", &EngineConfig::block_size)
      .def_ro("kv_cache_memory_bytes", &EngineConfig::kv_cache_memory_bytes)
      .def_ro("num_gpu_blocks_override", &EngineConfig::num_gpu_blocks_override)
      .def_ro("enable_prefix_caching", &EngineConfig::enable_prefix_caching)
      .def_ro("max_num_seqs", &EngineConfig::max_num_seqs)
      .def_ro("max_num_batched_tokens", &EngineConfig::max_num_batched_tokens)
      .def_ro("enable_chunked_prefill", &EngineConfig::enable_chunked_prefill)
      .def_ro("long_prefill_token_threshold", &EngineConfig::long_prefill_token_threshold)
      .def_ro("scheduling_policy", &EngineConfig::scheduling_policy)
      .def_ro("async_scheduling", &EngineConfig::async_scheduling)
      .def_ro("max_queued_requests", &EngineConfig::max_queued_requests)
      .def_ro("seed", &EngineConfig::seed)
      .def_ro("enable_kv_cache_events", &EngineConfig::enable_kv_cache_events)
      .def_ro("max_num_partial_prefills", &EngineConfig::max_num_partial_prefills)
      .def_ro("max_long_partial_prefills", &EngineConfig::max_long_partial_prefills)
      .def_ro("scheduler_reserve_full_isl", &EngineConfig::scheduler_reserve_full_isl)
      .def_ro("watermark", &EngineConfig::watermark)
      .def_ro("max_queued_tokens", &EngineConfig::max_queued_tokens)
      .def_ro("flight_recorder_bytes", &EngineConfig::flight_recorder_bytes)
      .def_ro("flight_recorder_minutes", &EngineConfig::flight_recorder_minutes)
      .def_ro("flight_recorder_dir", &EngineConfig::flight_recorder_dir)
      .def_ro("flight_recorder_signal", &EngineConfig::flight_recorder_signal)
      .def_ro("load_format", &EngineConfig::load_format)
      .def_ro("gpu_memory_utilization", &EngineConfig::gpu_memory_utilization)
      .def_ro("gpu_memory_bytes", &EngineConfig::gpu_memory_bytes)
      .def_ro("enforce_eager", &EngineConfig::enforce_eager);
}

}  // namespace quire::bindings
