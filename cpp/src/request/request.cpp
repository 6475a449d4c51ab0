#include "request/request.h"

#include <utility>

namespace quire {

FinishReason finish_reason(RequestStatus status) {
  switch (status) {
    case RequestStatus::kFinishedStopped: return FinishReason::kStop;
    case RequestStatus::kFinishedLengthCapped:
    case RequestStatus::kFinishedIgnored: return FinishReason::kLength;
    case RequestStatus::kFinishedAborted: return FinishReason::kAbort;
    case RequestStatus::kFinishedError: return FinishReason::kError;
    default: return FinishReason::kNone;
  }
}

const char* status_name(RequestStatus status) {
  switch (status) {
    case RequestStatus::kWaiting: return "WAITING";
    case RequestStatus::kWaitingForStructuredOutputGrammar: return "WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR";
    case RequestStatus::kWaitingForRemoteKvs: return "WAITING_FOR_REMOTE_KVS";
    case RequestStatus::kRunning: return "RUNNING";
    case RequestStatus::kPreempted: return "PREEMPTED";
    case RequestStatus::kFinishedStopped: return "FINISHED_STOPPED";
    case RequestStatus::kFinishedLengthCapped: return "FINISHED_LENGTH_CAPPED";
    case RequestStatus::kFinishedAborted: return "FINISHED_ABORTED";
    case RequestStatus::kFinishedIgnored: return "FINISHED_IGNORED";
    case RequestStatus::kFinishedError: return "FINISHED_ERROR";
  }
  return "?";
}

Request::Request(EngineCoreRequest&& request, int32_t block_size)
    : id_(request.request_id),
      sampling_params_(std::move(request.sampling_params)),
      eos_token_ids_(std::move(request.eos_token_ids)),
      priority_(request.priority),
      arrival_time_(request.arrival_time),
      token_ids_(std::move(request.prompt_token_ids)),
      num_prompt_tokens_(static_cast<int32_t>(token_ids_.size())),
      block_size_(block_size),
      extra_keys_hash_(hash_extra_keys(request.lora_name, request.cache_salt)) {
  // The whole sequence fits, so that appending a token never allocates.
  token_ids_.reserve(token_ids_.size() + static_cast<size_t>(sampling_params_.max_tokens));
  token_ids_.insert(token_ids_.end(), request.output_token_ids.begin(), request.output_token_ids.end());
  block_hashes_.reserve(token_ids_.capacity() / static_cast<size_t>(block_size_));
  update_block_hashes();
}

void Request::append_output_token(int32_t token_id) {
  token_ids_.push_back(token_id);
  if (num_tokens() % block_size_ == 0) update_block_hashes();
}

void Request::update_block_hashes() {
  const size_t num_full_blocks = token_ids_.size() / static_cast<size_t>(block_size_);
  while (block_hashes_.size() < num_full_blocks) {
    const BlockHash& parent = block_hashes_.empty() ? extra_keys_hash_ : block_hashes_.back();
    const size_t begin = block_hashes_.size() * static_cast<size_t>(block_size_);
    block_hashes_.push_back(hash_block(parent, token_ids().subspan(begin, static_cast<size_t>(block_size_))));
  }
}

}  // namespace quire
