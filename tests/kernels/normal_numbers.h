// Normal numbers to fill tensors with.
#pragma once

#include <cmath>
#include <cstdint>

#include "util/sanitizer_ranges.h"

namespace quire {

// Box and Muller's (1958) of SplitMix64 (Steele, Lea, Flood 2014). Tests of kernels begin with tens of
// millions of numbers, and a sanitizer looks into each step of the standard library's.
class NormalNumbers {
 public:
  explicit NormalNumbers(uint64_t seed) : state_(seed) {}

  QUIRE_RANGES_TOLD float operator()() {
    has_second_ = !has_second_;
    if (!has_second_) return second_;
    uint64_t z = state_ += 0x9E3779B97F4A7C15;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    z ^= z >> 31;
    const float uniform = static_cast<float>((z >> 40) + 1) * 0x1p-24F;  // above 0
    const float radius = std::sqrt(-2 * std::log(uniform));
    const float angle = static_cast<float>(z & 0xFFFFFF) * (6.2831853F * 0x1p-24F);
    second_ = radius * std::sin(angle);
    return radius * std::cos(angle);
  }

 private:
  uint64_t state_;
  float second_ = 0;
  bool has_second_ = false;
};

}  // namespace quire
