// What it costs to let two rows of the persistent batch change places, and what each way of doing it costs a
// step.
//
//   tensor_swap [--max-model-len 32768] [--rows 64]
//
// Three ways: the whole row is copied; the valid tokens of the two rows are; or only the indices of the rows
// are, and every reader goes through them from then on (InputBatch::swap_rows). The batch is larger than the
// caches near a core, and pairs are drawn at random. Best of several rounds.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "worker/input_batch.h"

namespace quire {
namespace {

constexpr int32_t kBlockSize = 16;
constexpr int kRounds = 7;

struct Mix {
  const char* name;
  std::vector<std::pair<int32_t, int32_t>> lengths;  // a row's length comes from one of these ranges
};
const std::vector<Mix> kMixes = {{"short (100-500)", {{100, 500}}},
                                 {"medium (1K-5K)", {{1000, 5000}}},
                                 {"long (10K-30K)", {{10000, 30000}}},
                                 {"mixed", {{100, 500}, {1000, 5000}, {10000, 30000}}}};

// Nanoseconds a call of `work`, which is called with 0, 1, 2, ...
double time_ns(const std::function<void(size_t)>& work) {
  using Clock = std::chrono::steady_clock;
  const auto round = [&](size_t calls) {
    const auto begin = Clock::now();
    for (size_t i = 0; i < calls; ++i) work(i);
    return std::chrono::duration<double, std::nano>(Clock::now() - begin).count();
  };
  size_t calls = 16;
  while (round(calls) < 2e7) calls *= 2;
  double best = std::numeric_limits<double>::max();
  for (int i = 0; i < kRounds; ++i) best = std::min(best, round(calls) / static_cast<double>(calls));
  return best;
}

// Keeps what was computed.
void use(const void* p) { asm volatile("" : : "r"(p) : "memory"); }

// What both rows have is swapped, the rest of the longer one moves.
void swap_valid(int32_t* a, int32_t count_a, int32_t* b, int32_t count_b) {
  const int32_t both = std::min(count_a, count_b);
  std::swap_ranges(a, a + both, b);
  if (count_a > both) std::copy(a + both, a + count_a, b + both);
  if (count_b > both) std::copy(b + both, b + count_b, a + both);
}

struct Batch {
  Batch(const Mix& mix, int32_t max_model_len, int32_t num_rows)
      : input(num_rows, max_model_len, std::vector{kBlockSize}), requests(static_cast<size_t>(num_rows)) {
    std::mt19937 rng(5);
    const auto uniform = [&](int32_t low, int32_t high) {
      return std::uniform_int_distribution<int32_t>(low, high)(rng);
    };
    for (CachedRequestState& request : requests) {
      const auto& [low, high] =
          mix.lengths[static_cast<size_t>(uniform(0, static_cast<int32_t>(mix.lengths.size()) - 1))];
      const int32_t length = std::min(uniform(low, high), max_model_len);
      request.prompt_token_ids = std::vector<int32_t>(static_cast<size_t>(length), length);
      request.block_ids = {
          std::vector<BlockId>(static_cast<size_t>((length + kBlockSize - 1) / kBlockSize), 1)};
      input.add(request);
    }
    // Touched once, so that the first to copy whole rows does not pay for fresh pages.
    for (int32_t row = 0; row < num_rows; ++row) {
      std::fill(tokens(row) + num_tokens(row), tokens(row) + max_model_len, 0);
    }
    for (int i = 0; i < 4096; ++i) {
      const int32_t a = uniform(0, num_rows - 1);
      pairs.emplace_back(a, (a + uniform(1, num_rows - 1)) % num_rows);
    }
  }
  int32_t* tokens(int32_t row) { return input.token_ids(input.request(row)); }
  int32_t num_tokens(int32_t row) { return input.request(row).num_tokens; }

