// Everything an engine is told at start.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "quire/export.h"

namespace quire {

// Memory for the KV caches of several engines of one process; see make_kv_arena.
class KVArena;
// Takes what an engine measures; see metrics.h.
class MetricSink;
// A processor and its name; see logits_processor.h.
struct NamedLogitsProcessor;

struct QUIRE_API EngineConfig {
  // ---- model ----
  std::string model;  // a Hugging Face directory: config.json, *.safetensors, tokenizer.json
  // "auto" (the checkpoint's; float16 becomes bfloat16 on the CPU), "float32", "bfloat16", "float16" (CUDA
  // only)
  std::string dtype = "auto";
  // "auto" (safetensors) or "safetensors"; "dummy": random weights, of the model directory only config.json
  // is read
  std::string load_format = "auto";
  int32_t max_model_len = 0;         // longest sequence, prompt and output; 0: what the model's config says
  bool skip_tokenizer_init = false;  // token ids in and out only; tokenizer.json is not read

  // ---- device ----
  // "auto" (CUDA where this build and this machine have it), "cpu", "cuda" (device 0) or "cuda:N"; with
  // several ranks the first of their devices
  std::string device = "auto";
  int32_t num_threads = 0;  // CPU threads that compute, per rank; 0: the cores this process may use
  // Ranks that share each layer: devices that follow each other and read each other's memory, or, on the CPU,
  // threads of one process.
  int32_t tensor_parallel_size = 1;
  // What weights, activations and KV cache together may take of each device's memory. Not used on the CPU.
  double gpu_memory_utilization = 0.9;  // (0, 1]: this part of it, less what others hold of that part
  int64_t gpu_memory_bytes = 0;         // exactly this much instead; 0: by utilization
  bool enforce_eager = false;           // no CUDA graphs: every kernel is launched by itself, which is slower

  // ---- KV cache ----
  int32_t block_size = 16;              // tokens a block: 16, 32 or 64
  int64_t kv_cache_memory_bytes = 0;    // 0: sized from the memory available (at most 4 GiB on the CPU)
  int32_t num_gpu_blocks_override = 0;  // exact number of blocks instead, block 0 included; 0: sized by bytes
  bool enable_prefix_caching = true;
  // What the names of cached prefixes depend on besides their content. Empty: drawn from the system, one for
  // all engines of the process, so that no client can compute them. Processes that compare KV events, or
  // share a connector's store, need the same text: a long one that only they know.
  std::string prefix_caching_hash_seed;
  bool enable_kv_cache_events = false;  // collect what EngineBase::take_kv_events returns
  // Where keys and values beside the engine's own come from and go to: the name of a connector that was
  // registered (kv_connector.h); empty: none. What it is told is its own affair: an address, a path.
  std::string kv_connector;
  std::string kv_connector_config;
  std::shared_ptr<KVArena> kv_arena;  // memory shared with other engines, instead of kv_cache_memory_bytes

  // ---- scheduler ----
  int32_t max_num_seqs = 64;              // requests running at once: [1, 4096]
  int32_t max_num_batched_tokens = 2048;  // tokens a step: [1, 1048576]
  bool enable_chunked_prefill = true;     // false: a prompt is computed in one step or waits
  // At most this many tokens of one request a step; longer prompts are "long"; 0: no limit.
  int32_t long_prefill_token_threshold = 0;
  int32_t max_num_partial_prefills = 0;  // requests in the middle of their prompt at once; 0: no limit
  // Long prompts in their middle at once: shorter ones overtake the rest; 0: no limit.
  int32_t max_long_partial_prefills = 0;
  // "fcfs"; "priority" (a lower value first, then arrival); "cache_aware" (the longest cached prefix of the
  // oldest few first); "fair" (the EngineRequest::user who was served least first)
  std::string scheduling_policy = "fcfs";
  // schedule a step while the one before it runs; without a value: on for CUDA, off for the CPU
  std::optional<bool> async_scheduling;
  bool scheduler_reserve_full_isl = true;  // a request starts only when its whole prompt would fit
  float watermark = 0.0F;                  // [0, 1): part of the blocks that a new request must leave free

