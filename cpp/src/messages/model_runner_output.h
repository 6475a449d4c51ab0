// One step's results, from the workers to the scheduler. Flat buffers, like SchedulerOutput's.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "messages/scheduler_output.h"

namespace quire {

// What one request of the step produced: ranges of the flat lists.
struct RequestResult {
  RequestId request_id = 0;
  uint32_t first_token = 0;
  int32_t num_tokens = 0;  // 1 to k + 1; none while the prompt is not yet computed
  uint32_t first_draft = 0;
  int32_t num_drafts = 0;  // proposed for the next step

  template <class A>
  void fields(A& a) {
    a(request_id, first_token, num_tokens, first_draft, num_drafts);
  }
};

// The few requests of a step that asked for log-probabilities: one entry for each sampled token.
struct RequestLogprobs {
  uint32_t result_index = 0;
  std::vector<PositionLogprobs> positions;

  template <class A>
  void fields(A& a) {
    a(result_index, positions);
  }
};

struct RequestError {
  uint32_t result_index = 0;
  std::string message;  // this request failed; the others did not

  template <class A>
  void fields(A& a) {
    a(result_index, message);
  }
};

// How a step's kernels were launched.
enum class CudagraphMode : uint8_t {
  kNone,       // one by one
  kPiecewise,  // graphs between the attentions: any batch of few enough tokens
  kFull,       // one graph: rows of one token, or of as many with drafts, sampled from at each
};
inline constexpr size_t kNumCudagraphModes = 3;

struct ModelRunnerOutput {
  StepId step_id = 0;
  std::vector<RequestResult> results;  // every request of the step, in SchedulerOutput's order
  std::vector<int32_t> sampled_token_ids;
  std::vector<int32_t> draft_token_ids;
  std::vector<RequestLogprobs> logprobs;  // by result_index, ascending
  // Of tokens of prompts, each given those before it: those that follow what a request had in earlier steps.
  std::vector<RequestLogprobs> prompt_logprobs;  // by result_index, ascending
  std::vector<RequestError> errors;              // by result_index, ascending
  std::string error;                             // the step failed as a whole
  uint8_t worker_lost = 0;                       // no other step will succeed either: the engine must end
  uint8_t has_cudagraphs = 0;                    // the worker has captured graphs
  CudagraphMode cudagraph_mode = CudagraphMode::kNone;  // how this step ran

  // From the KV connector's worker side.
  std::vector<RequestId> finished_sending;  // their blocks may be freed
  std::vector<RequestId> finished_recving;  // their blocks are filled
  std::vector<BlockId> invalid_block_ids;   // loads that failed, group 0

  // Empty, for step `id`; buffers keep their memory.
  void reset(StepId id) {
    step_id = id;
    results.clear();
    sampled_token_ids.clear();
    draft_token_ids.clear();
    logprobs.clear();
    prompt_logprobs.clear();
    errors.clear();
    error.clear();
    worker_lost = 0;
    has_cudagraphs = 0;
    cudagraph_mode = CudagraphMode::kNone;
    finished_sending.clear();
    finished_recving.clear();
    invalid_block_ids.clear();
  }
  // Appends the result of the step's next request.
  void add(RequestId request_id, std::span<const int32_t> tokens, std::span<const int32_t> drafts = {}) {
    results.push_back({request_id, static_cast<uint32_t>(sampled_token_ids.size()),
                       static_cast<int32_t>(tokens.size()), static_cast<uint32_t>(draft_token_ids.size()),
                       static_cast<int32_t>(drafts.size())});
    sampled_token_ids.insert(sampled_token_ids.end(), tokens.begin(), tokens.end());
    draft_token_ids.insert(draft_token_ids.end(), drafts.begin(), drafts.end());
  }
  std::span<const int32_t> token_ids(const RequestResult& result) const {
    return std::span(sampled_token_ids).subspan(result.first_token, static_cast<size_t>(result.num_tokens));
  }
  std::span<const int32_t> draft_ids(const RequestResult& result) const {
    return std::span(draft_token_ids).subspan(result.first_draft, static_cast<size_t>(result.num_drafts));
  }

  template <class A>
  void fields(A& a) {
    a(step_id, results, sampled_token_ids, draft_token_ids, logprobs, prompt_logprobs, errors, error,
      worker_lost, has_cudagraphs, cudagraph_mode, finished_sending, finished_recving, invalid_block_ids);
  }
};

}  // namespace quire
