// Captured forward passes.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <vector>

#include "device/runtime_handles.h"
#include "layers/context.h"
#include "layers/lora.h"

namespace quire {

// What a graph was captured for: a graph of another hash is another graph.
struct GraphKey {
  uint64_t compute_hash = 0;
  int32_t num_tokens = 0;  // with padding
  int32_t query_len = 1;   // of every row of a full one
  LoraUse loras = LoraUse::kNone;
  bool has_cascade = false;  // whether attention hears of keys that rows share

  auto operator<=>(const GraphKey&) const = default;
};

// One graph of a whole step. What it reads and writes lies where it did when it was captured, but for what
// its first kernel, which makes the inputs, and those that sample are told for each step.
class FullGraph {
 public:
  // Each gives kernels to a stream: `first` and each of `sampling` one that takes LaunchContext::into, and
  // `logits`, unless it is empty, one that only steps have which are not sampled in the graph. These and
  // `sampling` wait for all kernels in front, as they may be left out.
  struct Parts {
    std::function<void()> first, between, logits;
    std::vector<std::function<void()>> sampling;
  };
  // Captures what they give to `stream`. Throws what they throw.
  FullGraph(const DeviceRuntime& runtime, void* stream, const Parts& parts);

  GraphNode first() const { return {graph_.get(), first_}; }
  GraphNode sampling(size_t i) const { return {graph_.get(), sampling_.at(i)}; }
  void replay(void* stream, bool samples);

 private:
  void enable(void* node, bool on);

  const DeviceRuntime* runtime_;
  DeviceGraph graph_;
  void *first_ = nullptr, *logits_ = nullptr;
  std::vector<void*> sampling_;
  bool has_logits_ = true, samples_ = true;
};

// Several graphs, and what runs between them.
class PiecewiseGraph {
 public:
  // `enqueue` runs a forward pass with the pieces it is given and returns its hidden states.
  PiecewiseGraph(const DeviceRuntime& runtime, const ForwardContext& ctx,
                 const std::function<TensorView(const ForwardContext&)>& enqueue);
  // The hidden states.
  TensorView replay(const ForwardContext& ctx) const;

 private:
  const DeviceRuntime* runtime_;
  std::vector<DeviceGraph> graphs_;
  std::vector<GraphPieces::Between> between_;  // after each graph but the last
  TensorView hidden_;
};

}  // namespace quire
