// Drawing tokens, and their log-probabilities. The highest of logit / temperature + Gumbel noise is a draw
// from the softmax.
#include <algorithm>
#include <cmath>
#include <functional>

#include "ops.h"
#include "parallel.h"
#include "quire/kernels/draw_math.h"

namespace quire::cpu {
namespace {

// A logit and its id as one number: the likelier is the larger, and of equals that with the lower id.
using Ranked = uint64_t;

Ranked ranked(float logit, int32_t id) {
  const uint32_t bits = draw_math::bits_of(logit + 0.0F);  // -0 and 0 are equals
  const uint32_t key = bits & 0x80000000U ? ~bits : bits | 0x80000000U;
  return Ranked{key} << 32 | ~static_cast<uint32_t>(id);
}
uint32_t id_of(Ranked token) { return ~static_cast<uint32_t>(token); }
float logit_of(Ranked token) {
  const auto key = static_cast<uint32_t>(token >> 32);
  return draw_math::float_of_bits(key & 0x80000000U ? key ^ 0x80000000U : ~key);
}

struct Filters {
  int64_t top_k;
  double top_p;
  float min_p;
};

// One row that is not greedy.
struct Row {
  const SamplingKernels& kernels;
  const float* logits;
  int64_t vocab;
  float highest, scale;  // of the logits
  uint64_t seed;
  int64_t position;

  float distance(Ranked token) const { return draw_math::distance_of(highest, logit_of(token), scale); }
  // What a token counts for top-p: nothing where min-p has dropped it.
  uint64_t mass(Ranked token, float min_p) const {
    const float weight = draw_math::weight_of(distance(token));
    return weight >= min_p ? draw_math::mass_of(weight) : 0;
  }
};

// Tokens that may still be drawn.
class Candidates {
 public:
  explicit Candidates(const Row& row) : row_(row) {
    auto* memory = static_cast<std::byte*>(thread_scratch(static_cast<size_t>(row.vocab) * 16));
    tokens_ = reinterpret_cast<Ranked*>(memory);
    ids_ = reinterpret_cast<int32_t*>(memory + 8 * row.vocab);
    values_ = reinterpret_cast<float*>(memory + 12 * row.vocab);
  }
  int64_t size() const { return count_; }

  // All with a distance below `below`, and perhaps some on it.
  void collect(float below) {
    const float bound =
        std::nextafter(row_.highest - below / row_.scale, -INFINITY);  // whichever way it rounded
    count_ = row_.kernels.collect_above(row_.logits, row_.vocab, bound, ids_, values_);
    for (int64_t i = 0; i < count_; ++i) tokens_[i] = ranked(values_[i], ids_[i]);
  }
  void keep_top_k(int64_t k) {
    if (count_ <= k) return;
    std::nth_element(tokens_, tokens_ + k, tokens_ + count_, std::greater<>());
    count_ = k;
  }
  uint64_t mass(float min_p) const {
    uint64_t sum = 0;
    for (int64_t i = 0; i < count_; ++i) sum += row_.mass(tokens_[i], min_p);
    return sum;
  }
  // Keeps the fewest of the likeliest that have `mass` together, the likeliest at least: halves the range in
  // which the last of them lies, which is linear, where sorting would not be.
  void keep_mass(double mass, float min_p) {
    Ranked *begin = tokens_, *end = tokens_ + count_;
    uint64_t before = 0;
    while (end - begin > 1) {
      Ranked* middle = begin + (end - begin) / 2;
      std::nth_element(begin, middle, end, std::greater<>());
      uint64_t upper = before;
      for (const Ranked* token = begin; token < middle; ++token) upper += row_.mass(*token, min_p);
      // *middle stays when what precedes it falls short.
      if (static_cast<double>(upper) < mass) {
        before = upper;
        begin = middle;
      } else {
        end = middle;
      }
    }
    count_ = begin - tokens_ + 1;
  }
  // The token with the highest score.
  int32_t draw(float min_p) const {
    Ranked best = 0;
    for (int64_t i = 0; i < count_; ++i) {
      const float distance = row_.distance(tokens_[i]);
      if (!(distance < INFINITY) || draw_math::weight_of(distance) < min_p) continue;
      const uint32_t id = id_of(tokens_[i]);
      const float score =
          draw_math::score_below(draw_math::gumbel_of(row_.seed, row_.position, id), distance);
      best = std::max(best, ranked(score, static_cast<int32_t>(id)));
    }
    return static_cast<int32_t>(id_of(best));
  }