  // ---- limits of one request: what exceeds them is refused ----
  int32_t max_logprobs = 20;            // logprobs, prompt_logprobs; -1: the whole vocabulary
  int32_t max_logprob_token_ids = 128;  // token ids in logprob_token_ids
  int32_t max_logit_bias = 1024;        // token ids in logit_bias
  int32_t max_stop_token_ids = 128;     // token ids in stop_token_ids
  int64_t max_stop_bytes = 65536;       // of all strings in stop together; the engine takes 28 times as much
  // Of all strings in bad_words together; each is compared with the end of the answer for each token.
  int64_t max_bad_words_bytes = 16384;
  int64_t max_extra_args_bytes = 65536;  // of extra_args as JSON
  // Log-probabilities in an answer, n x (logprobs, or the number of logprob_token_ids, + 1) x max_tokens;
  // each takes 12 bytes. And, by themselves, those of a prompt.
  int64_t max_answer_logprobs = 1 << 24;

  int64_t max_structured_output_bytes = 1 << 20;  // of a schema, or another text that says what fits

  // ---- structured output ----
  int32_t structured_output_threads =
      0;  // that compile grammars, and fill masks; 0: half the cores, at most 8
  // Where there are think_end_token_ids, answers are held to their grammars from behind those on, unless this
  // is set: an answer that never comes to them is not held to anything.
  bool enable_in_reasoning = false;
  // At most this many tokens that a grammar forces are computed in the step of the one before them; 0: none.
  // Answers stay the same. One step at a time is then under way.
  int32_t num_jump_forward_tokens = 0;
  // Of compiled grammars that no request uses, and a quarter of it of what grammars have in common.
  int64_t structured_output_cache_bytes = 512 << 20;

  // ---- admission ----
  int32_t max_queued_requests = 0;   // refuse more than this many unfinished completions; 0: no limit
  int32_t max_waiting_requests = 0;  // refuse what would have more completions wait to begin; 0: no limit
  int64_t max_queued_tokens = 0;     // refuse what brings their prompts above this many tokens; 0: no limit

  // ---- flight recorder ----
  int64_t flight_recorder_bytes = 16 << 20;  // memory for the last steps' schedule; 0: off
  double flight_recorder_minutes = 5.0;      // older than that is dropped even when there is room
  std::string flight_recorder_dir;           // of recordings that failures and signals leave; empty: none
  int32_t flight_recorder_signal = 0;        // this signal (SIGUSR2, say) writes one of every engine; 0: none

  // ---- the end ----
  // An Engine that has ended by a failure sends its process SIGTERM once its requests have been told, for
  // whoever supervises it to start it anew: after a lost device only a new process works.
  bool exit_on_dead = false;

  // ---- observers ----
  std::shared_ptr<MetricSink> metric_sink;  // told once a step what the engine measures; null: nobody
  // Told once, and why, when the engine has ended by a failure, before the callbacks of the requests that end
  // with it; on the thread of those callbacks. It must return soon and must not call back into the engine.
  std::function<void(const std::string& error)> on_dead;

  // ---- sampling ----
  // Names of registered processors, and paths of plugin libraries, with a '/': logits_processor.h.
  std::vector<std::string> logits_processors;
  // Processors that only this engine knows, to be listed by their names above.
  std::vector<std::shared_ptr<const NamedLogitsProcessor>> own_logits_processors;
  // What a reasoning block begins and ends with, for max_thinking_tokens and num_reasoning_tokens; empty:
  // there are none.
  std::vector<int32_t> think_start_token_ids;
  std::vector<int32_t> think_end_token_ids;
  // What requests that bring no seed get theirs from, in the order they come. Absent: drawn from the system.
  std::optional<uint64_t> seed;

  // Throws InvalidArgument naming the first field out of range. What depends on the model is checked
  // when it is loaded.
  void validate() const;
};

}  // namespace quire
