// Bans of the rows that a device samples: allowed tokens and bad words.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/staging_ring.h"
#include "quire/kernels/ops.h"
#include "sampler/sampler.h"

namespace quire {

// What is known of the rows' tokens, in columns: for kernels that look back at them.
struct HistoryColumns {
  template <typename Staging>
  void push(Staging& staging, size_t rows) {
    token_ids = staging.template push<const int32_t*>(rows);
    num_prompt_tokens = staging.template push<int32_t>(rows);
    num_tokens = staging.template push<int32_t>(rows);
  }
  Staged<const int32_t*> token_ids;
  Staged<int32_t> num_prompt_tokens, num_tokens;
};

// Part of a device's sampler.
class DeviceBans {
 public:
  DeviceBans(const KernelTable& ops, int32_t vocab_size, StagingRing& staging)
      : ops_(ops), vocab_size_(vocab_size), staging_(staging) {}

  // Pushes as much as a step stages at most with its inputs, to a meter.
  static void push_most(StagingMeter& meter, size_t max_num_rows);

  // The rows of the next step; none when nothing is banned. Bad words are sent with its inputs, unless they
  // are more than rows have on average.
  void stage(std::span<const SamplingRow> rows, size_t max_num_rows);
  // Whether `apply` reads the history of the rows staged last.
  bool needs_history() const { return bad_words_.count() > 0; }
  // Forbids what they ban, with as many rounds as the staging ring has not room for at once, and leaves
  // `room` bytes there.
  void apply(const LaunchContext& launch, TensorView logits, const HistoryColumns& history, size_t room);

 private:
  struct BadWordColumns {
    template <typename Staging>
    void push(Staging& staging, size_t count, size_t num_words) {
      row = staging.template push<int32_t>(count);
      begin = staging.template push<int32_t>(count + 1);
      words = staging.template push<int32_t>(num_words);
    }
    Staged<int32_t> row, begin, words;
  };
  void apply_allowed(const LaunchContext& launch, TensorView logits);
  BadWordsArgs stage_bad_words(size_t first, size_t count);
  void apply_late_bad_words(const LaunchContext& launch, BadWordsArgs args);

  const KernelTable& ops_;
  int32_t vocab_size_;
  StagingRing& staging_;
  std::span<const SamplingRow> rows_;
  std::vector<int32_t> allowed_rows_;
  BadWordLists bad_words_;
  BadWordsArgs staged_bad_words_;
  bool late_bad_words_ = false;
};

}  // namespace quire
