// Which engine of a fleet a request goes to.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "simulator/min_tree.h"

namespace quire {

// How much each engine has to do, in tokens.
class FleetLoad {
 public:
  explicit FleetLoad(size_t num_engines) : tree_(num_engines), num_engines_(num_engines) {
    for (size_t i = 0; i < num_engines; ++i) tree_.set(i, 0);
  }
  void set(size_t engine, int64_t num_tokens) {
    total_ += num_tokens - tree_[engine];
    tree_.set(engine, num_tokens);
  }
  int64_t operator[](size_t engine) const { return tree_[engine]; }
  size_t least() const { return tree_.min_index(); }
  double mean() const { return static_cast<double>(total_) / static_cast<double>(num_engines_); }

 private:
  MinTree tree_;
  size_t num_engines_;
  int64_t total_ = 0;
};

class Router {
 public:
  virtual ~Router() = default;
  virtual size_t route(std::span<const int32_t> prompt, const FleetLoad& load) = 0;
  // Whether it looks at the load: if not, engines need not be simulated side by side.
  virtual bool depends_on_load() const = 0;
};

struct RouterOptions {
  std::string policy = "round_robin";
  // "prefix_aware" passes over an engine whose load is above max_load_factor times the mean plus load_slack
  // tokens, which keep an idle fleet from being out of balance.
  double max_load_factor = 1.25;
  int64_t load_slack = 0;
  // Tokens: shorter prefixes are not worth a place in the router's memory of prefixes.
  int32_t chunk_size = 64;
  int64_t max_chunks = 1 << 18;  // that memory holds between this many chunks and twice as many
};

// "round_robin": in turn.
// "least_loaded": the engine with the fewest tokens to do, the first among equals.
// "prefix_aware": of the engines that were lately sent the longest prefix of this prompt, the least loaded
// one
//     that is not overloaded; else as "least_loaded".
// Throws InvalidArgument for another name.
std::unique_ptr<Router> make_router(const RouterOptions& options, size_t num_engines);

}  // namespace quire
