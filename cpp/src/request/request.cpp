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

Request::Request(EngineCoreRequest&& request, int32_t hash_block_size, const HashSeed& hash_seed,
                 std::vector<BlockHash> recorded_hashes)
    : id_(request.request_id),
      sampling_params_(std::move(request.sampling_params)),
      eos_token_ids_(std::move(request.eos_token_ids)),
      mm_features_(std::move(request.mm_features)),
      lora_name_(std::move(request.lora_name)),
      cache_salt_(std::move(request.cache_salt)),
      user_(std::move(request.user)),
      priority_(request.priority),
      arrival_time_(request.arrival_time),
      deadline_(request.deadline),
      token_ids_(std::move(request.prompt_token_ids)),
      num_prompt_tokens_(static_cast<int32_t>(token_ids_.size())),
      hash_block_size_(hash_block_size),
      hash_chain_(hash_seed, lora_name_, cache_salt_),
      root_hash_(hash_chain_.name()),
      recorded_hashes_(std::move(recorded_hashes)) {
  token_ids_.insert(token_ids_.end(), request.output_token_ids.begin(), request.output_token_ids.end());
  block_hashes_.reserve(token_ids_.size() / static_cast<size_t>(hash_block_size_));
  update_block_hashes();
}

void Request::make_room() {
  const size_t num_tokens =
      static_cast<size_t>(num_prompt_tokens_) + static_cast<size_t>(sampling_params_.max_tokens);
  token_ids_.reserve(num_tokens);
  block_hashes_.reserve(num_tokens / static_cast<size_t>(hash_block_size_));
  constexpr size_t kMaxDrafts = 16;
  spec_token_ids.reserve(kMaxDrafts);
  for (RequestBlocks& held : blocks) held.ids.reserve(num_tokens / static_cast<size_t>(hash_block_size_) + 2);
}

void Request::append_output_token(int32_t token_id) {
  token_ids_.push_back(token_id);
  if (num_tokens() % hash_block_size_ == 0) update_block_hashes();
}

void Request::update_block_hashes() {
  const auto block_size = static_cast<size_t>(hash_block_size_);
  const size_t num_full_blocks = token_ids_.size() / block_size;
  while (block_hashes_.size() < num_full_blocks) {
    if (block_hashes_.size() < recorded_hashes_.size()) {
      block_hashes_.push_back(recorded_hashes_[block_hashes_.size()]);
      if (block_hashes_.size() == recorded_hashes_.size()) hash_chain_ = BlockHashChain(block_hashes_.back());
      continue;
    }
    const size_t begin = block_hashes_.size() * block_size;
    hash_chain_.add_block(token_ids().subspan(begin, block_size));
    // Placeholder tokens of two images are equal; their contents are told apart by name and place.
    for (size_t i = next_feature_; i < mm_features_.size(); ++i) {
      const MultiModalFeature& feature = mm_features_[i];
      const auto offset = static_cast<int64_t>(feature.offset) - static_cast<int64_t>(begin);
      if (offset >= hash_block_size_) break;
      hash_chain_.add_key(feature.mm_hash, offset);
      if (offset + feature.num_embeds <= hash_block_size_) next_feature_ = i + 1;
    }
    block_hashes_.push_back(hash_chain_.name());
  }
}

}  // namespace quire
