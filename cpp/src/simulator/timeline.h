// What a fleet held over time: integrals of a few quantities, in a fixed number of bins.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

namespace quire {

// A bin is as wide as it must be for all of time so far to fit: when time goes on, neighbours are merged.
// Sums of integers: adding and merging in any order give the same.
class Timeline {
 public:
  enum Quantity : size_t { kRunning, kWaiting, kUsedBlocks, kNumQuantities };
  using Values = std::array<int64_t, kNumQuantities>;
  using Sums = std::array<__int128, kNumQuantities>;  // blocks of a fleet times nanoseconds of days
  static constexpr int64_t kNumBins = 512;

  // The values held during [begin, end).
  void add(int64_t begin_ns, int64_t end_ns, const Values& values) {
    while ((end_ns - 1) / kNumBins >= bin_ns_) coarsen();
    while (begin_ns < end_ns) {
      const int64_t bin = begin_ns / bin_ns_;
      const int64_t part_ns = std::min(end_ns, (bin + 1) * bin_ns_) - begin_ns;
      for (size_t q = 0; q < kNumQuantities; ++q)
        bins_[static_cast<size_t>(bin)][q] += static_cast<__int128>(values[q]) * part_ns;
      begin_ns += part_ns;
    }
  }
  void merge(Timeline other) {
    while (bin_ns_ < other.bin_ns_) coarsen();
    while (other.bin_ns_ < bin_ns_) other.coarsen();
    for (size_t bin = 0; bin < bins_.size(); ++bin) {
      for (size_t q = 0; q < kNumQuantities; ++q) bins_[bin][q] += other.bins_[bin][q];
    }
  }

  int64_t bin_ns() const { return bin_ns_; }
  // The mean over a bin's width.
  double mean(int64_t bin, Quantity quantity) const {
    return static_cast<double>(bins_[static_cast<size_t>(bin)][quantity]) / static_cast<double>(bin_ns_);
  }

 private:
  void coarsen() {
    for (size_t bin = 0; bin < bins_.size(); ++bin) {
      Sums sum{};
      for (size_t part = 2 * bin; part < std::min(2 * bin + 2, bins_.size()); ++part) {
        for (size_t q = 0; q < kNumQuantities; ++q) sum[q] += bins_[part][q];
      }
      bins_[bin] = sum;
    }
    bin_ns_ *= 2;
  }

  int64_t bin_ns_ = 1 << 20;  // about a millisecond
  std::vector<Sums> bins_ = std::vector<Sums>(kNumBins);
};

}  // namespace quire
