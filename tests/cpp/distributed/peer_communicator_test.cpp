// What the host does for ranks that have a device each; cuda_peers_test.cpp has the devices.
#include "distributed/peer_communicator.h"

#include <gtest/gtest.h>

#include <cstring>

#include "device/fake_device_runtime.h"
#include "device/runtime_handles.h"
#include "quire/error.h"

namespace quire {
namespace {

constexpr size_t kMemoryBytes = 4096, kStateBytes = 64, kIsAloneOffset = 128;
const PeerGroup* last_group = nullptr;
bool last_has_whole_writes = false;
const PeerOps kPeerOps = {.memory_bytes = kMemoryBytes,
                          .state_bytes = kStateBytes,
                          .is_alone_offset = kIsAloneOffset,
                          .load = [] { return 0; },
                          .all_reduce_sum =
                              [](const LaunchContext&, const PeerGroup& group, TensorView) {
                                last_group = &group;
                                last_has_whole_writes = group.has_whole_writes;
                              },
                          .all_gather_columns = [](const LaunchContext&, const PeerGroup& group, TensorView,
                                                   TensorView) { last_group = &group; },
                          .choose_tokens = [](const LaunchContext&, const PeerGroup& group,
                                              const SamplingArgs&) { last_group = &group; }};

class PeerCommunicatorTest : public testing::Test {
 protected:
  void SetUp() override {
    device_ = &FakeDeviceRuntime::reset();
    ops_.backend = "fake";
    ops_.peer = &kPeerOps;
  }
  auto make(std::vector<int32_t> devices) const {
    return make_peer_communicators(FakeDeviceRuntime::table(), ops_, devices);
  }
  std::string refusal(std::vector<int32_t> devices) const {
    try {
      make(std::move(devices));
      return "";
    } catch (const InvalidArgument& error) {
      return error.what();
    }
  }

