#include "worker/graph_runner.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "device/fake_kernels.h"

namespace quire {
namespace {

class GraphRunnerTest : public testing::Test {
 protected:
  void enqueue(char name) {
    FakeDeviceRuntime::enqueue(stream_.get(), [this, name] { trace_ += name; });
  }
  std::string trace() {
    check_device(runtime_, runtime_.synchronize_stream(stream_.get()), "synchronize");
    return std::exchange(trace_, {});
  }
  // What runs between pieces is enqueued as usual, with the context of that time.
  static void between(const ForwardContext& ctx, char name) {
    contexts_.push_back(&ctx);
    FakeDeviceRuntime::enqueue(ctx.launch.stream, [name] { self_->trace_ += name; });
  }
  void SetUp() override {
    self_ = this;
    contexts_.clear();
    launch_.stream = stream_.get();
  }
  FullGraph::Parts parts() {
    return {.first = [this] { enqueue('f'); },
            .between =
                [this] {
                  enqueue('a');
                  enqueue('b');
                },
            .logits = {},
            .sampling = {[this] { enqueue('z'); }}};
  }
  ForwardContext context() { return {ops_, launch_, *communicator_, arena_, {}, {}, {}, {}}; }

  FakeDevice& device_ = FakeDeviceRuntime::reset();
  const DeviceRuntime& runtime_ = FakeDeviceRuntime::table();
  DeviceStream stream_ = make_stream(runtime_);
  KernelTable ops_ = fake_kernel_table();
  LaunchContext launch_;
  std::unique_ptr<Communicator> communicator_ = make_single_communicator();
  ActivationArena arena_{4096};
  std::string trace_;
  inline static GraphRunnerTest* self_ = nullptr;
  inline static std::vector<const ForwardContext*> contexts_;
};

TEST_F(GraphRunnerTest, ACaptureComputesNothingAndAReplayEverything) {
  FullGraph graph(runtime_, stream_.get(), parts());
  EXPECT_EQ(trace(), "");
  enqueue('x');
  graph.replay(stream_.get(), true);
  enqueue('y');
  graph.replay(stream_.get(), true);
  EXPECT_EQ(trace(), "xfabzyfabz");
}

// What was launched before keeps what it was told.
TEST_F(GraphRunnerTest, TheFirstKernelAndTheLastAreToldWhatToDo) {
  FullGraph graph(runtime_, stream_.get(), parts());
  const auto tell = [&](const GraphNode& node, char name) {
    LaunchContext launch = launch_;
    launch.into = &node;
    FakeDeviceRuntime::enqueue(launch, [this, name] { trace_ += name; });
  };
  graph.replay(stream_.get(), true);
  tell(graph.first(), '1');
  graph.replay(stream_.get(), true);
  tell(graph.sampling(0), '2');
  graph.replay(stream_.get(), true);
  tell(graph.first(), '3');
  graph.replay(stream_.get(), false);
  graph.replay(stream_.get(), true);
  EXPECT_EQ(trace(), "fabz1abz1ab23ab3ab2");
}

// Kernels that sample are left out together, and then there is what others want.
TEST_F(GraphRunnerTest, AStepThatIsSampledElsewhereHasItsLogits) {
  FullGraph::Parts with_logits = parts();
  with_logits.logits = [this] { enqueue('l'); };
  with_logits.sampling.emplace_back([this] { enqueue('y'); });
  FullGraph graph(runtime_, stream_.get(), with_logits);
  for (const bool samples : {true, false, false, true, true, false}) graph.replay(stream_.get(), samples);
  EXPECT_EQ(trace(), "fabzyfablfablfabzyfabzyfabl");
  FullGraph other(runtime_, stream_.get(), with_logits);
  other.replay(stream_.get(), false);
  const GraphNode second = other.sampling(1);
  LaunchContext launch = launch_;
  launch.into = &second;
  FakeDeviceRuntime::enqueue(launch, [this] { trace_ += '2'; });
  other.replay(stream_.get(), true);
  EXPECT_EQ(trace(), "fablfabz2");
}

TEST_F(GraphRunnerTest, PiecesRunInOrderWithWhatLiesBetween) {
  float place = 0;
  const ForwardContext ctx = context();
  const PiecewiseGraph graph(runtime_, ctx, [&](const ForwardContext& in_pieces) {
    for (const char name : {'1', '2'}) {
      enqueue(static_cast<char>(name - '1' + 'a'));
      in_pieces.pieces->run_between([name](const ForwardContext& later) { between(later, name); });
    }
    enqueue('c');
    return TensorView(&place, DType::kFloat32, 1);
  });
  EXPECT_EQ(trace(), "12");  // what lies between runs once: its memory is what it will be
  EXPECT_EQ(contexts_, (std::vector<const ForwardContext*>{&ctx, &ctx}));
  for (int i = 0; i < 2; ++i) {
    contexts_.clear();
    const ForwardContext now = context();
    EXPECT_EQ(graph.replay(now).data, &place);
    EXPECT_EQ(contexts_, (std::vector<const ForwardContext*>{&now, &now}));
    EXPECT_EQ(trace(), "a1b2c");
  }
}

TEST_F(GraphRunnerTest, WhatIsThrownEndsTheCapture) {
  const int handles = device_.num_handles;
  const auto broken = [&] {
    enqueue('a');
    throw std::runtime_error("not today");
  };
  FullGraph::Parts broken_parts = parts();
  broken_parts.between = broken;
  EXPECT_THROW(FullGraph(runtime_, stream_.get(), broken_parts), std::runtime_error);
  const ForwardContext ctx = context();
  EXPECT_THROW(PiecewiseGraph(runtime_, ctx,
                              [&](const ForwardContext& in_pieces) -> TensorView {
                                enqueue('b');
                                in_pieces.pieces->run_between(
                                    [](const ForwardContext& later) { between(later, '1'); });
                                broken();
                                return {};
                              }),
               std::runtime_error);
  // Between two pieces nothing is captured.
  EXPECT_THROW(PiecewiseGraph(runtime_, ctx,
                              [&](const ForwardContext& in_pieces) -> TensorView {
                                in_pieces.pieces->run_between([&](const ForwardContext&) { broken(); });
                                return {};
                              }),
               std::runtime_error);
  EXPECT_EQ(device_.num_handles, handles);
  enqueue('z');
  EXPECT_EQ(trace(), "1az");  // the stream works as before
}

TEST_F(GraphRunnerTest, ACaptureThatTheDeviceRefusesIsNamed) {
  ASSERT_EQ(runtime_.begin_capture(stream_.get()), 0);
  try {
    const FullGraph graph(runtime_, stream_.get(), parts());
    FAIL();
  } catch (const InternalError& error) {
    EXPECT_STREQ(error.what(), "fake: capturing a graph: it broke");
  }
  void* graph = nullptr;
  runtime_.end_capture(stream_.get(), &graph);
  runtime_.destroy_graph(graph);
}

}  // namespace
}  // namespace quire
