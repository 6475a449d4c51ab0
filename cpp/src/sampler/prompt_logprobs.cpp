#include "sampler/prompt_logprobs.h"

#include <algorithm>
#include <numeric>

#include "sampler/logprobs.h"
#include "sampler/sampler.h"

namespace quire {

PromptLogprobs::PromptLogprobs(const KernelTable& ops, const SamplerConfig& config, StagingRing* staging)
    : ops_(ops),
      vocab_size_(config.vocab_size),
      staging_(staging),
      results_(static_cast<size_t>(config.ring_size)) {}

void PromptLogprobs::push_most(StagingMeter& meter, const SamplerConfig& config) {
  const auto positions = static_cast<size_t>(config.max_num_batched_tokens);
  meter.push<int32_t>(positions);
  meter.push<int32_t>(positions);
}

void PromptLogprobs::stage(int32_t ring_index, std::span<const PromptChunk> chunks) {
  StepResult& result = results_[static_cast<size_t>(ring_index)];
  result.chunks.clear();
  result.token_ids.clear();
  result.num_top = result.num_whole = num_positions_ = 0;
  if (chunks.empty()) return;
  for (const PromptChunk& chunk : chunks) {
    const bool is_whole = chunk.num_top > kMaxTopLogprobs;
    result.chunks.push_back(
        {chunk.result_index, num_positions_, chunk.count, chunk.num_top, is_whole ? result.num_whole : -1});
    if (is_whole) {
      result.num_whole += chunk.count;
    } else {
      result.num_top = std::max(result.num_top, chunk.num_top);
    }
    result.token_ids.insert(result.token_ids.end(), chunk.next_token_ids, chunk.next_token_ids + chunk.count);
    num_positions_ += chunk.count;
  }
  make_room(result);
  const size_t positions = result.positions();
  if (staging_ != nullptr) {
    rows_ = staging_->push<int32_t>(positions);
    token_ids_ = staging_->push<int32_t>(positions);
    std::copy(result.token_ids.begin(), result.token_ids.end(), token_ids_.host);
  } else {
    host_rows_.resize(positions);
    rows_ = {host_rows_.data(), host_rows_.data()};
    token_ids_ = {result.token_ids.data(), result.token_ids.data()};
  }
  int32_t* row = rows_.host;
  for (const PromptChunk& chunk : chunks) {
    std::iota(row, row + chunk.count, chunk.first_row);
    row += chunk.count;
  }
}

void PromptLogprobs::make_room(StepResult& result) {
  const size_t words =
      result.whole() + static_cast<size_t>(result.num_whole) * static_cast<size_t>(vocab_size_);
  if (staging_ == nullptr) {
    result.buffer.resize(words);
    result.words = result.buffer.data();
    return;
  }
  if (words > result.pinned_words) {
    result.pinned = {};  // its step's results were taken
    result.pinned_words = 0;
    result.pinned = make_pinned(staging_->runtime(), words * sizeof(int32_t));
    result.pinned_words = words;
  }
  result.words = static_cast<int32_t*>(result.pinned.get());
}

void PromptLogprobs::compute(const LaunchContext& launch, TensorView logits, int32_t ring_index,
                             int64_t begin) {
  const StepResult& result = results_[static_cast<size_t>(ring_index)];
  const auto floats = [&](size_t at) { return reinterpret_cast<float*>(result.words + at); };
  const auto first = static_cast<size_t>(begin);
  const size_t first_top = first * static_cast<size_t>(result.num_top);
  ops_.top_logprobs(launch,
                    {logits, token_ids_.device + begin, result.num_top, floats(first),
                     result.words + result.positions() + first, result.words + result.top_ids() + first_top,
                     floats(result.top_logprobs() + first_top)});
  const int64_t end = begin + logits.shape[0];
  for (const Chunk& chunk : result.chunks) {
    const int64_t from = std::max<int64_t>(begin, chunk.first);
    const int64_t to = std::min<int64_t>(end, chunk.first + chunk.count);
    if (chunk.first_whole < 0 || from >= to) continue;
    const auto place = static_cast<size_t>(chunk.first_whole + from - chunk.first);
    ops_.log_softmax(launch,
                     {floats(result.whole() + place * static_cast<size_t>(vocab_size_)), DType::kFloat32,
                      to - from, vocab_size_},
                     logits.rows(from - begin, to - from));
  }
}

void PromptLogprobs::take(int32_t ring_index, std::vector<RequestLogprobs>& logprobs) {
  StepResult& result = results_[static_cast<size_t>(ring_index)];
  const auto floats = [&](size_t at) { return reinterpret_cast<const float*>(result.words + at); };
  const auto vocab = static_cast<size_t>(vocab_size_);
  for (const Chunk& chunk : result.chunks) {
    RequestLogprobs& entry = logprobs.emplace_back();
    entry.result_index = chunk.result_index;
    entry.positions.resize(static_cast<size_t>(chunk.count));
    for (size_t i = 0; i < entry.positions.size(); ++i) {
      PositionLogprobs& position = entry.positions[i];
      const size_t at = static_cast<size_t>(chunk.first) + i;
      position.reserve(1 + static_cast<size_t>(chunk.num_top));
      position.push_back({result.token_ids[at], *floats(at), result.words[result.positions() + at]});
      if (chunk.first_whole >= 0) {
        const size_t place = static_cast<size_t>(chunk.first_whole) + i;
        append_top_logprobs({floats(result.whole() + place * vocab), vocab}, chunk.num_top, position, order_);
        continue;
      }
      for (size_t k = 0; k < static_cast<size_t>(chunk.num_top); ++k) {
        const size_t top = at * static_cast<size_t>(result.num_top) + k;
        position.push_back({result.words[result.top_ids() + top], *floats(result.top_logprobs() + top),
                            static_cast<int32_t>(k) + 1});
      }
    }
  }
  result.chunks.clear();
}

}  // namespace quire
