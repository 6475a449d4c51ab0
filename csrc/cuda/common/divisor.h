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
  constexpr int divisor() const { return divisor_; }
  // Of n >= 0 with n * divisor below 2^40, and n below 2^23.
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
