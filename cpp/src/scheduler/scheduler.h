// Decides what each step computes.
//
// There is no prefill phase and no decode phase: a request has num_computed_tokens and catches up with
// num_tokens_with_spec, running requests first, then waiting ones, within one token budget. Chunked prefill,
// prefix hits and speculation all fall out of that. When blocks run out, the youngest (or least urgent)
// running request is preempted and recomputed later.
//
// With more than one step in flight, step N+1 is planned before step N's tokens are known: a token yet to be
// sampled is a placeholder that counts as scheduled work.
//
// After Yu et al., "Orca" (OSDI 2022), Kwon et al., "PagedAttention" (SOSP 2023), and vLLM v1's Scheduler.
//
// Not thread-safe. Owned by EngineCore, called on its thread.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "kv_cache/kv_cache_manager.h"
#include "messages/model_runner_output.h"
#include "messages/scheduler_output.h"
#include "request/request.h"
#include "scheduler/request_queue.h"

namespace quire {

struct SchedulerConfig {
  int32_t max_num_seqs = 64;
  int32_t max_num_batched_tokens = 2048;
  int32_t max_model_len = 2048;
  bool enable_chunked_prefill = true;
  int32_t long_prefill_token_threshold = 0;  // 0: no limit
  bool enable_prefix_caching = true;
  std::string policy = "fcfs";
};

class Scheduler {
 public:
  Scheduler(const SchedulerConfig& config, const KVCacheConfig& kv_cache_config);

  // Takes a validated request. Throws InvalidArgument when its id is in use.
  void add_request(EngineCoreRequest&& request);

  // Ends a request at once, whatever its state, with `status`. Blocks are free on return, although a step in
  // flight may still write to them: steps run in order, so a later owner's writes come after. Returns false
  // when the request is unknown or already finished.
  bool finish_request(RequestId id, RequestStatus status);

  // Plans the next step into `out` (overwritten, its buffers reused). Nothing to do leaves
  // total_num_scheduled_tokens at 0; the caller then drops the plan and its finished ids are kept for the
  // next one.
  void schedule(SchedulerOutput& out);

  // Takes the results of a planned step, in planning order, and appends what each request produced to
  // `outputs`. A step that failed as a whole ends the requests in it with kFinishedError.
  void update_from_output(const SchedulerOutput& plan, const ModelRunnerOutput& result,
                          EngineCoreOutputs& outputs);

  bool has_unfinished_requests() const { return !requests_.empty(); }
  size_t num_unfinished_requests() const { return requests_.size(); }
  // Requests ended since the last plan that the workers still remember.
  bool has_finished_requests() const { return !finished_req_ids_.empty(); }
  bool reset_prefix_cache() { return kv_cache_manager_.reset_prefix_cache(); }
  std::vector<RequestId> unfinished_request_ids() const;
  const KVCacheManager& kv_cache_manager() const { return kv_cache_manager_; }
  SchedulerStats stats() const;

 private:
  void schedule_running(SchedulerOutput& out, int32_t& token_budget);
  void schedule_waiting(SchedulerOutput& out, int32_t& token_budget);
  int32_t num_tokens_to_schedule(const Request& request, int32_t token_budget) const;
  Request& choose_victim() const;
  void preempt(Request& request, SchedulerOutput& out);
  void plan(Request& request, int32_t num_new_tokens, BlockIdsByGroup& new_block_ids, bool was_waiting,
            SchedulerOutput& out);
  void unplan(Request& request, SchedulerOutput& out);
  void append_tokens(Request& request, const SampledTokens& sampled, EngineCoreOutput& output);
  RequestStatus check_stop(const Request& request, EngineCoreOutput& output) const;
  void finish(Request& request, RequestStatus status);

  SchedulerConfig config_;
  KVCacheManager kv_cache_manager_;
  std::unordered_map<RequestId, std::unique_ptr<Request>> requests_;
  std::unique_ptr<RequestQueue> waiting_;
  std::vector<Request*> running_;  // in the order they were scheduled
  std::vector<RequestId> finished_req_ids_;
  StepId next_step_id_ = 1;
  uint64_t next_arrival_order_ = 0;
  SchedulerStats stats_;
  ComputedBlocks computed_;        // scratch
  BlockIdsByGroup new_block_ids_;  // scratch
};

}  // namespace quire