  FakeDevice* device_ = nullptr;
  KernelTable ops_{};
};

TEST_F(PeerCommunicatorTest, EveryRankKnowsTheMemoryOfAll) {
  const auto ranks = make({3, 4, 5});
  std::vector<PeerGroup> groups;
  for (const auto& rank : ranks) {
    rank->all_reduce_sum({}, {});
    groups.push_back(*last_group);
    EXPECT_EQ(rank->rank(), groups.back().rank);
    EXPECT_EQ(rank->world_size(), 3);
    EXPECT_EQ(rank->device_bytes(), kMemoryBytes);
  }
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(groups[i].rank, static_cast<int32_t>(i));
    EXPECT_EQ(groups[i].memory[i], groups[0].memory[i]);
    EXPECT_EQ(groups[i].status, groups[0].status);
    EXPECT_EQ(groups[i].max_wait_ns, 60'000'000'000U);
  }
  EXPECT_NE(groups[0].memory[0], groups[0].memory[1]);
}

TEST_F(PeerCommunicatorTest, RanksKnowWhetherWritesBetweenThemAreWhole) {
  const auto knows = [&](std::vector<int32_t> devices) {
    const auto ranks = make(std::move(devices));
    ranks[0]->all_reduce_sum({}, {});
    EXPECT_EQ(ranks[0]->chooses_tokens(), last_has_whole_writes);
    return last_has_whole_writes;
  };
  EXPECT_TRUE(knows({0, 1}));
  device_->has_native_atomics = false;
  EXPECT_FALSE(knows({0, 1, 2}));
  EXPECT_TRUE(knows({1, 1})) << "on one device";
}

// What the kernels read: whether no other group has exchanges on the rank's device.
std::vector<bool> are_alone(const std::vector<std::unique_ptr<Communicator>>& ranks) {
  std::vector<bool> alone;
  for (const auto& rank : ranks) {
    rank->all_reduce_sum({}, {});
    const auto* memory = static_cast<const std::byte*>(last_group->memory[rank->rank()]);
    uint32_t is_alone = 0;
    std::memcpy(&is_alone, memory + kIsAloneOffset, sizeof is_alone);
    alone.push_back(is_alone != 0);
  }
  return alone;
}

TEST_F(PeerCommunicatorTest, RanksKnowWhetherOthersHaveExchangesOnTheirDevice) {
  const std::vector<bool> both{true, true}, neither{false, false};
  const auto first = make({0, 1});
  EXPECT_EQ(are_alone(first), both);
  {
    const auto second = make({1, 2}), third = make({3, 4});
    EXPECT_EQ(are_alone(first), (std::vector<bool>{true, false}));
    EXPECT_EQ(are_alone(second), (std::vector<bool>{false, true}));
    EXPECT_EQ(are_alone(third), both);
    first[1]->reset();
    EXPECT_EQ(are_alone(first), (std::vector<bool>{true, false})) << "after a reset";
    const auto fourth = make({1, 0});
    EXPECT_EQ(are_alone(first), neither);
    EXPECT_EQ(are_alone(fourth), neither);
    EXPECT_EQ(are_alone(make({5, 5})), neither) << "of one group";
  }
  EXPECT_EQ(are_alone(first), both);
}

TEST_F(PeerCommunicatorTest, TheMemoryGoesWithTheLastRank) {
  auto ranks = make({0, 1});
  const int all = device_->num_allocations;
  ranks.erase(ranks.begin());
  EXPECT_EQ(device_->num_allocations, all);
  ranks.clear();
  EXPECT_EQ(device_->num_allocations, 0);
  EXPECT_EQ(device_->num_handles, 0);
}

TEST_F(PeerCommunicatorTest, AnAbortIsSeenByAllUntilTheReset) {
  const auto ranks = make({0, 1});
  ranks[0]->all_reduce_sum({}, {});
  auto* state = static_cast<unsigned char*>(last_group->memory[1]);
  state[0] = state[kStateBytes - 1] = state[kStateBytes] = 7;
  EXPECT_NO_THROW(ranks[0]->check());
  ranks[1]->abort();
  EXPECT_EQ(last_group->status->aborted, 1U);
  for (const auto& rank : ranks) EXPECT_THROW(rank->check(), InternalError);
  for (const auto& rank : ranks) rank->reset();
  EXPECT_EQ(last_group->status->aborted, 0U);
  EXPECT_NO_THROW(ranks[0]->check());
  // The counters begin anew.
  EXPECT_EQ(state[0], 0);
  EXPECT_EQ(state[kStateBytes - 1], 0);
  EXPECT_EQ(state[kStateBytes], 7);
}

TEST_F(PeerCommunicatorTest, ARehearsalExchangesNothing) {
  const auto ranks = make({0, 1});
  const DeviceStream stream = make_stream(FakeDeviceRuntime::table());
  LaunchContext launch;
  launch.stream = stream.get();
  std::vector<float> out = {1, 2, 3, 4, 5, 6}, x = {7, 8};
  last_group = nullptr;
  ranks[0]->set_rehearsal(true);
  EXPECT_FALSE(ranks[0]->chooses_tokens());
  ranks[0]->all_reduce_sum(launch, {x.data(), DType::kFloat32, 2});
  ranks[0]->all_gather_columns(launch, TensorView(out.data(), DType::kFloat32, 2, 3).columns(0, 2),
                               {x.data(), DType::kFloat32, 2, 1});
  FakeDeviceRuntime::table().synchronize_stream(stream.get());
  EXPECT_EQ(last_group, nullptr);
  EXPECT_EQ(x, (std::vector<float>{7, 8}));
  EXPECT_EQ(out, (std::vector<float>{0, 0, 3, 0, 0, 6}));
  ranks[0]->set_rehearsal(false);
  EXPECT_TRUE(ranks[0]->chooses_tokens());
  ranks[0]->all_reduce_sum(launch, {});
  EXPECT_NE(last_group, nullptr);
}

TEST_F(PeerCommunicatorTest, WhoCameTooLateIsNamed) {
  const auto ranks = make({0, 1});
  ranks[0]->all_reduce_sum({}, {});
  last_group->status->timed_out = 2;  // as rank 0's device would
  last_group->status->aborted = 1;
  try {
    ranks[0]->check();
    FAIL();
  } catch (const InternalError& error) {
    EXPECT_NE(std::string(error.what()).find("rank 1 did not come to an exchange within 60000 ms"),
              std::string::npos)
        << error.what();
  }
}

TEST_F(PeerCommunicatorTest, DevicesThatDoNotReachEachOtherAreRefused) {
  device_->has_peers = false;
  EXPECT_NE(refusal({1, 2}).find("fake:1 cannot read the memory of fake:2"), std::string::npos);
}

TEST_F(PeerCommunicatorTest, MoreDevicesThanTheKernelsServeAreRefused) {
  EXPECT_NE(refusal({0, 1, 2, 3, 4, 5, 6, 7, 8}).find("tensor_parallel_size 9: 8 is the most"),
            std::string::npos);
  ops_.peer = nullptr;
  EXPECT_NE(refusal({0, 1}).find("tensor_parallel_size 2: 1 is the most"), std::string::npos);
}

TEST_F(PeerCommunicatorTest, ADeviceWithoutMemoryIsNamed) {
  device_->free_bytes = kMemoryBytes + 100;
  try {
    make({0, 1});
    FAIL();
  } catch (const ResourceExhausted& error) {
    EXPECT_NE(std::string(error.what()).find("4096 bytes on fake:1"), std::string::npos) << error.what();
  }
  EXPECT_EQ(device_->num_allocations, 0);
}

}  // namespace
}  // namespace quire
