// What the scheduler is told at construction.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>

#include "kv_cache/kv_arena.h"
#include "quire/kv_connector.h"
#include "request/block_hash.h"
#include "request/structured_output.h"

namespace quire {

struct SchedulerConfig {
  int32_t max_num_seqs = 64;
  int32_t max_num_batched_tokens = 2048;
  int32_t max_model_len = 2048;
  int32_t max_in_flight_steps = 1;  // scheduled, their results not yet taken
  std::string policy = "fcfs";      // see request_queue.h

  bool enable_chunked_prefill = true;
  // Tokens of one request a step; longer prompts are "long"; 0: no limit.
  int32_t long_prefill_token_threshold = 0;
  int32_t max_num_partial_prefills = 0;  // requests in the middle of their prompt; 0: no limit
  // Long prompts in their middle: shorter ones overtake the rest; 0: no limit.
  int32_t max_long_partial_prefills = 0;

  bool enable_prefix_caching = true;
  bool enable_kv_cache_events = false;
  bool scheduler_reserve_full_isl = true;  // a request starts only when all its known tokens would fit
  float watermark = 0.0F;                  // part of the blocks kept free when others run, [0, 1)

  int32_t num_lookahead_tokens = 0;  // slots past the scheduled tokens that a draft model writes
  // Where the running requests all decode, one that begins with a single token gets this many drafts of id
  // -1, which are never right: the step stays uniform, for a captured graph. 0: none.
  int32_t num_padding_drafts = 0;

  int32_t max_num_encoder_input_tokens = 0;  // embeddings the encoder may compute a step
  int32_t encoder_cache_size = 0;            // embeddings kept
  bool disable_chunked_mm_input = false;     // a multimodal input is computed in one step or waits

  int32_t max_loras = 0;  // adapters of running requests
  // That a step brings and computes with, and so may wait for. With others, requests begin a step later, in
  // which their adapters are there; with no other work in a step, one request begins all the same.
  int32_t max_awaited_lora_loads = std::numeric_limits<int32_t>::max();

  enum class KVLoadFailure { kRecompute, kFail };
  KVLoadFailure kv_load_failure_policy = KVLoadFailure::kRecompute;

  // Throws InvalidArgument for the first contradiction, by name and value. `block_size`: the largest group's.
  void validate(int32_t block_size) const;
};

// What the scheduler works with and does not own the making of. All may be null.
struct SchedulerParts {
  std::shared_ptr<StructuredOutputManager> structured_output_manager;
  std::shared_ptr<KVConnectorScheduler> kv_connector;
  std::shared_ptr<KVArena> kv_arena;  // shared with other engines
  std::function<void()> wake;         // from any thread: schedule() may have something to do now
  HashSeed hash_seed{};  // of block hashes; a secret where clients are not trusted, so no recording holds it
};

}  // namespace quire