  InputBatch input;
  std::vector<CachedRequestState> requests;
  std::vector<std::pair<int32_t, int32_t>> pairs;  // different rows
};

struct Swaps {
  double whole_ns, valid_ns, index_ns;
  double whole_bytes, valid_bytes;
};

// Bytes moved are bytes written.
Swaps measure_swaps(Batch& batch, int32_t max_model_len) {
  const auto pair = [&](size_t i) { return batch.pairs[i % batch.pairs.size()]; };
  Swaps out{};
  out.whole_bytes = 2.0 * 4.0 * max_model_len;
  // The rows that a pair names hold their own requests: the same lengths for every way.
  for (const auto& [a, b] : batch.pairs) out.valid_bytes += 4.0 * (batch.num_tokens(a) + batch.num_tokens(b));
  out.valid_bytes /= static_cast<double>(batch.pairs.size());

  out.whole_ns = time_ns([&](size_t i) {
    const auto [a, b] = pair(i);
    std::swap_ranges(batch.tokens(a), batch.tokens(a) + max_model_len, batch.tokens(b));
    use(batch.tokens(b));
  });
  // Each swap twice, back to where it was: lengths stay with their rows.
  out.valid_ns = time_ns([&](size_t i) {
    const auto [a, b] = pair(i / 2);
    const bool back = i % 2 == 1;
    swap_valid(batch.tokens(back ? b : a), batch.num_tokens(a), batch.tokens(back ? a : b),
               batch.num_tokens(b));
    use(batch.tokens(b));
  });
  out.index_ns = time_ns([&](size_t i) {
    const auto [a, b] = pair(i);
    batch.input.swap_rows(a, b);
    use(batch.input.state_indices().data());
  });
  return out;
}

struct Gather {
  double direct_ns, indirect_ns;
};

// One step's input ids: the last `count` tokens of every row, in batch order. Indirect: through a row index
// that earlier swaps have shuffled.
Gather measure_gather(Batch& batch, int32_t count) {
  const auto num_rows = batch.requests.size();
  std::vector<int32_t> identity(num_rows), shuffled(num_rows),
      input_ids(num_rows * static_cast<size_t>(count));
  std::iota(identity.begin(), identity.end(), 0);
  shuffled = identity;
  std::shuffle(shuffled.begin(), shuffled.end(), std::mt19937(9));
  const auto copy_row = [&](int32_t row, int32_t* to) {
    const int32_t n = std::min(count, batch.num_tokens(row));
    std::copy_n(batch.tokens(row) + batch.num_tokens(row) - n, n, to);
    return to + n;
  };
  Gather out{};
  out.direct_ns = time_ns([&](size_t) {
    int32_t* to = input_ids.data();
    for (int32_t row = 0; row < static_cast<int32_t>(num_rows); ++row) to = copy_row(row, to);
    use(input_ids.data());
  });
  out.indirect_ns = time_ns([&](size_t) {
    int32_t* to = input_ids.data();
    for (const int32_t row : shuffled) to = copy_row(row, to);
    use(input_ids.data());
  });
  return out;
}

void run(int32_t max_model_len, int32_t num_rows) {
  std::printf("max_model_len %d, %d rows; times in ns, best of %d rounds\n\n", max_model_len, num_rows,
              kRounds);
  std::printf("| requests | whole row | bytes | valid range | bytes | time / | bytes / | indices |\n");
  std::printf("|---|---|---|---|---|---|---|---|\n");
  std::string gathers;
  for (const Mix& mix : kMixes) {
    Batch batch(mix, max_model_len, num_rows);
    const auto line = [&](const std::string& what, double direct, double indirect) {
      char text[200];
      std::snprintf(text, sizeof(text), "| %s | %s | %.0f | %.0f |\n", mix.name, what.c_str(), direct,
                    indirect);
      gathers += text;
    };
    for (const int32_t count : {1, 512}) {
      const Gather g = measure_gather(batch, count);
      line(std::to_string(count) + " tokens a row", g.direct_ns, g.indirect_ns);
    }
    const Swaps s = measure_swaps(batch, max_model_len);
    std::printf("| %s | %.0f | %.0f | %.0f | %.0f | %.1f | %.1f | %.1f |\n", mix.name, s.whole_ns,
                s.whole_bytes, s.valid_ns, s.valid_bytes, s.whole_ns / s.valid_ns,
                s.whole_bytes / s.valid_bytes, s.index_ns);
  }
  std::printf("\nWhat a step then gathers, all rows:\n\n");
  std::printf("| requests | what | rows in place | through an index |\n|---|---|---|---|\n%s",
              gathers.c_str());
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  int32_t max_model_len = 32768, num_rows = 64;
  bool understood = argc % 2 == 1;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string option = argv[i];
    if (option == "--max-model-len") {
      max_model_len = std::atoi(argv[i + 1]);
    } else if (option == "--rows") {
      num_rows = std::atoi(argv[i + 1]);
    } else {
      understood = false;
    }
  }
  if (!understood || max_model_len < 1 || num_rows < 2) {
    std::fprintf(stderr, "usage: %s [--max-model-len N] [--rows N]; at least 1, and 2\n", argv[0]);
    return 2;
  }
  quire::run(max_model_len, num_rows);
  return 0;
}
