#include "sampler/device_bans.h"

#include <algorithm>
#include <cstring>

#include "util/check.h"

namespace quire {
namespace {

// Tokens of bad words that are sent with the rest, on average over the rows. More take rounds of their own.
constexpr size_t kMaxBadWordTokensPerRow = 64;

}  // namespace

// Any one sequence has room, too: a round takes at least that.
void DeviceBans::push_most(StagingMeter& meter, size_t max_num_rows) {
  const size_t tokens = kMaxBadWordTokensPerRow * max_num_rows;
  BadWordColumns().push(meter, tokens, tokens);
  BadWordColumns().push(meter, 1, kMaxBadWordTokens);
}

void DeviceBans::stage(std::span<const SamplingRow> rows, size_t max_num_rows) {
  rows_ = rows;
  allowed_rows_.clear();
  bad_words_.clear();
  late_bad_words_ = false;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].bans == nullptr) continue;
    const auto row = static_cast<int32_t>(i);
    if (!rows[i].bans->allowed_bitmask.empty()) allowed_rows_.push_back(row);
    bad_words_.add(row, rows[i].bans->bad_words);
  }
  if (bad_words_.count() == 0) return;
  late_bad_words_ = bad_words_.words.size() > kMaxBadWordTokensPerRow * max_num_rows;
  if (!late_bad_words_) staged_bad_words_ = stage_bad_words(0, bad_words_.row.size());
}

BadWordsArgs DeviceBans::stage_bad_words(size_t first, size_t count) {
  const auto begin = bad_words_.begin.begin() + static_cast<std::ptrdiff_t>(first);
  const int32_t first_word = begin[0];
  const auto num_words = static_cast<size_t>(begin[static_cast<std::ptrdiff_t>(count)] - first_word);
  BadWordColumns columns;
  columns.push(staging_, count, num_words);
  std::memcpy(columns.row.host, bad_words_.row.data() + first, count * sizeof(int32_t));
  std::memcpy(columns.words.host, bad_words_.words.data() + first_word, num_words * sizeof(int32_t));
  for (size_t i = 0; i <= count; ++i)
    columns.begin.host[i] = begin[static_cast<std::ptrdiff_t>(i)] - first_word;
  BadWordsArgs args{};
  args.row = columns.row.device;
  args.begin = columns.begin.device;
  args.words = columns.words.device;
  args.count = static_cast<int32_t>(count);
  return args;
}

void DeviceBans::apply(const LaunchContext& launch, TensorView logits, const HistoryColumns& history,
                       size_t room) {
  const size_t mark = staging_.mark();
  if (!allowed_rows_.empty()) apply_allowed(launch, logits);
  if (bad_words_.count() > 0) {
    BadWordsArgs args = late_bad_words_ ? BadWordsArgs{} : staged_bad_words_;
    args.logits = logits;
    args.token_ids = history.token_ids.device;
    args.num_prompt_tokens = history.num_prompt_tokens.device;
    args.num_tokens = history.num_tokens.device;
    if (late_bad_words_) {
      staging_.rewind(mark, launch.stream);
      apply_late_bad_words(launch, args);
    } else {
      ops_.apply_bad_words(launch, args);
    }
  }
  if (staging_.available() < room) staging_.rewind(mark, launch.stream);
}

void DeviceBans::apply_allowed(const LaunchContext& launch, TensorView logits) {
  const size_t words = (static_cast<size_t>(vocab_size_) + 31) / 32;
  const size_t row_bytes = (words + 1) * sizeof(int32_t);
  const size_t mark = staging_.mark();
  for (size_t begin = 0; begin < allowed_rows_.size();) {
    if (begin > 0) staging_.rewind(mark, launch.stream);
    const size_t room = staging_.available() - std::min(staging_.available(), 2 * kStagingAlignment);
    const size_t count = std::min(room / row_bytes, allowed_rows_.size() - begin);
    QUIRE_CHECK(count > 0, staging_.available(), " bytes for a mask of ", row_bytes);
    const auto rows = staging_.push<int32_t>(count);
    const auto bitmask = staging_.push<int32_t>(count * words);
    for (size_t i = 0; i < count; ++i) {
      rows.host[i] = allowed_rows_[begin + i];
      const auto& mask = rows_[static_cast<size_t>(rows.host[i])].bans->allowed_bitmask;
      std::memcpy(bitmask.host + i * words, mask.data(), words * sizeof(int32_t));
    }
    staging_.send(launch.stream);
    const auto n = static_cast<int64_t>(count);
    ops_.apply_bitmask(launch, logits, {rows.device, DType::kInt32, n},
                       {bitmask.device, DType::kInt32, n, static_cast<int64_t>(words)});
    begin += count;
  }
}

// A roomful at a time.
void DeviceBans::apply_late_bad_words(const LaunchContext& launch, BadWordsArgs args) {
  const size_t mark = staging_.mark();
  const std::vector<int32_t>& begin = bad_words_.begin;
  for (size_t first = 0; first < bad_words_.row.size();) {
    const size_t room = (staging_.available() - 4 * kStagingAlignment) / sizeof(int32_t);
    size_t count = 0;
    while (first + count < bad_words_.row.size() &&
           2 * (count + 1) + static_cast<size_t>(begin[first + count + 1] - begin[first]) <= room) {
      ++count;
    }
    QUIRE_CHECK(count > 0, staging_.available(), " bytes for a bad word");
    const BadWordsArgs staged = stage_bad_words(first, count);
    args.row = staged.row;
    args.begin = staged.begin;
    args.words = staged.words;
    args.count = staged.count;
    staging_.send(launch.stream);
    ops_.apply_bad_words(launch, args);
    staging_.rewind(mark, launch.stream);
    first += count;
  }
}

}  // namespace quire
