// Decides what each step computes.
//
// There is no prefill phase and no decode phase: a request has num_computed_tokens and catches up with
// num_tokens_with_spec, running requests first, then waiting ones, within one token budget. Chunked prefill,
// prefix hits and speculation all fall out of that. When blocks run out, the youngest (or least urgent)
// running request is preempted and recomputed later.
//
// With more than one step in flight, step N+1 is scheduled before step N's tokens are known: a token yet to
// be sampled is a placeholder that counts as scheduled work.
//
// After Yu et al., "Orca" (OSDI 2022), Kwon et al., "PagedAttention" (SOSP 2023), and vLLM v1's Scheduler,
// whose decisions it makes (tests/conformance runs both); docs/adr/0004 lists where it differs, and why.
//
// What it decides depends only on what it is told, so a recording of its inputs replays exactly. Not
// thread-safe. Owned by EngineCore, called on its thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kv_cache/kv_cache_manager.h"
#include "messages/model_runner_output.h"
#include "messages/recording.h"
#include "messages/scheduler_output.h"
#include "request/request.h"
#include "scheduler/encoder_cache_manager.h"
#include "scheduler/lora_manager.h"
#include "scheduler/request_queue.h"
#include "scheduler/scheduler_config.h"
#include "scheduler/step_time_model.h"
#include "util/ring_queue.h"

namespace quire {

enum class PauseState : uint8_t {
  kUnpaused,
  kPausedNew,  // running requests go on, waiting ones wait
  kPausedAll,  // nothing is scheduled
};

class Scheduler {
 public:
  // Throws InvalidArgument for an unknown policy, or KV cache groups that do not go together. The rest of the
  // configuration was validated by whoever made it: SchedulerConfig::validate.
  Scheduler(const SchedulerConfig& config, const KVCacheConfig& kv_cache_config, SchedulerParts parts = {});
  ~Scheduler();

  // Takes a validated request. Throws InvalidArgument when its id is in use.
  void add_request(EngineCoreRequest&& request);

  // A request that awaits forks and has all its output stays, with its blocks, but runs no more. A fork of it
  // comes as a request like any other, as old as the one that it goes on from; it begins with that one's
  // blocks, the last one copied if it is not full, or, where these were needed elsewhere, like any other. The
  // stayer is finished when as many have begun as have come, or by name.

  // Ends a request at once, whatever its state, with `status`. Its blocks are free on return (although a step
  // in flight may still write to them: steps run in order, so a later owner's writes come after), unless the
  // KV connector still loads or sends them. Returns false, and counts it, when the request is unknown or
  // already finished.
  bool finish_request(RequestId id, RequestStatus status);

  // The time is `now` (seconds, the clock of arrival_time). Ends requests whose deadline has passed, with
  // kFinishedAborted; those whose grammar could not be compiled, or with an input that no step can take, with
  // kFinishedError; and those that came with all the output they may have, with kFinishedIgnored. What to
  // report is appended to `outputs`.
  void advance(double now, EngineCoreOutputs& outputs);

  // Schedules the next step into `out` (overwritten, its buffers reused). Returns false when there is nothing
  // to do: the caller then drops `out`, and what it must tell the workers is kept for the next one.
  bool schedule(SchedulerOutput& out);

  // Takes the results of the oldest step in flight and appends what each request produced to `outputs`. A
  // step that failed as a whole ends the requests in it with kFinishedError.
  void update_from_output(const SchedulerOutput& scheduler_output, const ModelRunnerOutput& result,
                          EngineCoreOutputs& outputs);

  // Whether a step that was scheduled samples tokens of requests that have a grammar.
  bool samples_by_grammar(const SchedulerOutput& scheduler_output) const;
  // The masks of such a step, into `out`, which is overwritten. Every step before it has returned.
  void make_grammar_output(const SchedulerOutput& scheduler_output, GrammarOutput& out);

  // Whether grammars propose drafts, which no result then holds.
  bool jumps_forward() const {
    return parts_.structured_output_manager &&
           parts_.structured_output_manager->num_jump_forward_tokens() > 0;
  }

  // How long a step of `num_tokens` took. Only predictions depend on it.
  void observe_step(int32_t num_tokens, double seconds) { step_time_model_.observe(num_tokens, seconds); }

  void set_pause_state(PauseState state) { pause_state_ = state; }
  PauseState pause_state() const { return pause_state_; }

