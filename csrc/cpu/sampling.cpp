// Drawing tokens, and their log-probabilities.
#include <algorithm>
#include <cmath>
#include <functional>

#include "ops.h"
#include "parallel.h"

namespace quire::cpu {
namespace {

// A number in [0, 1) from Philox4x32-10 (Salmon et al., 2011): the key is the seed, the counter the
// position, so a draw depends on nothing that came before it.
double uniform(uint64_t seed, int64_t position) {
  uint32_t counter[4] = {static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), 0, 0};
  uint32_t key[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter[0], b = uint64_t{0xCD9E8D57} * counter[2];
    const uint32_t next[4] = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
                              static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    std::copy_n(next, 4, counter);
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  const uint64_t bits = uint64_t{counter[0]} << 32 | counter[1];
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

// The index whose share of the weights holds `target` of their sum; rounding may leave none, then the
// last that has a share.
int64_t walk(const float* weights, int64_t n, double target) {
  int64_t last = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (!(weights[i] > 0)) continue;
    last = i;
    target -= static_cast<double>(weights[i]);
    if (target < 0) break;
  }
  return last;
}

// Tokens that may still be drawn, by ascending id.
struct Candidates {
  int32_t* ids;
  float* values;   // logits
  float* weights;  // proportional to the probabilities; the highest is 1
  float* work;
  int64_t count = 0;

  explicit Candidates(int64_t vocab) {
    auto* memory = static_cast<float*>(thread_scratch(static_cast<size_t>(vocab) * 4 * sizeof(float)));
    values = memory;
    weights = memory + vocab;
    work = memory + 2 * vocab;
    ids = reinterpret_cast<int32_t*>(memory + 3 * vocab);
  }

  // Keeps those whose key is above `bound`, and the first `ties` of those on it.
  void keep(const float* key, float bound, int64_t ties) {
    int64_t kept = 0;
    for (int64_t i = 0; i < count; ++i) {
      if (!(key[i] > bound) && !(key[i] == bound && ties-- > 0)) continue;
      ids[kept] = ids[i];
      values[kept] = values[i];
      weights[kept++] = weights[i];
    }
    count = kept;
  }

  double mass() const {
    double sum = 0;
    for (int64_t i = 0; i < count; ++i) sum += static_cast<double>(weights[i]);
    return sum;
  }

  void keep_top_k(int64_t k) {
    if (count <= k) return;
    std::copy_n(values, count, work);
    std::nth_element(work, work + k - 1, work + count, std::greater<>());
    const float bound = work[k - 1];
    keep(values, bound, k - std::count_if(work, work + k, [&](float v) { return v > bound; }));
  }

