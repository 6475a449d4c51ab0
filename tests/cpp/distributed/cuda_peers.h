// Ranks of a test that exchange through CUDA devices. A device may have two of them: each has room for the
// blocks of two exchanges that wait for each other. Skipped where there are too few.
#pragma once

#include <gtest/gtest.h>

#include <barrier>
#include <chrono>
#include <thread>
#include <vector>

#include "device/runtime_handles.h"
#include "distributed/peer_communicator.h"
#include "quire/kernels/backend_registry.h"

namespace quire {

// A rank's own thread, stream and tensors.
class Peer {
 public:
  Peer(const DeviceRuntime& runtime, int32_t device, Communicator& communicator, std::barrier<>& all)
      : communicator(communicator), runtime_(runtime), all_(all) {
    select(device);
    stream_ = make_stream(runtime);
    launch_.stream = stream_.get();
    launch_.error = &error_;
  }
  Communicator& communicator;
  const LaunchContext& launch() const { return launch_; }

  void select(int32_t device) const { check_device(runtime_, runtime_.select(device), "selecting"); }
  void* to_device(const void* from, size_t bytes) {
    void* data = nullptr;
    check_device(runtime_, runtime_.allocate(&data, bytes), "allocating");
    memory_.emplace_back(runtime_, data);
    copy(data, from, bytes);
    wait();
    return data;
  }
  void copy(void* to, const void* from, size_t bytes) {
    check_device(runtime_, runtime_.copy(to, from, bytes, stream_.get()), "copying");
  }
  template <typename T>
  std::vector<T> to_host(const void* from, size_t count) {
    std::vector<T> values(count);
    copy(values.data(), from, count * sizeof(T));
    wait();
    return values;
  }
  // All ranks have come here. An allocation may wait for what runs on its device, where two ranks that share
  // it may wait for each other: all allocate, and make graphs, before one exchanges.
  void meet_others() { all_.arrive_and_wait(); }
  void wait() {
    check_device(runtime_, runtime_.synchronize_stream(stream_.get()), "waiting");
    check_launches(error_);
  }
  DeviceGraph capture(const auto& enqueue) {
    check_device(runtime_, runtime_.begin_capture(stream_.get()), "capturing");
    enqueue();
    void* graph = nullptr;
    check_device(runtime_, runtime_.end_capture(stream_.get(), &graph), "capturing");
    return {runtime_, graph};
  }
  void replay(const DeviceGraph& graph) {
    check_device(runtime_, runtime_.launch_graph(graph.get(), stream_.get()), "replaying");
  }

 private:
  const DeviceRuntime& runtime_;
  std::barrier<>& all_;
  DeviceStream stream_;
  LaunchError error_;
  LaunchContext launch_;
  std::vector<DeviceMemory> memory_;
};

// Of so many ranks.
class CudaPeersTest : public testing::TestWithParam<int32_t> {
 protected:
  void SetUp() override {
    ops_ = cuda_kernel_table(0);
    int32_t num_devices = 0;
    while (ops_ != nullptr && cuda_kernel_table(num_devices) == ops_) ++num_devices;
    if (GetParam() > 2 * num_devices) GTEST_SKIP() << "too few CUDA devices";
    runtime_ = find_device_runtime("cuda");
    for (int32_t rank = 0; rank < GetParam(); ++rank) {
      devices_.push_back(rank % num_devices);
      bool can = true;
      if (devices_.back() != 0) {
        ASSERT_EQ(runtime_->can_access_peer(&can, 0, devices_.back()), 0);
      }
      if (!can) {
        GTEST_SKIP() << "devices 0 and " << devices_.back() << " do not reach each other";
      }
    }
  }
  // Runs body(peer) on a thread for each rank.
  void on_peers(const auto& body, std::chrono::milliseconds max_wait = std::chrono::seconds(60)) const {
    const auto ranks = make_peer_communicators(*runtime_, *ops_, devices_, max_wait);
    std::barrier all(GetParam());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < ranks.size(); ++i) {
      threads.emplace_back([&, i] {
        Peer peer(*runtime_, devices_[i], *ranks[i], all);
        body(peer);
        peer.wait();
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  int32_t world_size() const { return static_cast<int32_t>(devices_.size()); }
  // For graphs, of which nothing says that two run side by side on one device.
  bool has_own_devices() const { return static_cast<int32_t>(devices_.size()) == devices_.back() + 1; }

  const KernelTable* ops_ = nullptr;
  const DeviceRuntime* runtime_ = nullptr;
  std::vector<int32_t> devices_;
};

}  // namespace quire