  bool has_unfinished_requests() const { return !requests_.empty(); }
  size_t num_unfinished_requests() const { return requests_.size(); }
  // Finished requests whose blocks the KV connector still loads or sends.
  size_t num_held_requests() const { return held_.size(); }
  // Another engine asked for memory that this one may have to spare.
  bool memory_is_wanted() const { return kv_cache_manager_.memory_is_wanted(); }
  // Returns false, and does nothing, while a request holds blocks.
  bool reset_prefix_cache() { return kv_cache_manager_.reset_prefix_cache(); }
  // With no step in flight: running requests are preempted, and those that stay for forks give their blocks
  // up. Requests that wait with blocks that a KV connector has loaded keep them.
  void preempt_all();
  std::vector<RequestId> unfinished_request_ids() const;
  // Null when it is unknown or finished.
  const Request* find_request(RequestId id) const;
  const KVCacheManager& kv_cache_manager() const { return kv_cache_manager_; }
  const EncoderCacheManager& encoder_cache_manager() const { return encoder_cache_manager_; }
  const LoraManager& lora_manager() const { return loras_; }
  const SchedulerConfig& config() const { return config_; }
  SchedulerStats stats() const;
  // By adapter, in the order in which the first request of each began. `out` is overwritten.
  void count_running_loras(std::vector<RunningLora>& out) const;

  // For the flight recorder: everything the scheduler knows. Grammars are no part of it but that a request
  // waits for one, nor is what a KV connector knows.
  void save(SchedulerSnapshot& out,
            const std::function<const SchedulerOutput&(size_t)>& in_flight_output) const;
  // Into a fresh scheduler of the same configuration. `hashes_of` gives the block hashes that a request has
  // or will have. Throws InvalidArgument for what no scheduler can have saved.
  using RecordedHashes = std::function<std::vector<BlockHash>(RequestId)>;
  void restore(const SchedulerSnapshot& snapshot, const RecordedHashes& hashes_of);
  void add_recorded_request(const RecordedRequest& request, std::vector<BlockHash> hashes);
  // Requests whose grammars the last advance() found compiled; and in a replay, who tells.
  std::span<const RequestId> grammars_ready() const { return grammars_ready_; }
  void replay_grammar_ready(RequestId id);
  // Blocks that were filled since the last call; collected once asked for.
  void record_new_hashes(bool on) { records_new_hashes_ = on; }
  void take_new_hashes(std::vector<std::pair<RequestId, KVBlockHash>>& out);

 private:
  // A step whose results are still to come. `requests` may have finished meanwhile; they are kept until the
  // last step they are in has returned.
  struct InFlightStep {
    StepId step_id = 0;
    std::vector<Request*> requests;
    std::vector<std::shared_ptr<const void>> lora_uses;  // of requests whose adapters it may bring
    int64_t lent_bytes = 0;
  };
  enum class Admission { kAdmitted, kWaitsElsewhere, kStop };

  // scheduler.cpp: scheduling.
  void schedule_running(SchedulerOutput& out);
  void schedule_waiting(SchedulerOutput& out);
  Admission admit(Request& request, SchedulerOutput& out);
  bool load_remote(Request& request, int32_t num_external_tokens);
  void tell_connector_of_blocks(const Request& request, int32_t num_external_tokens);
  bool give_back_youngest_load();
  int32_t limit_chunk(int32_t start, int32_t num_left) const;
  size_t schedule_quiet(size_t i, SchedulerOutput& out);
  int32_t num_quiet_tokens(const Request& request) const;
  int32_t num_running_tokens(const Request& request) const;
  bool is_all_in_flight(const Request& request) const;
  int32_t limit_by_encoder(Request& request, int32_t start, int32_t num_new_tokens);
  Request& choose_victim() const;
  void preempt(Request& request, SchedulerOutput& out);
  void preempt(Request& request);
  void unschedule(Request& request, SchedulerOutput& out);
  void schedule_request(Request& request, int32_t num_new_tokens, bool was_waiting, SchedulerOutput& out);
  bool finish_schedule(SchedulerOutput& out);

  // scheduler_loras.cpp: adapters. A slot is the request's from before its first step until all that it may
  // compute is under way, or it runs no more.
  void begin_lora(Request& request);
  void end_lora(Request& request);
  Admission wait_for_lora(Request& request);
  bool overtake_for_lora();
  bool begins_when_its_lora_is_there(const Request& request) const;
  void bring_loras_of_next_step(Request& first);

