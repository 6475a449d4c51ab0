// What the flight recorder keeps: everything a scheduler was told, and a hash of everything it decided, so
// that the same decisions can be made again and compared.
//
// No text and no token ids: a prompt is its length and its block hashes, a result is how many tokens came and
// where a request stopped. Equal prefixes are equal hashes, and nothing else of the content matters.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "messages/archive.h"
#include "messages/engine_core_messages.h"
#include "messages/kv_cache_spec.h"
#include "messages/scheduler_output.h"

namespace quire {

inline constexpr std::array<char, 8> kRecordingMagic = {'Q', 'U', 'I', 'R', 'E', 'R', 'E', 'C'};
inline constexpr uint32_t kRecordingVersion = 8;

// The token that ends a replayed request.
inline constexpr int32_t kRecordedStop = -1;

// A request, without its content.
struct RecordedRequest {
  RequestId request_id = 0;
  int32_t num_prompt_tokens = 0;
  int32_t num_output_tokens = 0;  // generated before this engine saw it
  std::vector<KVBlockHash> block_hashes;
  int32_t max_tokens = 0;
  int32_t priority = 0;
  double arrival_time = 0.0;
  double deadline = 0.0;
  std::string user;
  std::vector<MultiModalFeature> mm_features;
  uint8_t waits_for_grammar = 0;    // until a kGrammarReady
  uint8_t has_prompt_logprobs = 0;  // and so reads no cached prefix
  RequestId fork_of = 0;            // as in EngineCoreRequest
  uint8_t awaits_forks = 0;
  LoraId lora_id = 0;

  template <class A>
  void fields(A& a) {
    a(request_id, num_prompt_tokens, num_output_tokens, block_hashes, max_tokens, priority, arrival_time,
      deadline, user, mm_features, waits_for_grammar, has_prompt_logprobs, fork_of, awaits_forks, lora_id);
  }
};

// What a KV connector answered since the event before, in the order of the questions. How many tokens could
// be loaded: -1 for not known yet, else twice their number, plus 1 when they are loaded while the request
// waits. What the workers must know: 1 when that is something. Whether the blocks of a finished request are
// to be held: 1 or 0.
using KVConnectorAnswers = std::vector<int64_t>;

struct RecordedAbort {
  RequestId request_id = 0;
  uint8_t status = 0;  // RequestStatus
  KVConnectorAnswers connector_answers{};

  template <class A>
  void fields(A& a) {
    a(request_id, status, connector_answers);
  }
};

// A call of schedule(), after advance(now).
struct RecordedSchedule {
  double now = 0.0;
  StepId step_id = 0;
  uint64_t hash = 0;  // of the SchedulerOutput; 0: nothing was scheduled
  int32_t num_reqs = 0;
  int32_t num_tokens = 0;
  int32_t num_running_reqs = 0;
  int32_t num_waiting_reqs = 0;
  int32_t num_free_blocks = 0;
  std::vector<int64_t> arena_answers;  // of memory shared with other engines, in the order of the questions
  KVConnectorAnswers connector_answers;

  template <class A>
  void fields(A& a) {
    a(now, step_id, hash, num_reqs, num_tokens, num_running_reqs, num_waiting_reqs, num_free_blocks,
      arena_answers, connector_answers);
  }
};

// A step's results. Where nothing else is said, each request that samples got one token, and the others none.
struct RecordedResult {
  double now = 0.0;
  StepId step_id = 0;
  uint8_t failed = 0;
  std::vector<int32_t> num_tokens;                 // of each request, if not as said above
  std::vector<int32_t> num_drafts;                 // for the next step, if any; as many as a grammar permits
  std::vector<std::pair<int32_t, int32_t>> stops;  // request of the step, and which of its tokens ended it
  std::vector<int32_t> errors;                     // requests of the step that failed, or whose grammar did
  std::vector<std::pair<RequestId, KVBlockHash>> new_hashes;  // of blocks that these tokens filled
  // From the KV connector's worker side, and from its scheduler's.
  std::vector<RequestId> finished_sending, finished_recving;
  std::vector<BlockId> invalid_block_ids;
  KVConnectorAnswers connector_answers;

  template <class A>
  void fields(A& a) {
    a(now, step_id, failed, num_tokens, num_drafts, stops, errors, new_hashes, finished_sending,
      finished_recving, invalid_block_ids, connector_answers);
  }
};

enum class RecordedEventKind : uint8_t {
  kAdd = 1,               // RecordedRequest
  kAbort = 2,             // RecordedAbort
  kSchedule = 3,          // RecordedSchedule
  kResult = 4,            // RecordedResult
  kPause = 5,             // uint8_t: PauseState
  kResetPrefixCache = 6,  // nothing
  // SchedulerSnapshot: the first event, and again whenever a segment of the ring begins.
  kSnapshot = 7,
  kGrammarReady = 8,  // RequestId: it is queued now
};

// What a pool of blocks looks like. Most blocks of a large pool are neither in use nor cached, and lie in the
// free list in order: only the rest costs space.
struct BlockPoolSnapshot {
  int32_t num_blocks = 0;
  std::vector<std::pair<BlockId, int32_t>> ref_counts;  // of blocks in use
  // In the order they are found: of equal ones, the oldest first.
  std::vector<std::pair<BlockId, KVBlockHash>> cached;
  std::vector<std::pair<BlockId, int32_t>> free;  // in the order they are handed out: runs of ascending ids
  std::vector<std::pair<int32_t, int32_t>> mapped_extents;  // runs of ascending indices