  // Keeps the fewest highest weights that reach `mass` together: halves the range in which the last of
  // them lies, which is linear, where sorting would not be.
  void keep_mass(double mass) {
    std::copy_n(weights, count, work);
    float *begin = work, *end = work + count;
    while (end - begin > 1) {
      float* middle = begin + (end - begin) / 2;
      std::nth_element(begin, middle, end, std::greater<>());
      double upper = 0;
      for (const float* w = begin; w < middle; ++w) upper += static_cast<double>(*w);
      if (upper >= mass) {
        end = middle;
      } else {
        mass -= upper;
        begin = middle;
      }
    }
    // [work, begin) are needed whole; *begin is the last, some of whose equals may be among the former.
    const float bound = *begin;
    keep(weights, bound, 1 + std::count(work, begin, bound));
  }
};

struct Filters {
  float temperature;
  int64_t top_k;
  double top_p;
  float min_p;
};

// All tokens may be drawn. `logits` become weights, summed in blocks so that only one is walked through.
int32_t draw_from_all(const SamplingKernels& kernels, float* logits, int64_t vocab, float max, float scale,
                      double u) {
  constexpr int64_t kBlock = 1024;
  const int64_t blocks = (vocab + kBlock - 1) / kBlock;
  auto* sums = static_cast<double*>(thread_scratch(static_cast<size_t>(blocks) * sizeof(double)));
  double total = 0;
  for (int64_t b = 0; b < blocks; ++b) {
    float* block = logits + b * kBlock;
    sums[b] = kernels.exp_sum(block, block, std::min(kBlock, vocab - b * kBlock), max, scale);
    total += sums[b];
  }
  double target = u * total;
  int64_t chosen = 0;
  for (int64_t b = 0; b < blocks; ++b) {
    if (!(sums[b] > 0)) continue;
    chosen = b;
    if (target < sums[b]) break;
    target -= sums[b];
  }
  const int64_t begin = chosen * kBlock;
  return static_cast<int32_t>(begin + walk(logits + begin, std::min(kBlock, vocab - begin), target));
}

// Min-p first, then top-k of what it leaves, then top-p of what both leave, which is vLLM's order.
int32_t draw_filtered(const SamplingKernels& kernels, const float* logits, int64_t vocab,
                      const Filters& filters, float max, float scale, double u) {
  const bool has_min_p = filters.min_p > 0;
  const bool has_top_k = filters.top_k > 0 && filters.top_k < vocab;
  const bool has_top_p = filters.top_p < 1;
  // What top-p is a share of, when the others have not yet said what remains.
  const bool share_of_all = has_top_p && !has_top_k && !has_min_p;
  double total = share_of_all ? kernels.exp_sum(nullptr, logits, vocab, max, scale) : 0;
  Candidates candidates(vocab);
  // The survivors are nearly always within a few units of the maximum; widen only as far as needed.
  for (const float below : {6.0F, 16.0F, 40.0F, INFINITY}) {
    candidates.count =
        kernels.collect_above(logits, vocab, max - below / scale, candidates.ids, candidates.values);
    if (below < INFINITY) {
      // Next to temperature zero the bound rounds to the maximum, and nothing lies above it.
      if (candidates.count == 0) continue;
      if (has_min_p ? filters.min_p < 1.001F * std::exp(-below)
                    : has_top_k && candidates.count < filters.top_k)
        continue;
    }
    if (has_top_k && !has_min_p) candidates.keep_top_k(filters.top_k);
    const double collected =
        kernels.exp_sum(candidates.weights, candidates.values, candidates.count, max, scale);
    if (share_of_all && collected < filters.top_p * total && below < INFINITY) continue;
    if (!share_of_all) total = collected;
    break;
  }
  if (has_min_p) {
    candidates.keep(candidates.weights, filters.min_p, candidates.count);
    if (has_top_k) candidates.keep_top_k(filters.top_k);
    total = candidates.mass();
  }
  if (has_top_p) candidates.keep_mass(filters.top_p * total);
  return candidates.ids[walk(candidates.weights, candidates.count, u * candidates.mass())];
}

// kNoToken when a logit is NaN.
int32_t sample_row(const SamplingKernels& kernels, float* logits, int64_t vocab, const Filters& filters,
                   uint64_t seed, int64_t position) {
  const float scale = 1.0F / filters.temperature;
  const float max = filters.temperature > 0 ? kernels.max(logits, vocab) : 0.0F;
  if (std::isnan(max)) return kNoToken;
  // Greedy, or nothing to weigh: an infinite maximum, or a temperature next to zero.
  if (!(filters.temperature > 0) || !std::isfinite(max) || !std::isfinite(scale))
    return static_cast<int32_t>(kernels.argmax(logits, vocab));
  const double u = uniform(seed, position);
  const bool filtered =
      (filters.top_k > 0 && filters.top_k < vocab) || filters.top_p < 1 || filters.min_p > 0;
  return filtered ? draw_filtered(kernels, logits, vocab, filters, max, scale, u)
                  : draw_from_all(kernels, logits, vocab, max, scale, u);
}

template <typename F>
void for_each_row(const LaunchContext& ctx, const TensorView& x, F&& f) {
  WorkQueue queue(x.shape[0]);
  const auto work = [&](int32_t, int32_t) {
    int64_t begin, end;
    while (queue.take(&begin, &end)) f(begin);
  };
  constexpr int64_t kGrainElements = 65536;
  if (x.shape[0] < 2 || x.shape[0] * x.shape[1] < kGrainElements) {
    work(0, 1);
  } else {
    on_all_threads(ctx, work);
  }
}

}  // namespace

void sample(const Isa& isa, const LaunchContext& ctx, const SamplingArgs& args) {
  for_each_row(ctx, args.logits, [&](int64_t r) {
    const Filters filters = {args.temperature[r], args.top_k[r], static_cast<double>(args.top_p[r]),
                             args.min_p[r]};
    const int32_t token = sample_row(isa.sampling, reinterpret_cast<float*>(args.logits.at(r)),
                                     args.logits.shape[1], filters, args.seed[r], args.position[r]);
    args.sampled_token_ids[r] = std::max(token, 0);
    if (args.host_token_ids != nullptr) args.host_token_ids[r] = token;
    if (args.token_places != nullptr && args.token_places[r] != nullptr)
      *args.token_places[r] = std::max(token, 0);
  });
}

void log_softmax(const Isa& isa, const LaunchContext& ctx, TensorView logprobs, TensorView logits) {
  for_each_row(ctx, logits, [&](int64_t r) {
    const auto* x = reinterpret_cast<const float*>(logits.at(r));
    const int64_t vocab = logits.shape[1];
    const float max = isa.sampling.max(x, vocab);
    const double sum = isa.sampling.exp_sum(nullptr, x, vocab, max, 1.0F);
    isa.sampling.subtract(reinterpret_cast<float*>(logprobs.at(r)), x, vocab,
                          static_cast<float>(static_cast<double>(max) + std::log(sum)));
  });
}

void top_logprobs(const Isa& isa, const LaunchContext& ctx, const TopLogprobsArgs& args) {
  for_each_row(ctx, args.logits, [&](int64_t r) {
    const auto* x = reinterpret_cast<const float*>(args.logits.at(r));
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
