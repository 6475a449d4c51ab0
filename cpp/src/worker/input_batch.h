// The persistent batch: the requests the next step computes, a row each. Rows stay between steps and only
// what changed is applied.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "device/buffer.h"
#include "messages/scheduler_output.h"
#include "sampler/row_sampling.h"
#include "worker/block_table.h"

namespace quire {

// A request the worker knows, in the batch or not. Token ids live in the batch's row while it has one.
struct CachedRequestState {
  // What every step reads comes first.
  RequestId request_id = 0;
  int32_t num_prompt_tokens = 0;
  int32_t num_computed_tokens = 0;
  int32_t row = -1;
  int32_t slot = -1;        // where a device keeps its tokens, while it has a row
  int32_t num_sent = 0;     // of those, the first that are there already, or not needed there
  int32_t num_on_host = 0;  // the first that the batch's row has: a device's own are only counted there
  RowSampling sampling;     // of sampling_params
  SamplingParams sampling_params;
  std::vector<int32_t> eos_token_ids;
  std::vector<int32_t> token_ids;  // prompt, then output; current while row < 0
  BlockIdsByGroup block_ids;       // current while row < 0
};

// Not thread-safe; one per worker.
class InputBatch {
 public:
  InputBatch(int32_t max_num_seqs, int32_t max_model_len, std::span<const int32_t> block_sizes);

  // Gives the request the next free row and copies its tokens and block ids there.
  void add(CachedRequestState& request);
  // Copies them back and frees the row; `condense` must follow before the batch is used.
  void remove(CachedRequestState& request);
  // Moves the last rows into the holes, so that rows 0..size-1 are in use.
  void condense();

  // Changes places, for backends that want rows in a certain order. Only the valid tokens and block ids of
  // the two rows are copied. Both rows are in use.
  void swap_rows(int32_t a, int32_t b);
  // Row i becomes what row order[i] was. `order` is a permutation of the rows; there are no holes.
  void reorder(std::span<const int32_t> order);

  int32_t size() const { return size_; }
  CachedRequestState& request(int32_t row) { return *requests_[static_cast<size_t>(row)]; }

  int32_t* token_ids(int32_t row) {
    return reinterpret_cast<int32_t*>(token_ids_.data()) +
           static_cast<size_t>(row) * static_cast<size_t>(max_model_len_);
  }
  int32_t num_tokens(int32_t row) const { return num_tokens_[static_cast<size_t>(row)]; }
  void append_token(int32_t row, int32_t token_id);
  // One more, which a device knows.
  void append_unknown_token(int32_t row);
  int32_t max_model_len() const { return max_model_len_; }
  BlockTable& block_table(size_t group) { return block_tables_[group]; }
  size_t num_groups() const { return block_tables_.size(); }

 private:
  int32_t max_model_len_;
  int32_t size_ = 0;  // rows in use, holes included
  Buffer token_ids_;  // [max_num_seqs, max_model_len]: pages never touched cost nothing
  std::vector<int32_t> num_tokens_;
  std::vector<CachedRequestState*> requests_;  // null: a hole
  std::vector<BlockTable> block_tables_;
  std::vector<int32_t> holes_;
  std::vector<int32_t> order_;  // scratch of reorder
};

}  // namespace quire