  template <class A>
  void fields(A& a) {
    a(num_blocks, ref_counts, cached, free, mapped_extents);
  }
};

struct RequestBlocksSnapshot {
  std::vector<BlockId> ids;
  int32_t num_cached = 0, num_skipped = 0, num_sent = 0, num_exact_tokens = 0;

  template <class A>
  void fields(A& a) {
    a(ids, num_cached, num_skipped, num_sent, num_exact_tokens);
  }
};

struct RequestSnapshot {
  RecordedRequest request;
  int32_t num_tokens = 0;  // known ones, output included
  uint8_t status = 0;
  uint64_t arrival_order = 0;
  int32_t num_overtaken = 0, num_computed_tokens = 0, num_output_placeholders = 0, num_steps_in_flight = 0,
          num_tokens_in_flight = 0, num_prefill_tokens = 0, num_cached_tokens = 0, num_preemptions = 0,
          num_results_to_drop = 0, num_charged_tokens = 0, num_spec_tokens = 0, num_external_tokens = 0,
          num_logprob_tokens = 0;
  uint8_t known_to_workers = 0, is_long_prefill = 0, kv_load_failed = 0, holds_lora = 0;
  double first_scheduled_time = 0.0;
  std::vector<RequestBlocksSnapshot> blocks;

  template <class A>
  void fields(A& a) {
    a(request, num_tokens, status, arrival_order, num_overtaken, num_computed_tokens, num_output_placeholders,
      num_steps_in_flight, num_tokens_in_flight, num_prefill_tokens, num_cached_tokens, num_preemptions,
      num_results_to_drop, num_charged_tokens, num_spec_tokens, num_external_tokens, num_logprob_tokens,
      known_to_workers, is_long_prefill, kv_load_failed, holds_lora, first_scheduled_time, blocks);
  }
};

struct InFlightSnapshot {
  StepId step_id = 0;
  std::vector<ScheduledRequest> scheduled_reqs;
  int64_t lent_bytes = 0;

  template <class A>
  void fields(A& a) {
    a(step_id, scheduled_reqs, lent_bytes);
  }
};

struct EncoderCacheSnapshot {
  int32_t num_free = 0;
  std::vector<std::string> hashes, unused, freed;
  std::vector<int32_t> num_embeds;
  std::vector<std::vector<RequestId>> owners;

  template <class A>
  void fields(A& a) {
    a(num_free, hashes, unused, freed, num_embeds, owners);
  }
};

struct LoraSlotsSnapshot {
  std::vector<LoraId> ids;          // in each slot; 0: nothing
  std::vector<uint64_t> last_used;  // of each slot
  uint64_t num_uses = 0;
  std::vector<LoraLoad> loads;  // that no step has taken along yet

  template <class A>
  void fields(A& a) {
    a(ids, last_used, num_uses, loads);
  }
};

// Everything a scheduler knows, between two calls.
struct SchedulerSnapshot {
  double now = 0.0;
  StepId next_step_id = 0;
  uint64_t next_arrival_order = 0;
  uint8_t pause_state = 0;
  std::vector<RequestSnapshot> requests;  // finished ones that steps in flight know included
  std::vector<size_t> running;            // indices into `requests`, in order
  std::vector<size_t> held;               // indices of finished ones with blocks in a KV connector's hands
  std::vector<InFlightSnapshot> in_flight;
  std::vector<std::vector<size_t>> in_flight_requests;  // indices into `requests`, for each step in flight
  std::vector<RequestId> finished_req_ids;
  std::vector<std::pair<double, RequestId>> deadlines;
  std::vector<std::pair<std::string, double>> user_counters;  // "fair"
  double last_counter = 0.0;
  EncoderCacheSnapshot encoder_cache;
  LoraSlotsSnapshot loras;
  std::vector<BlockPoolSnapshot> pools;
  int64_t bytes_held = 0, spare_bytes = 0, bytes_being_lent = 0;
  std::vector<KVExtent> extents;
  SchedulerStats stats;

  template <class A>
  void fields(A& a) {
    a(now, next_step_id, next_arrival_order, pause_state, requests, running, held, in_flight,
      in_flight_requests, finished_req_ids, deadlines, user_counters, last_counter, encoder_cache, loras,
      pools, bytes_held, spare_bytes, bytes_being_lent, extents, stats);
  }
};

// A 64-bit hash of all but the tokens' values. Not cryptographic.
uint64_t hash_scheduler_output(const SchedulerOutput& scheduler_output);

}  // namespace quire
