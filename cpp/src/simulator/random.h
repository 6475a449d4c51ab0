// Random numbers that are the same everywhere: the standard library leaves its distributions to the vendor.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>

namespace quire {

// Every input bit reaches every output bit (the finalizer of SplitMix64, Steele et al. 2014).
constexpr uint64_t mix_bits(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

class Random {
 public:
  explicit Random(uint64_t seed) : state_(mix_bits(seed + 0x9E3779B97F4A7C15)) {}

  uint64_t next() { return mix_bits(state_ += 0x9E3779B97F4A7C15); }
  // In (0, 1].
  double uniform() { return static_cast<double>((next() >> 11) + 1) * 0x1p-53; }
  // In [0, n), n >= 1.
  uint64_t below(uint64_t n) {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(next()) * n) >> 64);
  }
  double exponential(double mean) { return -mean * std::log(uniform()); }
  double normal() {
    const double radius = std::sqrt(-2.0 * std::log(uniform()));
    return radius * std::cos(2.0 * std::numbers::pi * uniform());
  }

 private:
  uint64_t state_;
};

}  // namespace quire
