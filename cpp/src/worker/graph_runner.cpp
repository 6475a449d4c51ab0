#include "worker/graph_runner.h"

namespace quire {
namespace {

void begin(const DeviceRuntime& runtime, void* stream) {
  check_device(runtime, runtime.begin_capture(stream), "capturing a graph");
}

DeviceGraph end(const DeviceRuntime& runtime, void* stream) {
  void* graph = nullptr;
  const int code = runtime.end_capture(stream, &graph);
  DeviceGraph owned(runtime, graph);
  check_device(runtime, code, "capturing a graph");
  return owned;
}

// A stream must not stay in capture mode behind an exception.
void give_up(const DeviceRuntime& runtime, void* stream) {
  void* graph = nullptr;
  runtime.end_capture(stream, &graph);
  const DeviceGraph owned(runtime, graph);
}

class Capture final : public GraphPieces {
 public:
  Capture(const DeviceRuntime& runtime, const ForwardContext& ctx, std::vector<DeviceGraph>& graphs,
          std::vector<Between>& between)
      : runtime_(runtime), ctx_(ctx), graphs_(graphs), between_(between) {}

  void run_between(Between run) override {
    graphs_.push_back(end(runtime_, ctx_.launch.stream));
    run(ctx_);
    between_.push_back(std::move(run));
    begin(runtime_, ctx_.launch.stream);
  }

 private:
  const DeviceRuntime& runtime_;
  const ForwardContext& ctx_;
  std::vector<DeviceGraph>& graphs_;
  std::vector<Between>& between_;
};

}  // namespace

FullGraph::FullGraph(const DeviceRuntime& runtime, void* stream, const Parts& parts) : runtime_(&runtime) {
  const auto given_last = [&] {
    void* node = nullptr;
    check_device(runtime, runtime.captured_node(stream, &node), "capturing a graph");
    return node;
  };
  begin(runtime, stream);
  try {
    parts.first();
    first_ = given_last();
    parts.between();
    if (parts.logits) {
      parts.logits();
      logits_ = given_last();
    }
    for (const auto& kernel : parts.sampling) {
      kernel();
      sampling_.push_back(given_last());
    }
  } catch (...) {
    give_up(runtime, stream);
    throw;
  }
  graph_ = end(runtime, stream);
}

void FullGraph::enable(void* node, bool on) {
  check_device(*runtime_, runtime_->enable_node(graph_.get(), node, on), "changing a graph");
}

void FullGraph::replay(void* stream, bool samples) {
  if (samples != samples_) {
    for (void* node : sampling_) enable(node, samples);
    samples_ = samples;
  }
  if (logits_ != nullptr && has_logits_ == samples) {
    enable(logits_, !samples);
    has_logits_ = !samples;
  }
  check_device(*runtime_, runtime_->launch_graph(graph_.get(), stream), "replaying a graph");
}

PiecewiseGraph::PiecewiseGraph(const DeviceRuntime& runtime, const ForwardContext& ctx,
                               const std::function<TensorView(const ForwardContext&)>& enqueue)
    : runtime_(&runtime) {
  Capture capture(runtime, ctx, graphs_, between_);
  ForwardContext in_pieces = ctx;
  in_pieces.pieces = &capture;
  begin(runtime, ctx.launch.stream);
  try {
    hidden_ = enqueue(in_pieces);
  } catch (...) {
    give_up(runtime, ctx.launch.stream);
    throw;
  }
  graphs_.push_back(end(runtime, ctx.launch.stream));
}

TensorView PiecewiseGraph::replay(const ForwardContext& ctx) const {
  for (size_t i = 0; i < graphs_.size(); ++i) {
    check_device(*runtime_, runtime_->launch_graph(graphs_[i].get(), ctx.launch.stream), "replaying a graph");
    if (i < between_.size()) between_[i](ctx);
  }
  return hidden_;
}

}  // namespace quire
