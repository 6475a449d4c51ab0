// Runs a fuzz target without libFuzzer: quire_fuzz TARGET [--seconds N] [--seed N] SEED_DIRECTORY
//
// Seeds are mutated at random (bits, bytes, runs, splices, numbers, nesting) for the given time; the input at
// work is in memory when a sanitizer stops the program, and `--seed` repeats the run. A target that says what
// it has not been led to fails when that goes on.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

// Each target's LLVMFuzzerTestOneInput has its name here, so that one program has them all. What no input so
// far has reached is what NAME_missed says, where there is such a function; null: nothing is missing.
#define QUIRE_FUZZ_TARGET(name)                          \
  extern "C" int name(const uint8_t* data, size_t size); \
  extern "C" [[gnu::weak]] const char* name##_missed();
#include "fuzz_targets.inc"
#undef QUIRE_FUZZ_TARGET

namespace {

struct Target {
  const char* name;
  int (*run)(const uint8_t* data, size_t size);
  const char* (*missed)();
};

constexpr Target kTargets[] = {
#define QUIRE_FUZZ_TARGET(name) {#name, name, name##_missed},
#include "fuzz_targets.inc"
#undef QUIRE_FUZZ_TARGET
};

using Rng = std::mt19937_64;

// After so many inputs a target has met all that it should.
constexpr uint64_t kEnoughRuns = 20'000;

size_t below(Rng& rng, size_t limit) { return limit == 0 ? 0 : rng() % limit; }

void mutate(std::string& text, const std::vector<std::string>& seeds, Rng& rng) {
  static const char* kInteresting[] = {"0",
                                       "-1",
                                       "18446744073709551615",
                                       "1e999",
                                       "null",
                                       "\"\"",
                                       "[]",
                                       "{}",
                                       "\xC3",
                                       "\xF0\x9F\x98\x80",
                                       "{%",
                                       "%}",
                                       "{{",
                                       "}}",
                                       "\\u0000",
                                       "(",
                                       "[",
                                       "\""};
  switch (below(rng, 8)) {
    case 0:
      if (!text.empty()) text[below(rng, text.size())] ^= static_cast<char>(1U << below(rng, 8));
      break;
    case 1: text.insert(below(rng, text.size() + 1), 1, static_cast<char>(rng())); break;
    case 2:
      if (!text.empty()) text.erase(below(rng, text.size()), 1 + below(rng, 8));
      break;
    case 3:
      text.insert(below(rng, text.size() + 1), kInteresting[below(rng, std::size(kInteresting))]);
      break;
    case 4: {
      // A run of the text itself, somewhere else: structure survives.
      const size_t from = below(rng, text.size());
      const std::string run = text.substr(from, 1 + below(rng, 32));
      text.insert(below(rng, text.size() + 1), run);
      break;
    }
    case 5: {
      const std::string& other = seeds[below(rng, seeds.size())];
      text = text.substr(0, below(rng, text.size() + 1)) + other.substr(below(rng, other.size() + 1));
      break;
    }
    case 6: {
      // Nested, here deeper than any reader should follow, there just so.
      const size_t depth = below(rng, 2) == 0 ? 150 + below(rng, 100) : 1 + below(rng, 5000);
      const bool is_object = below(rng, 2) == 0;
      std::string nested;
      for (size_t i = 0; i < depth; ++i) nested += is_object ? "{\"a\":" : "[";
      nested += "0";
      for (size_t i = 0; i < depth; ++i) nested += is_object ? '}' : ']';
      // In the place of a number where there is one, so that the rest stays a document.
      const size_t from = text.find_first_of("0123456789", below(rng, text.size() + 1));
      if (from == text.npos || below(rng, 4) == 0) {
        text.insert(below(rng, text.size() + 1), nested);
      } else {
        text.replace(from, std::min(text.find_first_not_of("0123456789", from), text.size()) - from, nested);
      }
      break;
    }
    default: text.resize(below(rng, text.size() + 1));
  }
}

}  // namespace

int main(int argc, char** argv) {
  double seconds = 10;
  uint64_t seed = 1;
  std::vector<std::string> seeds;
  const Target* target = std::ranges::find_if(
      kTargets, [&](const Target& t) { return argc > 1 && std::strcmp(argv[1], t.name) == 0; });
  if (target == std::end(kTargets)) {
    std::fprintf(stderr,
                 "quire_fuzz TARGET [--seconds N] [--seed N] SEED_DIRECTORY, where TARGET is one of\n");
    for (const Target& t : kTargets) std::fprintf(stderr, "  %s\n", t.name);
    return 2;
  }
  for (int i = 2; i < argc; ++i) {
    if (std::strcmp(argv[i], "--seconds") == 0 && i + 1 < argc) {
      seconds = std::atof(argv[++i]);
    } else if (std::strcmp(argv[i], "--seed") == 0 && i + 1 < argc) {
      seed = std::strtoull(argv[++i], nullptr, 10);
    } else {
      for (const auto& entry : std::filesystem::directory_iterator(argv[i])) {
        std::ifstream file(entry.path(), std::ios::binary);
        seeds.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
      }
    }
  }
  if (seeds.empty()) return std::fprintf(stderr, "no seeds\n"), 2;
  Rng rng(seed);
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  uint64_t runs = 0;
  const auto run = [&](const std::string& text) {
    // A copy of the exact size, so that reading past the end is seen.
    const std::vector<uint8_t> bytes(text.begin(), text.end());
    target->run(bytes.data(), bytes.size());
    ++runs;
  };
  for (const std::string& text : seeds) run(text);
  while (std::chrono::steady_clock::now() < end) {
    std::string text = seeds[below(rng, seeds.size())];
    for (size_t n = 1 + below(rng, 6); n > 0; --n) mutate(text, seeds, rng);
    run(text);
  }
  std::printf("%llu runs, %zu seeds, seed %llu\n", static_cast<unsigned long long>(runs), seeds.size(),
              static_cast<unsigned long long>(seed));
  const char* missed = target->missed ? target->missed() : nullptr;
  if (missed == nullptr || runs < kEnoughRuns) return 0;
  std::fprintf(stderr, "no input was %s\n", missed);
  return 1;
}
