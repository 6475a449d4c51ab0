#include "worker/cudagraph_dispatcher.h"

#include <algorithm>

namespace quire {

std::vector<int32_t> CudagraphDispatcher::default_sizes(int32_t max_tokens) {
  std::vector<int32_t> sizes;
  for (int32_t size = 1; size < max_tokens;) {
    sizes.push_back(size);
    size += size < 4 ? size : size < 8 ? 4 : size < 64 ? 8 : size < 256 ? 16 : 32;
  }
  sizes.push_back(max_tokens);
  return sizes;
}

CudagraphDispatcher::Choice CudagraphDispatcher::dispatch(int32_t num_tokens, int32_t uniform_query_len) {
  const auto at_least = [num_tokens](const std::vector<int32_t>& sizes) {
    const auto found = std::lower_bound(sizes.begin(), sizes.end(), num_tokens);
    return found == sizes.end() ? 0 : *found;
  };
  Choice choice{CudagraphMode::kNone, num_tokens};
  const std::vector<int32_t>* full = nullptr;
  if (uniform_query_len == 1) full = &full_sizes_;
  if (uniform_query_len > 1 && uniform_query_len == draft_query_len_) full = &draft_sizes_;
  if (const int32_t size = full != nullptr ? at_least(*full) : 0) {
    choice = {CudagraphMode::kFull, size, uniform_query_len};
  } else if (const int32_t padded = at_least(piecewise_sizes_)) {
    choice = {CudagraphMode::kPiecewise, padded};
  }
  ++counts_[static_cast<size_t>(choice.mode)];
  return choice;
}

}  // namespace quire
