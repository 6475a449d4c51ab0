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

// One graph. What it reads and writes lies where it did when it was captured.
class FullGraph {
 public:
  // Captures what `enqueue` gives to `stream`. Throws what it throws.
  FullGraph(const DeviceRuntime& runtime, void* stream, const std::function<void()>& enqueue);
  void replay(void* stream) const;

 private:
  const DeviceRuntime* runtime_;
  DeviceGraph graph_;
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