  // scheduler_update.cpp: results.
  void take_result(Request& request, const ScheduledRequest& scheduled, const RequestResult& result,
                   const ModelRunnerOutput& all, EngineCoreOutputs& outputs);
  void take_token(Request& request, int32_t token_id, EngineCoreOutputs& outputs);
  void append_tokens(Request& request, std::span<const int32_t> token_ids, const RequestLogprobs* logprobs,
                     EngineCoreOutputs& outputs);
  static EngineCoreOutput& begin_output(const Request& request, EngineCoreOutputs& outputs);
  RequestStatus append_token(Request& request, int32_t token_id, EngineCoreOutput& output,
                             EngineCoreOutputs& outputs);
  void end_output(Request& request, RequestStatus status, EngineCoreOutput& output);
  RequestStatus check_stop(const Request& request, EngineCoreOutput& output) const;
  void take_drafts(Request& request, std::span<const int32_t> drafts);
  void release_encoder_inputs(Request& request);
  void fail_step(const ModelRunnerOutput& result, InFlightStep& step, EngineCoreOutputs& outputs);
  void update_from_kv_connector(const ModelRunnerOutput& result, EngineCoreOutputs& outputs);
  void handle_invalid_blocks(std::span<const BlockId> invalid, EngineCoreOutputs& outputs);

  // scheduler_requests.cpp: requests come, change state and go.
  void add(std::unique_ptr<Request> request, bool waits_for_grammar = false);
  void add_deadline(const Request& request);
  void take_from_grammar(Request& request);
  void finish(Request& request, RequestStatus status);
  void report_finish(Request& request, RequestStatus status, std::string error, EngineCoreOutputs& outputs);
  void start_over(Request& queued);
  // A request that awaits forks has all its output.
  void stay(Request& request);
  // That one while its blocks are there; null when `fork` is no fork.
  const Request* find_parent(const Request& fork) const;
  void end_fork(Request& fork);
  void finish_forked();
  // Takes the blocks of the youngest that stay for forks. False when there are none.
  bool take_blocks_kept_for_forks();
  void drop_finished();
  void drop_finished_if_idle();
  // Valid until the next of their kind.
  KVConnectorRequest connector_view(const Request& request);
  KVConnectorBlocks connector_blocks(const Request& request);

  SchedulerConfig config_;
  SchedulerParts parts_;
  KVCacheManager kv_cache_manager_;
  EncoderCacheManager encoder_cache_manager_;
  LoraManager loras_;
  std::unique_ptr<RequestQueue> waiting_;
  int32_t watermark_blocks_ = 0;
  PauseState pause_state_ = PauseState::kUnpaused;

  RequestTotals totals_;                                              // kept by the requests
  std::unordered_map<RequestId, std::unique_ptr<Request>> requests_;  // unfinished
  std::vector<Request*> running_;  // in the order they began; those that ended until drop_finished()
  std::vector<Request*> waiting_for_grammar_;
  std::vector<RequestId> grammars_ready_;
  size_t num_grammars_ = 0;                  // of unfinished requests
  std::vector<GrammarMasks> grammar_masks_;  // of the step at hand
  // Ended by advance(): they came with all the output they may have, or (with why) can never be scheduled.
  std::vector<std::pair<RequestId, std::string>> ended_on_arrival_;
  std::unordered_map<RequestId, std::unique_ptr<Request>> held_;  // finished, blocks in the connector's hands
  std::vector<std::unique_ptr<Request>> finished_;                // perhaps still in a step in flight
  std::vector<RequestId> forked_;  // stayed for forks, and all of these have begun; empty between calls
  bool running_has_left_ = false;  // some that finished, or stay for forks
  std::vector<RequestId> finished_req_ids_;              // the workers still know them
  std::vector<std::pair<double, RequestId>> deadlines_;  // a heap, the earliest first
  double now_ = 0.0;

  RingQueue<InFlightStep> in_flight_;
  StepId next_step_id_ = 1;
  uint64_t next_arrival_order_ = 0;
  SchedulerStats stats_;
  StepTimeModel step_time_model_;
  bool records_new_hashes_ = false;
  std::vector<std::pair<RequestId, KVBlockHash>> new_hashes_;

  // The step being scheduled.
  int32_t token_budget_ = 0;
  int32_t encoder_budget_ = 0;
  bool running_prefills_ = false;     // some scheduled running request was in the middle of its prefill
  size_t num_scheduled_running_ = 0;  // the first of scheduled_ were running
  std::vector<Request*> scheduled_;   // the i-th of out.scheduled_reqs
  const std::vector<int32_t> padding_drafts_;
  std::vector<int32_t> encoder_inputs_;  // that the request at hand needs computed
  ComputedBlocks computed_;
  // The connector does not know yet, no slot is to be had for the adapter, or that is only coming.
  std::vector<Request*> asked_later_;
  Request* first_without_lora_ = nullptr;  // of the latter; null: none
  int32_t num_without_lora_ = 0;
  std::vector<std::shared_ptr<const void>> lora_uses_;
  std::vector<KVConnectorScheduled> connector_scheduled_;
  std::vector<KVBlockHash> connector_hashes_;
  std::vector<std::span<const int32_t>> connector_blocks_;
};

}  // namespace quire
