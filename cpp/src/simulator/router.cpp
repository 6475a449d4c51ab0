#include "simulator/router.h"

#include <algorithm>
#include <array>
#include <unordered_map>
#include <utility>
#include <vector>

#include "quire/error.h"
#include "request/block_hash.h"
#include "util/str.h"

namespace quire {
namespace {

class RoundRobinRouter final : public Router {
 public:
  explicit RoundRobinRouter(size_t num_engines) : num_engines_(num_engines) {}
  size_t route(std::span<const int32_t>, const FleetLoad&) override { return next_++ % num_engines_; }
  bool depends_on_load() const override { return false; }

 private:
  size_t num_engines_;
  size_t next_ = 0;
};

class LeastLoadedRouter final : public Router {
 public:
  size_t route(std::span<const int32_t>, const FleetLoad& load) override { return load.least(); }
  bool depends_on_load() const override { return true; }
};

// Engines that were lately sent a prefix, the latest first.
class Holders {
 public:
  void add(uint32_t engine) {
    auto found = std::find(engines_.begin(), engines_.begin() + count_, engine);
    if (found == engines_.begin() + count_) {
      if (count_ < kMax) ++count_;
      found = engines_.begin() + count_ - 1;
      *found = engine;
    }
    std::rotate(engines_.begin(), found, found + 1);
  }
  std::span<const uint32_t> engines() const { return {engines_.data(), count_}; }

 private:
  static constexpr uint32_t kMax = 4;
  std::array<uint32_t, kMax> engines_{};
  uint32_t count_ = 0;
};

// Two generations: when the young one is full it becomes the old one, and what was old is forgotten. What is
// used is young again, so the least recently used goes first, roughly, and nothing is kept in order.
class PrefixIndex {
 public:
  explicit PrefixIndex(int64_t max_entries) : max_entries_(static_cast<size_t>(max_entries)) {}

  const Holders* find(const BlockHash& hash) const {
    for (const Map* map : {&young_, &old_}) {
      const auto found = map->find(hash);
      if (found != map->end()) return &found->second;
    }
    return nullptr;
  }
  void add(const BlockHash& hash, uint32_t engine) {
    auto found = young_.find(hash);
    if (found == young_.end()) {
      if (young_.size() >= max_entries_) {
        old_ = std::move(young_);
        young_ = Map();
      }
      const auto before = old_.find(hash);
      found = young_.emplace(hash, before == old_.end() ? Holders() : before->second).first;
    }
    found->second.add(engine);
  }

 private:
  struct TakeLow {
    size_t operator()(const BlockHash& hash) const { return hash.low; }
  };
  using Map = std::unordered_map<BlockHash, Holders, TakeLow>;
  size_t max_entries_;
  Map young_, old_;
};

class PrefixAwareRouter final : public Router {
 public:
  explicit PrefixAwareRouter(const RouterOptions& options) : options_(options), index_(options.max_chunks) {}

  size_t route(std::span<const int32_t> prompt, const FleetLoad& load) override {
    hash_chunks(prompt);
    const size_t engine = choose(load);
    for (const BlockHash& hash : hashes_) index_.add(hash, static_cast<uint32_t>(engine));
    return engine;
  }
  bool depends_on_load() const override { return true; }

 private:
  void hash_chunks(std::span<const int32_t> prompt) {
    const auto chunk_size = static_cast<size_t>(options_.chunk_size);
    hashes_.clear();
    BlockHashChain chain{BlockHash()};
    for (size_t i = 0; i + chunk_size <= prompt.size(); i += chunk_size) {
      chain.add_block(prompt.subspan(i, chunk_size));
      hashes_.push_back(chain.name());
    }
  }
  size_t choose(const FleetLoad& load) const {
    const double limit = options_.max_load_factor * load.mean() + static_cast<double>(options_.load_slack);
    // A prefix's chunks come and go together: the longest known one is found by bisection.
    const auto unknown = std::partition_point(hashes_.begin(), hashes_.end(), [this](const BlockHash& hash) {
      return index_.find(hash) != nullptr;
    });
    for (auto hash = unknown; hash != hashes_.begin();) {
      const Holders* holders = index_.find(*--hash);
      size_t best = SIZE_MAX;
      for (const uint32_t engine : holders->engines()) {
        if (static_cast<double>(load[engine]) > limit) continue;
        if (best == SIZE_MAX || load[engine] < load[best]) best = engine;
      }
      if (best != SIZE_MAX) return best;
    }
    return load.least();
  }

  RouterOptions options_;
  PrefixIndex index_;
  std::vector<BlockHash> hashes_;
};

}  // namespace

std::unique_ptr<Router> make_router(const RouterOptions& options, size_t num_engines) {
  if (options.policy == "round_robin") return std::make_unique<RoundRobinRouter>(num_engines);
  if (options.policy == "least_loaded") return std::make_unique<LeastLoadedRouter>();
  if (options.policy == "prefix_aware") return std::make_unique<PrefixAwareRouter>(options);
  throw InvalidArgument(
      str("router must be 'round_robin', 'least_loaded' or 'prefix_aware', got '", options.policy, "'"));
}

}  // namespace quire
