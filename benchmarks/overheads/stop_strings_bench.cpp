// What stop strings cost: looking for them in the text of a token, by how many there are, and making ready
// for them when their request comes.
//
//   build/default/benchmarks/overheads/stop_strings_bench
#include <benchmark/benchmark.h>

#include <random>
#include <string>
#include <vector>

#include "engine/stop_strings.h"

namespace quire {
namespace {

constexpr size_t kTokenBytes = 4;

std::string random_text(std::mt19937& random, size_t size) {
  // Letters about as often as English has them, so that strings begin often and rarely come about.
  constexpr std::string_view kLetters = "eeeettaaooiinnssrrhhlddcumfpgwybvk      ";
  std::string text(size, ' ');
  for (char& c : text) c = kLetters[random() % kLetters.size()];
  return text;
}

std::vector<std::string> random_strings(int64_t count) {
  std::mt19937 random(7);
  std::vector<std::string> strings;
  for (int64_t i = 0; i < count; ++i) strings.push_back(random_text(random, 6 + random() % 14));
  return strings;
}

void search_token(benchmark::State& state) {
  const StopStrings stop(random_strings(state.range(0)));
  std::mt19937 random(9);
  const std::string text = random_text(random, 1 << 20);
  StopStrings::State place = 0;
  size_t begin = 0, num_found = 0;
  for (auto _ : state) {
    const std::string_view seen(text.data(), begin + kTokenBytes);
    num_found += stop.search(seen, begin, place).has_value();
    begin += kTokenBytes;
    if (begin + kTokenBytes > text.size()) begin = place = 0;
  }
  state.counters["found"] = static_cast<double>(num_found);
}
BENCHMARK(search_token)->Arg(1)->Arg(100)->Arg(5000);

void make_ready(benchmark::State& state) {
  const auto strings = random_strings(state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(StopStrings(strings));
}
BENCHMARK(make_ready)->Arg(1)->Arg(100)->Arg(5000)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace quire

BENCHMARK_MAIN();