 private:
  const Row& row_;
  Ranked* tokens_;
  int32_t* ids_;
  float* values_;
  int64_t count_ = 0;
};

// Min-p first, then top-k of what it leaves, then top-p of what both leave, which is vLLM's order.
int32_t draw_filtered(const Row& row, const Filters& filters) {
  const bool has_min_p = filters.min_p > 0;
  const bool has_top_k = filters.top_k > 0 && filters.top_k < row.vocab;
  const bool has_top_p = filters.top_p < 1;
  // What top-p is a share of, when the others have not yet said what remains.
  const bool share_of_all = has_top_p && !has_top_k && !has_min_p;
  const uint64_t all =
      share_of_all ? row.kernels.mass_sum(row.logits, row.vocab, row.highest, row.scale, 0) : 0;
  Candidates candidates(row);
  // The survivors are nearly always within a few units of the maximum; widen only as far as needed.
  for (const float below : {6.0F, 16.0F, 40.0F, INFINITY}) {
    candidates.collect(below);
    if (below == INFINITY) break;
    if (has_min_p ? filters.min_p < 1.001F * std::exp(-below)
                  : has_top_k && candidates.size() < filters.top_k)
      continue;
    if (!share_of_all || static_cast<double>(candidates.mass(0)) >= filters.top_p * static_cast<double>(all))
      break;
  }
  if (has_top_k) candidates.keep_top_k(filters.top_k);
  if (has_top_p) {
    const uint64_t total = share_of_all ? all : candidates.mass(filters.min_p);
    candidates.keep_mass(filters.top_p * static_cast<double>(total), filters.min_p);
  }
  return candidates.draw(filters.min_p);
}

// kNoToken when a logit is NaN. Where all are forbidden, one of those.
int32_t draw_row(const SamplingKernels& kernels, const float* logits, int64_t vocab, float temperature,
                 const Filters& filters, uint64_t seed, int64_t position) {
  const bool greedy = draw_math::is_greedy(temperature);
  const float highest = greedy ? 0.0F : kernels.max(logits, vocab);
  if (std::isnan(highest)) return kNoToken;
  // An infinite maximum leaves nothing to weigh.
  if (greedy || !std::isfinite(highest)) return static_cast<int32_t>(kernels.argmax(logits, vocab));
  const Row row = {kernels, logits, vocab, highest, 1.0F / temperature, seed, position};
  const bool filtered =
      (filters.top_k > 0 && filters.top_k < vocab) || filters.top_p < 1 || filters.min_p > 0;
  if (filtered) return draw_filtered(row, filters);
  return static_cast<int32_t>(kernels.draw(logits, vocab, row.scale, seed, position));
}

int32_t sample_row(const SamplingKernels& kernels, const float* logits, int64_t vocab, float temperature,
                   const Filters& filters, uint64_t seed, int64_t position) {
  const int32_t token = draw_row(kernels, logits, vocab, temperature, filters, seed, position);
  return token >= 0 && logits[token] == -INFINITY ? draw_math::kNoTokenLeft : token;
}

template <typename F>
void for_each_row(const LaunchContext& ctx, const TensorView& x, int64_t rows, F&& f) {
  WorkQueue queue(rows);
  const auto work = [&](int32_t, int32_t) {
    int64_t begin, end;
    while (queue.take(&begin, &end)) f(begin);
  };
  constexpr int64_t kGrainElements = 65536;
  if (rows < 2 || rows * x.shape[1] < kGrainElements) {
    work(0, 1);
  } else {
    on_all_threads(ctx, work);
  }
}

}  // namespace

void sample(const Isa& isa, const LaunchContext& ctx, const SamplingArgs& args) {
  for_each_row(ctx, args.logits, args.logits.shape[0], [&](int64_t r) {
    const Filters filters = {args.top_k[r], static_cast<double>(args.top_p[r]), args.min_p[r]};
    const int32_t token =
        sample_row(isa.sampling, reinterpret_cast<const float*>(args.logits.at(r)), args.logits.shape[1],
                   args.temperature[r], filters, args.seed[r], args.position[r]);
    args.sampled_token_ids[r] = std::max(token, 0);
    if (args.host_token_ids != nullptr) args.host_token_ids[r] = token;
    if (args.token_places != nullptr && args.token_places[r] != nullptr)
      *args.token_places[r] = std::max(token, 0);
  });
}

void log_softmax(const Isa& isa, const LaunchContext& ctx, TensorView logprobs, TensorView logits) {
  for_each_row(ctx, logits, logits.shape[0], [&](int64_t r) {
    const auto* x = reinterpret_cast<const float*>(logits.at(r));
    const int64_t vocab = logits.shape[1];
    const float max = isa.sampling.max(x, vocab);
    const double sum = isa.sampling.exp_sum(nullptr, x, vocab, max, 1.0F);
    isa.sampling.subtract(reinterpret_cast<float*>(logprobs.at(r)), x, vocab,
                          static_cast<float>(static_cast<double>(max) + std::log(sum)));
  });
}

void top_logprobs(const Isa& isa, const LaunchContext& ctx, const TopLogprobsArgs& args) {
  const int64_t count = args.row != nullptr ? args.num_chosen : args.logits.shape[0];
  for_each_row(ctx, args.logits, count, [&](int64_t r) {
    const auto* x = reinterpret_cast<const float*>(args.logits.at(args.row != nullptr ? args.row[r] : r));
    const int64_t vocab = args.logits.shape[1];
    const float max = isa.sampling.max(x, vocab);
    const double log_sum =
        static_cast<double>(max) + std::log(isa.sampling.exp_sum(nullptr, x, vocab, max, 1.0F));
    const auto logprob = [&](float logit) {
      return static_cast<float>(static_cast<double>(logit) - log_sum);
    };
    const int32_t chosen = args.chosen_token_id[r];
    int32_t rank = 1;
    for (int64_t v = 0; v < vocab; ++v) rank += x[v] > x[chosen] || (v < chosen && x[v] == x[chosen]);
    args.chosen_logprob[r] = logprob(x[chosen]);
    args.chosen_rank[r] = rank;
    // The best so far, sorted: few of many tokens are ever moved into it.
    int32_t* ids = args.top_token_ids + r * args.num_top;
    int64_t found = 0;
    for (int64_t v = 0; v < vocab && args.num_top > 0; ++v) {
      if (found == args.num_top && !(x[v] > x[ids[found - 1]])) continue;
      int64_t at = found < args.num_top ? found++ : found - 1;
      for (; at > 0 && x[v] > x[ids[at - 1]]; --at) ids[at] = ids[at - 1];
      ids[at] = static_cast<int32_t>(v);
    }
    for (int64_t i = 0; i < found; ++i) args.top_logprobs[r * args.num_top + i] = logprob(x[ids[i]]);
  });
}

}  // namespace quire::cpu
