// What the tests of sampling share.
#pragma once

#include <set>

#include "kernel_test.h"
#include "quire/kernels/draw_math.h"

namespace quire {

// The rows of one call, all fields neutral until set.
struct Batch {
  explicit Batch(const Tensor& logits)
      : logits(logits),
        rows(static_cast<size_t>(logits.view().shape[0])),
        temperature(rows, 1.0F),
        top_k(rows),
        top_p(rows, 1.0F),
        min_p(rows),
        seed(rows),
        position(rows),
        ids(rows, -1),
        host_ids(rows, -1),
        sequences(rows * 2, -1),
        counters(rows),
        places(rows) {
    for (size_t r = 0; r < rows; r += 2) places[r] = &sequences[2 * r];  // the odd rows have none
  }

  SamplingArgs args() {
    return {.logits = logits,
            .temperature = temperature.data(),
            .top_k = top_k.data(),
            .top_p = top_p.data(),
            .min_p = min_p.data(),
            .seed = seed.data(),
            .position = position.data(),
            .sampled_token_ids = ids.data(),
            .host_token_ids = host_ids.data(),
            .token_places = places.data(),
            .row_counters = counters.data(),
            .all_greedy = all_greedy,
            .any_filter = any_filter};
  }
  std::vector<int32_t> sample(const KernelTable& kernels, const LaunchContext& ctx) {
    kernels.sample(ctx, args());
    auto sampled = read(ids);
    const auto for_the_host = read(host_ids);
    for (size_t r = 0; r < rows; ++r)
      EXPECT_EQ(for_the_host[r], has_nan.contains(r)       ? kNoToken
                                 : has_no_left.contains(r) ? draw_math::kNoTokenLeft
                                                           : sampled[r])
          << r;
    for (const auto* none : {&has_nan, &has_no_left})
      for (const size_t r : *none) EXPECT_EQ(sampled[r], 0);
    for (size_t at = 0; at < 2 * rows; ++at) {
      const bool has_place = at % 4 == 0;
      EXPECT_EQ(sequences[at], has_place ? sampled[at / 2] : -1) << at;
    }
    EXPECT_EQ(read(counters), std::vector<uint32_t>(rows));
    return sampled;
  }

  // What is best of each row's columns from `first` on, a part of a vocabulary.
  std::vector<uint64_t> best(const KernelTable& kernels, const LaunchContext& ctx, int64_t first,
                             int64_t count) {
    Array<uint64_t> best(rows);
    SamplingArgs of_part = args();
    of_part.logits = logits.view().columns(first, count);
    of_part.best = best.data();
    of_part.first_token_id = static_cast<int32_t>(first);
    kernels.sample(ctx, of_part);
    return read(best);
  }

  const Tensor& logits;
  size_t rows;
  Array<float> temperature;
  Array<int32_t> top_k;
  Array<float> top_p, min_p;
  Array<uint64_t> seed;
  Array<int64_t> position;
  Array<int32_t> ids, host_ids, sequences;
  Array<uint32_t> counters;
  Array<int32_t*> places;
  bool all_greedy = false, any_filter = true;
  std::set<size_t> has_nan, has_no_left;  // rows that no token can be drawn from
};

struct Filters {
  float temperature = 1;
  int top_k = 0;
  float top_p = 1;
  float min_p = 0;
};

class SamplingTestBase : public KernelTest {
 protected:
  // Workspace for `rows` rows of `vocab`, where the table wants one.
  void reserve(int64_t rows, int64_t vocab) {
    if (kernels().sampling_workspace_bytes != nullptr)
      set_workspace(kernels().sampling_workspace_bytes(rows, vocab));
  }

  static std::vector<float> normal_logits(size_t n, float deviation) {
    NormalNumbers normal(11);
    std::vector<float> logits(n);
    for (float& x : logits) x = deviation * normal();
    return logits;
  }
};

}  // namespace quire
