// Division by a number that the host knows, as one product on the device.
#pragma once

#include <cstdint>

namespace quire::cuda {

class Divisor {
 public:
  explicit constexpr Divisor(int divisor)
      : divisor_(divisor),
        factor_(((uint64_t{1} << kBits) + static_cast<uint64_t>(divisor) - 1) /
                static_cast<uint64_t>(divisor)) {}
  // Whether all numbers from 0 to `most` are divided exactly.
  static constexpr bool is_exact(int64_t most, int divisor) {
    return most < int64_t{1} << (63 - kBits) && most * divisor < int64_t{1} << kBits;
  }
  constexpr int quotient(int n) const {
    return static_cast<int>(static_cast<uint64_t>(n) * factor_ >> kBits);
  }
  constexpr int rest(int n) const { return n - quotient(n) * divisor_; }

 private:
  static constexpr int kBits = 40;
  int divisor_;
  uint64_t factor_;  // 2^40 / divisor, rounded up
};

}  // namespace quire::cuda
