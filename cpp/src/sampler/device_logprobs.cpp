#include "sampler/device_logprobs.h"

#include <algorithm>

#include "sampler/logprobs.h"
#include "util/check.h"

namespace quire {
size_t DeviceLogprobs::Layout::top_logprobs() const { return (2 + kMaxTopLogprobs) * rows; }
size_t DeviceLogprobs::Layout::words() const { return (2 + 2 * kMaxTopLogprobs) * rows; }

DeviceLogprobs::DeviceLogprobs(const KernelTable& ops, const SamplerConfig& config, StagingRing& staging)
    : ops_(ops),
      vocab_size_(config.vocab_size),
      staging_(staging),
      layout_{static_cast<size_t>(config.max_num_rows)},
      pinned_(make_pinned(staging.runtime(),
                          static_cast<size_t>(config.ring_size) * layout_.words() * sizeof(int32_t))),
      results_(static_cast<size_t>(config.ring_size)) {}

void DeviceLogprobs::stage(int32_t ring_index, std::span<const SamplingRow> rows) {
  StepResult& result = results_[static_cast<size_t>(ring_index)];
  result.rows.clear();
  result.ids.clear();
  result.num_top = result.num_whole = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (!rows[i].sampling.wants_logprobs) continue;
    const std::vector<int32_t>& ids = rows[i].params->logprob_token_ids;
    const int32_t num_top = ids.empty() ? std::min(*rows[i].params->logprobs, vocab_size_) : 0;
    const bool is_whole = num_top > kMaxTopLogprobs;
    result.rows.push_back({i, rows[i].result_index, num_top, is_whole ? result.num_whole++ : -1,
                           result.ids.size(), ids.size()});
    result.ids.insert(result.ids.end(), ids.begin(), ids.end());
    if (!is_whole) result.num_top = std::max(result.num_top, num_top);
  }
  if (result.rows.empty()) return;
  rows_ = staging_.push<int32_t>(result.rows.size());
  for (size_t i = 0; i < result.rows.size(); ++i) rows_.host[i] = static_cast<int32_t>(result.rows[i].row);
  const size_t more_words = whole_words(result) + 2 * result.ids.size();
  if (more_words <= result.more_words) return;
  result.more = {};  // its step's results were taken
  result.more = make_pinned(staging_.runtime(), more_words * sizeof(int32_t));
  result.more_words = more_words;
}

void DeviceLogprobs::copy_logits(const LaunchContext& launch, ActivationArena& arena, int32_t ring_index,
                                 TensorView logits) {
  const auto count = static_cast<int64_t>(results_[static_cast<size_t>(ring_index)].rows.size());
  if (count == 0) return;
  own_logits_ = arena.take(DType::kFloat32, count, vocab_size_);
  ops_.gather_rows(launch, own_logits_, logits, {rows_.device, DType::kInt32, count});
}

void DeviceLogprobs::compute(const LaunchContext& launch, ActivationArena& arena, int32_t ring_index,
                             int32_t* token_ids, int64_t num_rows) {
  StepResult& result = results_[static_cast<size_t>(ring_index)];
  const auto count = static_cast<int64_t>(result.rows.size());
  if (count == 0) return;
  // Ids travel as floats: a row is moved bit by bit.
  const TensorView chosen = arena.take(DType::kFloat32, count, 1);
  ops_.gather_rows(launch, chosen, {token_ids, DType::kFloat32, num_rows, 1},
                   {rows_.device, DType::kInt32, count});
  int32_t* words = this->words(ring_index);
  ops_.top_logprobs(
      launch, {own_logits_, chosen.as<int32_t>(), result.num_top,
               reinterpret_cast<float*>(words + layout_.chosen_logprob()), words + layout_.chosen_rank(),
               words + layout_.top_ids(), reinterpret_cast<float*>(words + layout_.top_logprobs())});
  if (!result.ids.empty()) compute_ids(launch, result);
  // Last: rows may be overwritten.
  auto* whole = static_cast<float*>(result.more.get());
  for (int64_t i = 0; i < count && result.num_whole > 0; ++i) {
    const int32_t place = result.rows[static_cast<size_t>(i)].whole;
    if (place < 0) continue;
    ops_.log_softmax(launch, {whole + int64_t{place} * vocab_size_, DType::kFloat32, 1, vocab_size_},
                     own_logits_.rows(i, 1));
  }
}

