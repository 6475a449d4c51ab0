// Everything an engine is told at start.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "quire/export.h"
#include "quire/field.h"
#include "quire/json_object.h"

namespace quire {

// Memory for the KV caches of several engines of one process; see make_kv_arena.
class KVArena;
// Takes what an engine measures; see metrics.h.
class MetricSink;
// A processor and its name; see logits_processor.h.
struct NamedLogitsProcessor;

// Each field's meaning and range is in the table below.
struct QUIRE_API EngineConfig {
  // Model.
  std::string model;
  std::string revision;
  std::string tokenizer;
  std::string tokenizer_revision;
  std::string download_dir;
  std::string dtype = "auto";
  std::string load_format = "auto";
  std::vector<std::string> plugins;
  bool use_tqdm_on_load = true;
  int32_t max_model_len = 0;
  bool skip_tokenizer_init = false;

  // Device.
  std::string device = "auto";
  int32_t num_threads = 0;
  int32_t tensor_parallel_size = 1;
  double gpu_memory_utilization = 0.9;
  int64_t gpu_memory_bytes = 0;
  bool enforce_eager = false;
  bool disable_cascade_attn = false;

  // KV cache.
  int32_t block_size = 16;
  int64_t kv_cache_memory_bytes = 0;
  int32_t num_gpu_blocks_override = 0;
  bool enable_prefix_caching = true;
  std::string prefix_caching_hash_seed;
  bool enable_kv_cache_events = false;
  std::string kv_connector;
  std::string kv_connector_config;
  std::shared_ptr<KVArena> kv_arena;  // memory shared with other engines, instead of kv_cache_memory_bytes

  // Scheduler.
  std::optional<int32_t> max_num_seqs;
  std::optional<int32_t> max_num_batched_tokens;
  bool enable_chunked_prefill = true;
  int32_t long_prefill_token_threshold = 0;
  int32_t max_num_partial_prefills = 0;
  int32_t max_long_partial_prefills = 0;
  std::string scheduling_policy = "fcfs";
  std::optional<bool> async_scheduling;
  bool scheduler_reserve_full_isl = true;
  float watermark = 0.0F;

  // Adapters.
  bool enable_lora = false;
  int32_t max_loras = 1;
  int32_t max_lora_rank = 16;
  int32_t max_cpu_loras = 0;
  bool enable_lora_experts = true;

  // Limits of one request: what exceeds them is refused.
  int32_t max_logprobs = 20;
  int32_t max_logprob_token_ids = 128;
  int32_t max_logit_bias = 1024;
  int32_t max_stop_token_ids = 128;
  int64_t max_stop_bytes = 65536;
  int64_t max_bad_words_bytes = 16384;
  int64_t max_extra_args_bytes = 65536;
  int64_t max_answer_logprobs = 1 << 24;
  int64_t max_structured_output_bytes = 1 << 20;

  // Structured output.
  int32_t structured_output_threads = 0;
  bool enable_in_reasoning = false;
  int32_t num_jump_forward_tokens = 0;
  int64_t structured_output_cache_bytes = 512 << 20;

  // Admission.
  int32_t max_queued_requests = 0;
  int32_t max_waiting_requests = 0;
  int64_t max_queued_tokens = 0;

  // The flight recorder.
  int64_t flight_recorder_bytes = 16 << 20;
  double flight_recorder_minutes = 5.0;
  std::string flight_recorder_dir;
  int32_t flight_recorder_signal = 0;

  // The end.
  bool exit_on_dead = false;

  // Observers.
  std::shared_ptr<MetricSink> metric_sink;  // told once a step what the engine measures; null: nobody
  // Told once, and why, when the engine has ended by a failure, before the callbacks of the requests that end
  // with it; on the thread of those callbacks. It must return soon and must not call back into the engine.
  std::function<void(const std::string& error)> on_dead;

  // Sampling.
  std::vector<std::string> logits_processors;
  // Processors that only this engine knows, to be listed by their names above.
  std::vector<std::shared_ptr<const NamedLogitsProcessor>> own_logits_processors;
  std::vector<int32_t> think_start_token_ids;
  std::vector<int32_t> think_end_token_ids;
  std::optional<uint64_t> seed;
  std::string generation_config = "auto";
  JsonObject override_generation_config;

