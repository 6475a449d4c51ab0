// What is done to logits before they are sampled: biases, masks, penalties.
#include <algorithm>
#include <bit>
#include <limits>
#include <vector>

#include "ops.h"
#include "parallel.h"

namespace quire::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Counts tokens in a table as large as the sequence, not the vocabulary. A generation number marks the
// slots in use, so clearing costs nothing; memory grows with the longest sequence seen, then stays.
class TokenCounts {
 public:
  struct Entry {
    uint32_t generation = 0;
    int32_t token = 0;
    int32_t num_output = 0;
  };

  void reset(int64_t num_tokens) {
    const size_t size = std::bit_ceil(static_cast<size_t>(std::max<int64_t>(8, 2 * num_tokens)));
    if (size > entries_.size()) entries_.assign(size, Entry{});
    mask_ = entries_.size() - 1;
    if (++generation_ == 0) {
      entries_.assign(entries_.size(), Entry{});
      generation_ = 1;
    }
  }

  // The token's entry, and whether this is its first occurrence.
  std::pair<Entry*, bool> find(int32_t token) {
    size_t at = (static_cast<uint32_t>(token) * uint64_t{0x9E3779B97F4A7C15} >> 32) & mask_;
    for (;; at = (at + 1) & mask_) {
      Entry& entry = entries_[at];
      if (entry.generation != generation_) {
        entry = {generation_, token, 0};
        return {&entry, true};
      }
      if (entry.token == token) return {&entry, false};
    }
  }

 private:
  std::vector<Entry> entries_;
  size_t mask_ = 0;
  uint32_t generation_ = 0;
};

void penalize_row(float* logits, int64_t vocab, const int32_t* tokens, int32_t num_prompt, int32_t num_tokens,
                  float presence, float frequency, float repetition) {
  thread_local TokenCounts counts;
  counts.reset(num_tokens);
  const bool counted = presence != 0.0F || frequency != 0.0F;
  // The first occurrence takes the repetition penalty: it concerns the whole sequence, and comes first.
  for (int32_t i = repetition != 1.0F ? 0 : num_prompt; i < num_tokens; ++i) {
    const int32_t token = tokens[i];
    if (token < 0 || token >= vocab) continue;
    const auto [entry, first] = counts.find(token);
    if (i >= num_prompt) ++entry->num_output;
    if (first && repetition != 1.0F)
      logits[token] = logits[token] > 0 ? logits[token] / repetition : logits[token] * repetition;
  }
  if (!counted) return;
  for (int32_t i = num_prompt; i < num_tokens; ++i) {
    const int32_t token = tokens[i];
    if (token < 0 || token >= vocab) continue;
    const auto [entry, first] = counts.find(token);
    if (entry->num_output == 0) continue;
    logits[token] -= frequency * static_cast<float>(entry->num_output) + presence;
    entry->num_output = 0;
  }
}

}  // namespace

void apply_logit_bias(const LaunchContext&, const LogitBiasArgs& args) {
  for (int32_t i = 0; i < args.count; ++i) {
    float& logit = reinterpret_cast<float*>(args.logits.at(args.row[i]))[args.token_id[i]];
    // Not by adding: an infinite logit would become NaN.
    logit = args.bias[i] == -kInfinity ? -kInfinity : logit + args.bias[i];
  }
}

void apply_bitmask(const LaunchContext& ctx, TensorView logits, TensorView rows, TensorView bitmask) {
  const int64_t vocab = logits.shape[1];
  const int64_t grain = std::max<int64_t>(1, 131072 / std::max<int64_t>(1, vocab));
  parallel_ranges(ctx, rows.shape[0], grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      auto* row = reinterpret_cast<float*>(logits.at(rows.as<int32_t>()[i * rows.stride[0]]));
      const auto* words = reinterpret_cast<const uint32_t*>(bitmask.at(i));
      for (int64_t v = 0; v < vocab; ++v)
        if ((words[v / 32] >> (v % 32) & 1) == 0) row[v] = -kInfinity;
    }
  });
}

void apply_bad_words(const LaunchContext&, const BadWordsArgs& args) {
  for (int32_t i = 0; i < args.count; ++i) {
    const int32_t row = args.row[i], num_before = args.begin[i + 1] - args.begin[i] - 1;
    if (num_before > args.num_tokens[row] - args.num_prompt_tokens[row]) continue;
    const int32_t* word = args.words + args.begin[i];
    const int32_t* end = args.token_ids[row] + args.num_tokens[row];
    if (!std::equal(word, word + num_before, end - num_before)) continue;
    reinterpret_cast<float*>(args.logits.at(row))[word[num_before]] = -kInfinity;
  }
}

void apply_penalties(const LaunchContext& ctx, const PenaltyArgs& args) {
  const int64_t rows = args.logits.shape[0];
  WorkQueue queue(rows);
  const auto work = [&](int32_t, int32_t) {
    int64_t begin, end;
    while (queue.take(&begin, &end)) {
      const int64_t r = begin;
      if (args.presence[r] == 0 && args.frequency[r] == 0 && args.repetition[r] == 1) continue;
      penalize_row(reinterpret_cast<float*>(args.logits.at(r)), args.logits.shape[1], args.token_ids[r],
                   args.num_prompt_tokens[r], args.num_tokens[r], args.presence[r], args.frequency[r],
                   args.repetition[r]);
    }
  };
  constexpr int64_t kManyRows = 4;
  if (rows < kManyRows) {
    work(0, 1);
  } else {
    on_all_threads(ctx, work);
  }
}

}  // namespace quire::cpu
