#include "worker/input_batch.h"

#include <algorithm>
#include <utility>

#include "util/check.h"

namespace quire {

InputBatch::InputBatch(int32_t max_num_seqs, int32_t max_model_len, std::span<const int32_t> block_sizes)
    : max_model_len_(max_model_len),
      requests_(static_cast<size_t>(max_num_seqs)),
      state_indices_(static_cast<size_t>(max_num_seqs)),
      token_ids_(static_cast<size_t>(max_num_seqs) * static_cast<size_t>(max_model_len) * sizeof(int32_t)) {
  holes_.reserve(requests_.size());
  for (int32_t index = max_num_seqs; index-- > 0;) free_state_indices_.push_back(index);
  for (int32_t block_size : block_sizes) {
    block_tables_.emplace_back(max_num_seqs, (max_model_len + block_size - 1) / block_size, block_size);
  }
}

void InputBatch::add(CachedRequestState& request) {
  QUIRE_CHECK(request.row < 0 && holes_.empty() && size_ < static_cast<int32_t>(requests_.size()));
  QUIRE_CHECK(request.num_kept_tokens() <= static_cast<size_t>(max_model_len_), "request ",
              request.request_id, " has ", request.num_kept_tokens(), " tokens");
  request.row = size_++;
  request.state_index = free_state_indices_.back();
  free_state_indices_.pop_back();
  requests_[static_cast<size_t>(request.row)] = &request;
  state_indices_[static_cast<size_t>(request.row)] = request.state_index;
  request.num_tokens = request.num_on_host = static_cast<int32_t>(request.num_kept_tokens());
  request.num_sent = 0;
  const std::vector<int32_t>& prompt = *request.prompt_token_ids;
  int32_t* const output = std::copy(prompt.begin(), prompt.end(), token_ids(request));
  std::copy(request.output_token_ids.begin(), request.output_token_ids.end(), output);
  for (size_t group = 0; group < block_tables_.size(); ++group) {
    block_tables_[group].set(request.state_index, request.block_ids[group]);
  }
}

void InputBatch::remove(CachedRequestState& request) {
  QUIRE_CHECK(request.row >= 0 && requests_[static_cast<size_t>(request.row)] == &request);
  const int32_t* tokens = token_ids(request);
  request.output_token_ids.assign(tokens + request.prompt_token_ids->size(), tokens + request.num_tokens);
  for (size_t group = 0; group < block_tables_.size(); ++group) {
    const auto ids = block_tables_[group].ids(request.state_index);
    request.block_ids[group].assign(ids.begin(), ids.end());
  }
  requests_[static_cast<size_t>(request.row)] = nullptr;
  holes_.push_back(request.row);
  free_state_indices_.push_back(request.state_index);
  request.row = request.state_index = -1;
}

void InputBatch::condense() {
  std::sort(holes_.begin(), holes_.end());
  for (int32_t hole : holes_) {
    while (size_ > 0 && !requests_[static_cast<size_t>(size_ - 1)]) --size_;
    if (hole >= size_) break;
    const auto last = static_cast<size_t>(--size_), to = static_cast<size_t>(hole);
    requests_[to] = std::exchange(requests_[last], nullptr);
    requests_[to]->row = hole;
    state_indices_[to] = state_indices_[last];
  }
  while (size_ > 0 && !requests_[static_cast<size_t>(size_ - 1)]) --size_;
  holes_.clear();
}

void InputBatch::swap_rows(int32_t a, int32_t b) {
  CachedRequestState*& request_a = requests_[static_cast<size_t>(a)];
  CachedRequestState*& request_b = requests_[static_cast<size_t>(b)];
  QUIRE_CHECK(request_a && request_b, "rows ", a, " and ", b, " are not both in use");
  std::swap(request_a, request_b);
  request_a->row = a;
  request_b->row = b;
  std::swap(state_indices_[static_cast<size_t>(a)], state_indices_[static_cast<size_t>(b)]);
}

void InputBatch::truncate(CachedRequestState& request, int32_t num_tokens) {
  request.num_tokens = std::min(request.num_tokens, num_tokens);
  request.num_on_host = std::min(request.num_on_host, num_tokens);
}

void InputBatch::set_drafts(CachedRequestState& request, std::span<const int32_t> draft_token_ids) {
  const auto count = static_cast<int32_t>(draft_token_ids.size());
  QUIRE_CHECK(request.num_drafts == 0 && request.num_tokens + count < max_model_len_, "request ",
              request.request_id, " with ", request.num_tokens, " tokens has ", count, " drafts");
  request.draft_token_ids.assign(draft_token_ids.begin(), draft_token_ids.end());
  request.num_drafts = count;
  int32_t* place = token_ids(request) + request.num_tokens;
  for (int32_t id : draft_token_ids) *place++ = std::max(id, 0);  // whatever is computed of -1
}

void InputBatch::accept_drafts(CachedRequestState& request, int32_t num_accepted) {
  QUIRE_CHECK(num_accepted >= 0 && num_accepted <= request.num_drafts, "request ", request.request_id,
              " accepts ", num_accepted, " of ", request.num_drafts, " drafts");
  request.num_tokens += num_accepted;
  request.num_drafts = 0;
}

void InputBatch::append_token(CachedRequestState& request, int32_t token_id) {
  append_unknown_token(request);
  token_ids(request)[request.num_tokens - 1] = token_id;
}

}  // namespace quire
