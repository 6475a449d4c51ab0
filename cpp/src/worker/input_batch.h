// The persistent batch: the requests the next step computes, a row each. Rows stay between steps and only
// what changed is applied.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/buffer.h"
#include "messages/scheduler_output.h"
#include "sampler/row_sampling.h"
#include "sampler/token_bans.h"
#include "util/check.h"
#include "worker/block_table.h"

namespace quire {

// A request the worker knows, in the batch or not.
struct CachedRequestState {
  // What every step reads comes first.
  RequestId request_id = 0;
  int32_t num_prompt_tokens = 0;
  int32_t num_computed_tokens = 0;
  // While it is in the batch: its row, which others' coming and going changes, and where its tokens and block
  // ids lie, which nothing changes.
  int32_t row = -1;
  int32_t state_index = -1;
  int32_t num_tokens = 0;   // prompt and output, while it is in the batch
  int32_t num_on_host = 0;  // the first of those that the host has: a device's own are only counted there
  int32_t num_sent = 0;     // the first that a device has already, or does not need
  // How many of draft_token_ids count. In a step they follow its num_tokens; after one whose tokens only the
  // device has, num_tokens counts the token that is certain, and up to num_drafts more may have been
  // accepted.
  int32_t num_drafts = 0;
  // Likeliest tokens at each position of the prompt; -1: no log-probabilities of it are wanted, or no more.
  int32_t num_prompt_logprobs = -1;
  LoraId lora_id = 0;              // 0: no adapter
  int32_t num_logprob_tokens = 0;  // leading tokens of the prompt that log-probabilities were computed behind
  uint32_t logits_processors = 0;  // those that use it, a bit each
  RowSampling sampling;            // of sampling_params
  Shared<SamplingParams> sampling_params;
  Shared<std::vector<int32_t>> eos_token_ids;
  std::unique_ptr<const TokenBans> bans;  // null: none
  Shared<std::vector<int32_t>> prompt_token_ids;
  std::vector<int32_t> output_token_ids;  // current while it is not in the batch
  BlockIdsByGroup block_ids;              // current while it is not in the batch
  std::vector<int32_t> draft_token_ids;   // -1: one that is never right

  // Current while the request is not in the batch.
  size_t num_kept_tokens() const { return prompt_token_ids->size() + output_token_ids.size(); }
};

// Not thread-safe; one per worker.
class InputBatch {
 public:
  InputBatch(int32_t max_num_seqs, int32_t max_model_len, std::span<const int32_t> block_sizes);

  // Gives the request the next free row and a state index, and copies its tokens and block ids there.
  void add(CachedRequestState& request);
  // Copies them back and frees both; `condense` must follow before the batch is used.
  void remove(CachedRequestState& request);
  // Moves the last rows into the holes, so that rows 0..size-1 are in use.
  void condense();

  // Changes places, for backends that want rows in a certain order: no token and no block id is copied. Both
  // rows are in use.
  void swap_rows(int32_t a, int32_t b);

  int32_t size() const { return size_; }
  CachedRequestState& request(int32_t row) { return *requests_[static_cast<size_t>(row)]; }
  // [size] of each row.
  std::span<const int32_t> state_indices() const {
    return std::span(state_indices_).first(static_cast<size_t>(size_));
  }

  // Tokens of a request in the batch: max_model_len places, the first num_on_host of them filled.
  int32_t* token_ids(const CachedRequestState& request) {
    return reinterpret_cast<int32_t*>(token_ids_.data()) +
           static_cast<size_t>(request.state_index) * static_cast<size_t>(max_model_len_);
  }
  void append_token(CachedRequestState& request, int32_t token_id);
  // Forgets the tokens from `num_tokens` on.
  static void truncate(CachedRequestState& request, int32_t num_tokens);
  // One more, which a device knows.
  void append_unknown_token(CachedRequestState& request) {
    QUIRE_CHECK(request.num_tokens < max_model_len_, "request ", request.request_id, " is full");
    ++request.num_tokens;
  }
  // The step computes these as well, behind its tokens.
  void set_drafts(CachedRequestState& request, std::span<const int32_t> draft_token_ids);
  // The first num_accepted drafts were right and count as tokens. The others are forgotten.
  void accept_drafts(CachedRequestState& request, int32_t num_accepted);
  int32_t max_model_len() const { return max_model_len_; }
  BlockTable& block_table(size_t group) { return block_tables_[group]; }
  size_t num_groups() const { return block_tables_.size(); }

 private:
  int32_t max_model_len_;
  int32_t size_ = 0;                           // rows in use, holes included
  std::vector<CachedRequestState*> requests_;  // by row; null: a hole
  std::vector<int32_t> state_indices_;         // by row
  std::vector<int32_t> free_state_indices_;
  // By state index.
  Buffer token_ids_;  // [max_num_seqs, max_model_len]: pages never touched cost nothing
  std::vector<BlockTable> block_tables_;
  std::vector<int32_t> holes_;
};

}  // namespace quire
