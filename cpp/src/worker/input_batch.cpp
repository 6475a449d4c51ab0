#include "worker/input_batch.h"

#include <algorithm>
#include <cstring>

#include "util/check.h"
#include "worker/swap_valid.h"

namespace quire {

InputBatch::InputBatch(int32_t max_num_seqs, int32_t max_model_len, std::span<const int32_t> block_sizes)
    : max_model_len_(max_model_len),
      token_ids_(static_cast<size_t>(max_num_seqs) * static_cast<size_t>(max_model_len) * sizeof(int32_t)),
      num_tokens_(static_cast<size_t>(max_num_seqs)),
      requests_(static_cast<size_t>(max_num_seqs)) {
  holes_.reserve(requests_.size());
  order_.reserve(requests_.size());
  for (int32_t block_size : block_sizes) {
    block_tables_.emplace_back(max_num_seqs, (max_model_len + block_size - 1) / block_size, block_size);
  }
}

void InputBatch::add(CachedRequestState& request) {
  QUIRE_CHECK(request.row < 0 && holes_.empty() && size_ < static_cast<int32_t>(requests_.size()));
  QUIRE_CHECK(request.token_ids.size() <= static_cast<size_t>(max_model_len_), "request ", request.request_id,
              " has ", request.token_ids.size(), " tokens");
  const int32_t row = size_++;
  const auto index = static_cast<size_t>(row);
  requests_[index] = &request;
  request.row = row;
  request.num_on_host = static_cast<int32_t>(request.token_ids.size());
  num_tokens_[index] = static_cast<int32_t>(request.token_ids.size());
  std::copy(request.token_ids.begin(), request.token_ids.end(), token_ids(row));
  for (size_t group = 0; group < block_tables_.size(); ++group) {
    block_tables_[group].set_row(row, request.block_ids[group]);
  }
}

void InputBatch::remove(CachedRequestState& request) {
  const int32_t row = request.row;
  QUIRE_CHECK(row >= 0 && requests_[static_cast<size_t>(row)] == &request);
  request.token_ids.assign(token_ids(row), token_ids(row) + num_tokens(row));
  for (size_t group = 0; group < block_tables_.size(); ++group) {
    const auto ids = block_tables_[group].row(row);
    request.block_ids[group].assign(ids.begin(), ids.end());
  }
  request.row = -1;
  requests_[static_cast<size_t>(row)] = nullptr;
  holes_.push_back(row);
}

void InputBatch::condense() {
  std::sort(holes_.begin(), holes_.end());
  for (int32_t hole : holes_) {
    while (size_ > 0 && !requests_[static_cast<size_t>(size_ - 1)]) --size_;
    if (hole >= size_) break;
    const int32_t last = --size_;
    CachedRequestState* moved = requests_[static_cast<size_t>(last)];
    requests_[static_cast<size_t>(hole)] = moved;
    requests_[static_cast<size_t>(last)] = nullptr;
    QUIRE_DCHECK(num_tokens(last) <= max_model_len_);
    moved->row = hole;
    num_tokens_[static_cast<size_t>(hole)] = num_tokens(last);
    std::memcpy(token_ids(hole), token_ids(last), static_cast<size_t>(num_tokens(last)) * sizeof(int32_t));
    for (BlockTable& table : block_tables_) table.move_row(last, hole);
  }
  while (size_ > 0 && !requests_[static_cast<size_t>(size_ - 1)]) --size_;
  holes_.clear();
}

void InputBatch::swap_rows(int32_t a, int32_t b) {
  if (a == b) return;
  CachedRequestState*& request_a = requests_[static_cast<size_t>(a)];
  CachedRequestState*& request_b = requests_[static_cast<size_t>(b)];
  int32_t& count_a = num_tokens_[static_cast<size_t>(a)];
  int32_t& count_b = num_tokens_[static_cast<size_t>(b)];
  QUIRE_CHECK(request_a && request_b, "rows ", a, " and ", b, " are not both in use");
  QUIRE_DCHECK(count_a <= max_model_len_ && count_b <= max_model_len_, count_a, " and ", count_b, " tokens");
  swap_valid(token_ids(a), count_a, token_ids(b), count_b);
  for (BlockTable& table : block_tables_) table.swap_rows(a, b);
  std::swap(count_a, count_b);
  std::swap(request_a, request_b);
  request_a->row = a;
  request_b->row = b;
}

void InputBatch::reorder(std::span<const int32_t> order) {
  QUIRE_CHECK(holes_.empty() && order.size() == static_cast<size_t>(size_), order.size(), " of ", size_,
              " rows");
  order_.assign(order.begin(), order.end());
  // Along each cycle of the permutation: the row that must end at `to` waits at `from`, and what lies at `to`
  // moves on to `from`.
  for (int32_t first = 0; first < size_; ++first) {
    int32_t to = first;
    for (int32_t from; (from = order_[static_cast<size_t>(to)]) != first; to = from) {
      QUIRE_CHECK(from >= 0 && from < size_ && from != to, "not a permutation: row ", from);
      swap_rows(to, from);
      order_[static_cast<size_t>(to)] = to;
    }
    order_[static_cast<size_t>(to)] = to;
  }
}

void InputBatch::append_token(int32_t row, int32_t token_id) {
  append_unknown_token(row);
  token_ids(row)[num_tokens(row) - 1] = token_id;
}

void InputBatch::append_unknown_token(int32_t row) {
  int32_t& count = num_tokens_[static_cast<size_t>(row)];
  QUIRE_CHECK(count < max_model_len_, "row ", row, " is full");
  ++count;
}

}  // namespace quire