// A roomful of ids at a time.
void DeviceLogprobs::compute_ids(const LaunchContext& launch, StepResult& result) {
  auto* logprobs = static_cast<float*>(result.more.get()) + whole_words(result);
  auto* ranks = static_cast<int32_t*>(result.more.get()) + whole_words(result) + result.ids.size();
  const size_t mark = staging_.mark();
  size_t begin = 0, row = 0;  // `row` has the id at `begin`
  while (begin < result.ids.size()) {
    if (begin > 0) staging_.rewind(mark, launch.stream);
    const size_t room = staging_.available() / (2 * sizeof(int32_t));
    QUIRE_CHECK(room > kStagingAlignment, staging_.available(), " bytes for ids");
    const size_t count = std::min(room - kStagingAlignment, result.ids.size() - begin);
    const auto rows = staging_.push<int32_t>(count);
    const auto ids = staging_.push<int32_t>(count);
    for (size_t i = 0; i < count; ++i) {
      while (begin + i >= result.rows[row].first_id + result.rows[row].num_ids) ++row;
      rows.host[i] = static_cast<int32_t>(row);
      ids.host[i] = result.ids[begin + i];
    }
    staging_.send(launch.stream);
    TopLogprobsArgs args{};
    args.logits = own_logits_;
    args.chosen_token_id = ids.device;
    args.chosen_logprob = logprobs + begin;
    args.chosen_rank = ranks + begin;
    args.row = rows.device;
    args.num_chosen = static_cast<int32_t>(count);
    ops_.top_logprobs(launch, args);
    begin += count;
  }
}

void DeviceLogprobs::take(int32_t ring_index, std::span<const int32_t> token_ids,
                          std::vector<RequestLogprobs>& logprobs) {
  StepResult& result = results_[static_cast<size_t>(ring_index)];
  const int32_t* words = this->words(ring_index);
  const auto* chosen_logprob = reinterpret_cast<const float*>(words + layout_.chosen_logprob());
  const auto* top_logprob = reinterpret_cast<const float*>(words + layout_.top_logprobs());
  const auto* more = static_cast<const float*>(result.more.get());
  const size_t first_id = whole_words(result);
  for (size_t i = 0; i < result.rows.size(); ++i) {
    const Row& row = result.rows[i];
    if (logprobs.empty() || logprobs.back().result_index != row.result_index)
      logprobs.push_back({row.result_index, {}});
    PositionLogprobs& position = logprobs.back().positions.emplace_back();
    const auto num_top = static_cast<size_t>(row.num_top);
    position.reserve(1 + num_top + row.num_ids);
    position.push_back({token_ids[row.row], chosen_logprob[i], words[layout_.chosen_rank() + i]});
    for (size_t k = 0; k < row.num_ids; ++k) {
      const size_t at = row.first_id + k;
      const auto* rank = reinterpret_cast<const int32_t*>(more + first_id + result.ids.size() + at);
      position.push_back({result.ids[at], more[first_id + at], *rank});
    }
    if (row.whole >= 0) {
      const auto vocab = static_cast<size_t>(vocab_size_);
      append_top_logprobs({more + static_cast<size_t>(row.whole) * vocab, vocab}, row.num_top, position,
                          order_);
      continue;
    }
    for (size_t k = 0; k < num_top; ++k) {
      const size_t at = i * static_cast<size_t>(result.num_top) + k;
      position.push_back({words[layout_.top_ids() + at], top_logprob[at], static_cast<int32_t>(k) + 1});
    }
  }
  result.rows.clear();
}

}  // namespace quire
