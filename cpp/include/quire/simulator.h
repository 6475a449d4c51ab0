// How a fleet of engines would serve a workload: the real scheduler, over a model of what a step costs.
#pragma once

#include <string>

#include "quire/export.h"

namespace quire {

// Runs a simulation and returns its report. The same options give the same report, byte for byte. Throws
// InvalidArgument naming the option, or the file, line and field.
//
// Options, a JSON object; every member may be absent:
//   "engine": EngineConfig's fields by name: max_model_len (2048), block_size (16), num_gpu_blocks_override
//   (4096,
//       block 0 included), enable_prefix_caching, max_num_seqs, max_num_batched_tokens,
//       enable_chunked_prefill, long_prefill_token_threshold, scheduling_policy, async_scheduling,
//       max_queued_requests; and the scheduler's max_num_partial_prefills, max_long_partial_prefills,
//       scheduler_reserve_full_isl, watermark.
//   "num_engines": 1
//   "router": "round_robin" (in turn), "least_loaded" (fewest prompt tokens to compute and output tokens to
//   sample;
//       it knows how long answers will be), or "prefix_aware" (the least loaded of up to four engines that
//       lately got the longest prefix of the prompt, in chunks of 64 tokens, unless its load is above
//       max_load_factor times the mean plus one full step; then the least loaded)
//   "max_load_factor": 1.25
//   "workload": the name of a file of JSON lines, sorted by arrival when it is read:
//           {"arrival": s, "prompt_len": n, "output_len": n, "prefix": "name", "prefix_len": n, "priority":
//           0,
//            "user": "", "deadline_ms": 0}         the first three are required
//           {"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [id of 512 tokens, ...]}
//       or an object, for one that is made up: "num_requests" 1000; "rate" 0 (requests a second, Poisson; 0:
//       all at once); log-normal lengths, rounded and cut off: "prompt_median" 120, "prompt_sigma" 1.2,
//       "prompt_min" 4, "prompt_max" 1024 (mean 216), "output_median" 140, "output_sigma" 0.9, "output_min"
//       1, "output_max" 1024 (mean 204); "prefix_share" 0 (of the requests begin with one of "num_prefixes"
//       16 prefixes of "prefix_len" 256 tokens, which their own prompt follows)
//   "calibration": the name of a file of measured steps, JSON lines {"num_tokens", "num_reqs",
//   "context_tokens",
//       "seconds"}, from which a cost model is fitted (non-negative least squares of the relative error)
//   "cost_model": instead, the coefficients: "seconds_per_step", "seconds_per_token", "seconds_per_request",
//       "seconds_per_context_token" (of the keys and values read). With neither, a built-in calibration is
//       used.
//   "host_seconds_per_step": 0, the host's part between two steps, which async_scheduling hides
//   "seed": 0, of a made-up workload, and of token ids
//   "num_threads": 0, all cores; only "round_robin" uses more than one. The report does not depend on it.
//
// A request whose prompt does not fit max_model_len is refused, and counted; outputs are cut off there.
//
// Report, a JSON object (times in seconds; a distribution has count, mean, p50, p90, p99, max; quantiles are
// exact to a quarter of a percent):
//   num_requests, num_finished, num_refused, num_expired (by their deadline), simulated_seconds,
//   requests_per_second, prompt_tokens_per_second, output_tokens_per_second, num_prompt_tokens,
//   num_output_tokens, ttft, itl (between two tokens of a request), e2e, queue_time (until first scheduled),
//   num_steps, num_scheduled_tokens, busy_fraction (of the engines' time), num_preemptions,
//   prefix_cache_hit_rate (of tokens looked up), prefix_cache_hits,
//   kv_cache: num_blocks (usable, of an engine), mean_utilization, peak_utilization, waste (of the slots in
//   use,
//       those without a token, averaged over time), mean_running_reqs (of an engine), peak_running_reqs,
//       contiguous: the same requests, were max_model_len slots set aside for each: waste, and
//       max_running_reqs that an engine would have room for,
//   engines: num_engines, and the most and fewest requests and scheduled tokens of one,
//   cost_model: coefficients, source, mean_relative_error,
//   timeline: bin_seconds, and running, waiting, kv_utilization in each bin,
//   cdf: of ttft and itl, pairs of [seconds, part of the values at or below].
QUIRE_API std::string simulate(const std::string& options_json);

}  // namespace quire
