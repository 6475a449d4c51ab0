// Graphs of a device: what is captured, and what their kernels are told later.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "device/runtime_handles.h"
#include "quire/kernels/backend_registry.h"
#include "quire/kernels/batch_ops.h"

namespace quire {
namespace {

class CudaGraphTest : public testing::Test {
 protected:
  void SetUp() override {
    ops_ = cuda_kernel_table(0);
    if (ops_ == nullptr) GTEST_SKIP() << "no CUDA device";
    runtime_ = find_device_runtime("cuda");
    ASSERT_EQ(runtime_->select(0), 0);
    stream_ = make_stream(*runtime_);
    memory_ = make_pinned(*runtime_, kBytes * 4);
    launch_ = {.stream = stream_.get(), .error = &error_};
  }
  std::byte* place(size_t index) { return static_cast<std::byte*>(memory_.get()) + index * kBytes; }
  // How many bytes in front are that.
  size_t count(size_t index, int byte) {
    return static_cast<size_t>(std::find_if_not(place(index), place(index) + kBytes,
                                                [&](std::byte b) { return b == std::byte(byte); }) -
                               place(index));
  }
  void begin() { ASSERT_EQ(runtime_->begin_capture(stream_.get()), 0); }
  DeviceGraph end() {
    void* graph = nullptr;
    EXPECT_EQ(runtime_->end_capture(stream_.get(), &graph), 0);
    return DeviceGraph(*runtime_, graph);
  }
  void launch(const DeviceGraph& graph) {
    ASSERT_EQ(runtime_->launch_graph(graph.get(), stream_.get()), 0);
    ASSERT_EQ(runtime_->synchronize_stream(stream_.get()), 0);
  }

  static constexpr size_t kBytes = size_t{1} << 20;
  const KernelTable* ops_ = nullptr;
  const DeviceRuntime* runtime_ = nullptr;
  DeviceStream stream_;
  PinnedMemory memory_;
  LaunchError error_;
  LaunchContext launch_;
};

// Little is filled by a kernel, much as it was captured.
TEST_F(CudaGraphTest, WhatIsFilledIsFilledInItsTurn) {
  for (const size_t bytes : {size_t{1}, size_t{4}, size_t{102}, size_t{65536}, kBytes}) {
    SCOPED_TRACE(bytes);
    begin();
    runtime_->fill(place(0), 1, bytes, stream_.get());
    runtime_->copy(place(1), place(0), bytes, stream_.get());
    runtime_->fill(place(0), 2, bytes, stream_.get());
    runtime_->fill(place(0), 0x83, bytes / 2, stream_.get());
    runtime_->copy(place(2), place(0), bytes, stream_.get());
    const DeviceGraph graph = end();
    for (int i = 0; i < 2; ++i) {
      std::fill_n(place(0), 3 * kBytes, std::byte{9});
      launch(graph);
      EXPECT_EQ(count(1, 1), bytes);
      EXPECT_EQ(count(2, 0x83), bytes / 2);
      EXPECT_EQ(std::count(place(2), place(2) + kBytes, std::byte{2}), bytes - bytes / 2);
      EXPECT_EQ(std::count(place(2), place(2) + kBytes, std::byte{9}), kBytes - bytes);
    }
  }
}

TEST_F(CudaGraphTest, AKernelIsToldWhatToDoBetweenLaunches) {
  constexpr size_t kBrought = 64;
  std::fill_n(place(0), kBytes, std::byte{5});
  std::fill_n(place(1), kBytes, std::byte{6});
  PrepareInputsArgs args;
  args.padded_rows = -1;
  void* node = nullptr;
  begin();
  ops_->batch->prepare_inputs(launch_, args);
  ASSERT_EQ(runtime_->captured_node(stream_.get(), &node), 0);
  runtime_->copy(place(3), place(2), kBrought, stream_.get());
  const DeviceGraph graph = end();
  const auto clear = [&] { std::fill_n(place(2), 2 * kBytes, std::byte{0}); };
  const GraphNode told = {graph.get(), node};
  LaunchContext into = launch_;
  into.into = &told;

  clear();
  launch(graph);
  EXPECT_EQ(count(3, 0), kBytes);  // it does nothing yet
  for (const size_t from : {0, 1, 0}) {
    args.bytes = {place(2), place(from), kBrought};
    ops_->batch->prepare_inputs(into, args);
    for (const bool enabled : {true, false, true}) {
      SCOPED_TRACE(enabled);
      ASSERT_EQ(runtime_->enable_node(graph.get(), node, enabled), 0);
      clear();
      launch(graph);
      EXPECT_EQ(count(3, enabled ? static_cast<int>(5 + from) : 0), enabled ? kBrought : kBytes);
    }
  }
  EXPECT_FALSE(error_.failed) << error_.text;
}

TEST_F(CudaGraphTest, WhatIsNoKernelOfTheGraphIsRefused) {
  void* node = nullptr;
  EXPECT_NE(runtime_->captured_node(stream_.get(), &node), 0);  // nothing is captured
  EXPECT_EQ(node, nullptr);
  SamplingArgs args{};
  args.logits = {memory_.get(), DType::kFloat32, 1, 16};
  const GraphNode none;
  LaunchContext into = launch_;
  into.into = &none;
  ops_->sample(into, args);  // with filters it takes several
  EXPECT_TRUE(error_.failed);
}

}  // namespace
}  // namespace quire
