// How often each value occurred, to within a quarter of a percent, in memory that does not grow.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <vector>

namespace quire {

// Counts whole numbers >= 0 (nanoseconds). Exact below 512, then 256 buckets to each power of two. Adding and
// merging are sums of integers: any order gives the same histogram.
class Histogram {
 public:
  void add(int64_t value, int64_t count = 1) {
    const size_t bucket = bucket_of(static_cast<uint64_t>(value));
    if (bucket >= counts_.size()) counts_.resize(bucket + 1);
    counts_[bucket] += count;
    count_ += count;
    sum_ += static_cast<__int128>(value) * count;
    min_ = std::min(min_, value);
    max_ = std::max(max_, value);
  }
  void merge(const Histogram& other) {
    if (other.counts_.size() > counts_.size()) counts_.resize(other.counts_.size());
    for (size_t i = 0; i < other.counts_.size(); ++i) counts_[i] += other.counts_[i];
    count_ += other.count_;
    sum_ += other.sum_;
    min_ = std::min(min_, other.min_);
    max_ = std::max(max_, other.max_);
  }

  int64_t count() const { return count_; }
  double mean() const { return count_ == 0 ? 0.0 : static_cast<double>(sum_) / static_cast<double>(count_); }
  int64_t max() const { return count_ == 0 ? 0 : max_; }
  // The value below or at which `quantile` of the values lie: the middle of its bucket. 0 when there are
  // none.
  double quantile(double quantile) const {
    if (count_ == 0) return 0.0;
    const auto rank = std::clamp<int64_t>(
        static_cast<int64_t>(quantile * static_cast<double>(count_) + 0.999999), 1, count_);
    int64_t seen = 0;
    size_t bucket = 0;
    while ((seen += counts_[bucket]) < rank) ++bucket;
    const double middle =
        (static_cast<double>(first_of(bucket)) + static_cast<double>(first_of(bucket + 1) - 1)) / 2;
    return std::clamp(middle, static_cast<double>(min_), static_cast<double>(max_));
  }

 private:
  static constexpr int kBits = 8;

  static size_t bucket_of(uint64_t value) {
    const int shift = std::max(static_cast<int>(std::bit_width(value)) - kBits - 1, 0);
    return (static_cast<size_t>(shift) << kBits) + (value >> shift);
  }
  static uint64_t first_of(size_t bucket) {
    const size_t shift = bucket < (size_t{2} << kBits) ? 0 : (bucket >> kBits) - 1;
    return (bucket - (shift << kBits)) << shift;
  }

  std::vector<int64_t> counts_;
  int64_t count_ = 0;
  __int128 sum_ = 0;
  int64_t min_ = std::numeric_limits<int64_t>::max();
  int64_t max_ = 0;
};

}  // namespace quire