  // Throws InvalidArgument naming the first field out of range. What depends on the model is checked
  // when it is loaded.
  void validate() const;
};

// Every field that can be written as text, in the order of the struct: what validate() and all who configure
// an engine know of it. kv_arena, metric_sink, on_dead and own_logits_processors are objects of this process.
inline constexpr std::tuple kEngineConfigFields{
    Field{"model", &EngineConfig::model,
          "a Hugging Face directory: config.json, *.safetensors, tokenizer.json; or a name on the hub, "
          "org/name "
          "or org/name@revision, from its local cache (what is not there yet, Python downloads)"},
    Field{"revision", &EngineConfig::revision,
          "of a model that is a name on the hub: a branch, a tag or a commit; empty: main. A directory has "
          "none"},
    Field{
        "tokenizer", &EngineConfig::tokenizer,
        "a directory, or a name on the hub, whose tokenizer and chat template are used; empty: the model's"},
    Field{
        "tokenizer_revision", &EngineConfig::tokenizer_revision,
        "of a tokenizer that is a name on the hub, or of the model's own where there is no tokenizer given"},
    Field{"download_dir", &EngineConfig::download_dir,
          "where models of the hub are cached; empty: where huggingface_hub has them"},
    Field{"dtype", &EngineConfig::dtype,
          "of weights and activations; auto is the checkpoint's, but that float16 becomes bfloat16 on the "
          "CPU; float16 is for CUDA only",
          one_of("auto float32 bfloat16 float16")},
    Field{"load_format", &EngineConfig::load_format,
          "auto is packed weights where some suit, else safetensors; dummy is random weights, of the model's "
          "directory only config.json is read",
          one_of("auto safetensors dummy")},
    Field{"plugins", &EngineConfig::plugins,
          "paths, with a '/', of libraries of models beside Quire's own (docs/adding_a_model.md); they are "
          "code, and stay loaded for the rest of the process"},
    Field{"use_tqdm_on_load", &EngineConfig::use_tqdm_on_load,
          "on a terminal, show how far the weights are loaded, where that takes a while"},
    Field{"max_model_len", &EngineConfig::max_model_len,
          "tokens of the longest sequence, prompt and output; 0: what the model's config says",
          at_least(0, "at least 1, or 0 for the model's own")},
    Field{"skip_tokenizer_init", &EngineConfig::skip_tokenizer_init,
          "token ids in and out only; tokenizer.json is not read"},
    Field{"device", &EngineConfig::device,
          "auto (CUDA where this build and this machine have it), cpu, cuda (device 0) or cuda:N; with "
          "several ranks the first of their devices",
          Range{.in_words = "'auto', 'cpu', 'cuda' or 'cuda:N'"}},
    Field{"num_threads", &EngineConfig::num_threads,
          "CPU threads that compute, per rank; 0: the cores this process may use",
          between(0, 1024, "between 1 and 1024, or 0 for all cores")},
    Field{"tensor_parallel_size", &EngineConfig::tensor_parallel_size,
          "ranks that share each layer: devices that follow each other and read each other's memory, or, on "
          "the CPU, threads of one process",
          between(1, 64)},
    Field{"gpu_memory_utilization", &EngineConfig::gpu_memory_utilization,
          "the part of each device's memory that weights, activations and KV cache may take together, less "
          "what others hold of that part; not used on the CPU",
          above_and_at_most(0, 1)},
    Field{"gpu_memory_bytes", &EngineConfig::gpu_memory_bytes,
          "exactly this much instead; 0: by gpu_memory_utilization",
          at_least(0, "a number of bytes, or 0 to go by gpu_memory_utilization")},
    Field{"enforce_eager", &EngineConfig::enforce_eager,
          "no CUDA graphs: every kernel is launched by itself, which is slower"},
    Field{"disable_cascade_attn", &EngineConfig::disable_cascade_attn,
          "on a device, keys and values that requests share are read for each of them, not once for all"},
    Field{"block_size", &EngineConfig::block_size, "tokens a block of the KV cache", one_of("16 32 64")},
    Field{"kv_cache_memory_bytes", &EngineConfig::kv_cache_memory_bytes,
          "of the KV cache; 0: sized from the memory available (at most 4 GiB on the CPU)",
          at_least(0, "a number of bytes, or 0 to size it from the memory available")},
    Field{"num_gpu_blocks_override", &EngineConfig::num_gpu_blocks_override,
          "the exact number of blocks instead, block 0 included; 0: sized by bytes",
          Range{.min = 2, .besides = 0, .in_words = "at least 2 (block 0 is kept back), or 0"}},
    Field{"enable_prefix_caching", &EngineConfig::enable_prefix_caching,
          "prompts that begin alike share their keys and values"},
    Field{"prefix_caching_hash_seed", &EngineConfig::prefix_caching_hash_seed,
          "what the names of cached prefixes depend on besides their content; empty: drawn from the system, "
          "one for all engines of the process, so that no client can compute them. Processes that compare KV "
          "events, or share a connector's store, need the same text: a long one that only they know",
          Range{}, Also::kNothing, SetBy::kClients, Shown::kNever},
    Field{"enable_kv_cache_events", &EngineConfig::enable_kv_cache_events,
          "collects what take_kv_events returns"},
    Field{"kv_connector", &EngineConfig::kv_connector,
          "where keys and values beside the engine's own come from and go to: the name of a connector that "
          "was registered (kv_connector.h); empty: none"},
    Field{"kv_connector_config", &EngineConfig::kv_connector_config,
          "what the connector is told, its own affair: an address, a path", Range{}, Also::kNothing,
          SetBy::kClients, Shown::kNever},
    Field{
        "max_num_seqs", &EngineConfig::max_num_seqs,
        "requests running at once; without a value: 64 on the CPU, 1024 on a device of 70 GiB and more, else "
        "256, and never more than max_num_batched_tokens or what the KV cache has blocks for",
        between(1, 4096)},
    Field{"max_num_batched_tokens", &EngineConfig::max_num_batched_tokens,
          "tokens a step; without a value: 2048, or 8192 on a device of 70 GiB and more, at least "
          "max_num_seqs, "
          "and without chunked prefill max_model_len",
          between(1, 1048576, "between 1 and 1048576")},
    Field{"enable_chunked_prefill", &EngineConfig::enable_chunked_prefill,
          "false: a prompt is computed in one step or waits"},
    Field{"long_prefill_token_threshold", &EngineConfig::long_prefill_token_threshold,
          "at most this many tokens of one request a step, and longer prompts are long; 0: no limit",
          at_least(0, "at least 1, or 0 for no limit")},
    Field{"max_num_partial_prefills", &EngineConfig::max_num_partial_prefills,
          "requests in the middle of their prompt at once; 0: no limit",
          at_least(0, "at least 1, or 0 for no limit")},
    Field{"max_long_partial_prefills", &EngineConfig::max_long_partial_prefills,
          "long prompts in their middle at once: shorter ones overtake the rest; 0: no limit",
          at_least(0, "at least 1, or 0 for no limit")},
    Field{"scheduling_policy", &EngineConfig::scheduling_policy,
          "who is first: fcfs; priority (a lower value, then arrival); cache_aware (the longest cached "
          "prefix of the oldest few); fair (the request's user who was served least)",
          one_of("fcfs priority cache_aware fair")},
    Field{"async_scheduling", &EngineConfig::async_scheduling,
          "schedules a step while the one before it runs; without a value: on for CUDA, off for the CPU"},
    Field{"scheduler_reserve_full_isl", &EngineConfig::scheduler_reserve_full_isl,
          "a request starts only when its whole prompt would fit"},
    Field{"watermark", &EngineConfig::watermark, "the part of the blocks that a new request must leave free",
          Range{.min = 0, .max = 1, .excludes_max = true}},
    Field{
        "enable_lora", &EngineConfig::enable_lora,
        "requests may name an adapter (LoRA) that computes with the model; without it adapters cost nothing"},
    Field{"max_loras", &EngineConfig::max_loras, "different adapters that run at a time", between(1, 1024)},
    Field{"max_lora_rank", &EngineConfig::max_lora_rank,
          "the highest rank that an adapter may have at any of its modules", between(1, 256)},
    Field{
        "max_cpu_loras", &EngineConfig::max_cpu_loras,
        "adapters held in the host's memory; the one used least recently goes when another comes, and comes "
        "back from its directory when it is asked for; 0: as many as max_loras",
        at_least(0, "at least max_loras, or 0 for as many as that")},
    Field{"enable_lora_experts", &EngineConfig::enable_lora_experts,
          "adapters may change the experts of mixtures, for which a device then keeps room: max_loras times "
          "that "
          "of rank max_lora_rank at every expert"},
    Field{"max_logprobs", &EngineConfig::max_logprobs,
          "the most that logprobs and prompt_logprobs may be; -1: the whole vocabulary",
          at_least(-1, "at least 0, or -1 for the whole vocabulary")},
    Field{"max_logprob_token_ids", &EngineConfig::max_logprob_token_ids, "token ids in logprob_token_ids",
          at_least(0)},
    Field{"max_logit_bias", &EngineConfig::max_logit_bias, "token ids in logit_bias", at_least(0)},
    Field{"max_stop_token_ids", &EngineConfig::max_stop_token_ids, "token ids in stop_token_ids",
          at_least(0)},
    Field{"max_stop_bytes", &EngineConfig::max_stop_bytes,
          "of all strings in stop together; the engine takes 28 times as much",
          between(0, 1 << 28, "between 0 and 268435456")},
    Field{"max_bad_words_bytes", &EngineConfig::max_bad_words_bytes,
          "of all strings in bad_words together; each is compared with the end of the answer for each token",
          between(0, 1 << 20, "between 0 and 1048576")},
    Field{"max_extra_args_bytes", &EngineConfig::max_extra_args_bytes, "of extra_args as JSON",
          between(0, 1 << 24, "between 0 and 16777216")},
    Field{"max_answer_logprobs", &EngineConfig::max_answer_logprobs,
          "log-probabilities in an answer, n x (logprobs, or the number of logprob_token_ids, + 1) x "
          "max_tokens, which take 12 bytes each; and, by themselves, those of a prompt",
          at_least(0)},
    Field{"max_structured_output_bytes", &EngineConfig::max_structured_output_bytes,
          "of a schema, or another text that says what fits", between(0, 1 << 28, "between 0 and 268435456")},
    Field{"structured_output_threads", &EngineConfig::structured_output_threads,
          "threads that compile grammars, and fill masks; 0: half the cores, at most 8",
          between(0, 64, "between 1 and 64, or 0 for half the cores")},
    Field{"enable_in_reasoning", &EngineConfig::enable_in_reasoning,
          "with think_end_token_ids: holds answers to their grammars from the first token on, not from "
          "behind those, which an answer may never come to"},
    Field{"num_jump_forward_tokens", &EngineConfig::num_jump_forward_tokens,
          "at most this many tokens that a grammar forces are computed in the step of the one before them; "
          "0: none. Answers stay the same. One step at a time is then under way",
          between(0, 32, "between 1 and 32, or 0 for none")},
    Field{"structured_output_cache_bytes", &EngineConfig::structured_output_cache_bytes,
          "of compiled grammars that no request uses, and a quarter of it of what grammars have in common",
          at_least(0)},
    Field{"max_queued_requests", &EngineConfig::max_queued_requests,
          "refuses more than this many unfinished completions; 0: no limit",
          at_least(0, "at least 1, or 0 for no limit")},
    Field{"max_waiting_requests", &EngineConfig::max_waiting_requests,
          "refuses what would have more completions wait to begin; 0: no limit",
          at_least(0, "at least 1, or 0 for no limit")},
    Field{"max_queued_tokens", &EngineConfig::max_queued_tokens,
          "refuses what brings the prompts of unfinished completions above this many tokens; 0: no limit",
          at_least(0, "at least 1, or 0 for no limit")},
    Field{"flight_recorder_bytes", &EngineConfig::flight_recorder_bytes,
          "memory for the last steps' schedule; 0: off",
          Range{.min = 1 << 16, .besides = 0, .in_words = "at least 65536, or 0 for no recorder"}},
    Field{"flight_recorder_minutes", &EngineConfig::flight_recorder_minutes,
          "what is older is dropped even when there is room",
          Range{.min = 0, .excludes_min = true, .besides = std::numeric_limits<double>::infinity()}},
    Field{"flight_recorder_dir", &EngineConfig::flight_recorder_dir,
          "where failures and signals leave recordings; empty: none"},
    Field{
        "flight_recorder_signal", &EngineConfig::flight_recorder_signal,
        "this signal (SIGUSR2, say) writes a recording of every engine; 0: none",
        between(
            0, 64,
            "the number of a signal that ends nothing and reports no fault (12 is SIGUSR2), or 0 for none")},
    Field{"exit_on_dead", &EngineConfig::exit_on_dead,
          "an Engine that has ended by a failure sends its process SIGTERM once its requests have been told, "
          "for whoever supervises it to start it anew: after a lost device only a new process works"},
    Field{"logits_processors", &EngineConfig::logits_processors,
          "names of registered processors, and paths of plugin libraries, with a '/': logits_processor.h"},
    Field{"think_start_token_ids", &EngineConfig::think_start_token_ids,
          "what a reasoning block begins with, for max_thinking_tokens and num_reasoning_tokens; empty: "
          "there are none"},
    Field{"think_end_token_ids", &EngineConfig::think_end_token_ids, "what a reasoning block ends with"},
    Field{"seed", &EngineConfig::seed,
          "what requests that bring no seed get theirs from, in the order they come; absent: drawn from the "
          "system"},
    Field{"generation_config", &EngineConfig::generation_config,
          "what default_sampling_params reads: auto is the model's own generation_config.json, vllm and none "
          "are "
          "no file, anything else is a directory that has one, or its path"},
    Field{"override_generation_config", &EngineConfig::override_generation_config,
          "keys of generation_config.json that count before the file's"},
};

}  // namespace quire
