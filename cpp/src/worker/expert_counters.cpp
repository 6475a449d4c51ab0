#include "worker/expert_counters.h"

#include <algorithm>
#include <atomic>
#include <utility>

namespace quire {

ExpertCounters::ExpertCounters(std::vector<ExpertLoad> layers) : layers_(std::move(layers)) {
  for (const ExpertLoad& layer : layers_) num_counts_ += layer.num_tokens.size();
}

void ExpertCounters::place(DeviceArena& arena, const Platform& platform) {
  if (num_counts_ == 0) return;
  platform_ = &platform;
  counts_ = arena.take<uint64_t>(num_counts_);
  if (platform.runtime() != nullptr) stream_ = make_stream(*platform.runtime());
  clear();
}

void ExpertCounters::clear() {
  if (counts_ == nullptr) return;
  if (const DeviceRuntime* runtime = platform_->runtime()) {
    const size_t bytes = num_counts_ * sizeof(uint64_t);
    check_device(*runtime, runtime->fill(counts_, 0, bytes, platform_->launch().stream),
                 "clearing the counts of experts");
  } else {
    std::fill_n(counts_, num_counts_, 0);
  }
}

std::vector<ExpertLoad> ExpertCounters::read() const {
  std::vector<ExpertLoad> loads = layers_;
  if (counts_ == nullptr) return loads;
  std::vector<uint64_t> counts(num_counts_);
  if (const DeviceRuntime* runtime = platform_->runtime()) {
    const size_t bytes = num_counts_ * sizeof(uint64_t);
    check_device(*runtime, runtime->copy(counts.data(), counts_, bytes, stream_.get()),
                 "reading the counts of experts");
    check_device(*runtime, runtime->synchronize_stream(stream_.get()), "reading the counts of experts");
  } else {
    for (size_t i = 0; i < num_counts_; ++i)
      counts[i] = std::atomic_ref(counts_[i]).load(std::memory_order_relaxed);
  }
  auto from = counts.begin();
  for (ExpertLoad& load : loads) {
    const auto to = from + static_cast<std::ptrdiff_t>(load.num_tokens.size());
    std::copy(from, to, load.num_tokens.begin());
    from = to;
  }
  return loads;
}

}  // namespace quire
