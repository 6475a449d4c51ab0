// Exchanges between CUDA devices that read each other's memory.
#include "distributed/cuda_peers.h"

#include <cstring>
#include <random>

#include "quire/error.h"
#include "util/half_float.h"

namespace quire {
namespace {

using std::chrono::milliseconds;

// The values of a rank, which every thread can compute.
std::vector<float> values_of(int32_t rank, size_t count, unsigned seed) {
  std::mt19937 random(seed * 97 + static_cast<unsigned>(rank));
  std::vector<float> values(count);
  for (float& value : values) {
    value = (static_cast<float>(random() % 20001) - 10000.0F) / 256.0F * (random() % 7 == 0 ? 64.0F : 1.0F);
  }
  return values;
}

template <typename T>
void expect_sum(Peer& peer, DType dtype, size_t count, T (*store)(float), float (*load)(T),
                milliseconds late = milliseconds(0)) {
  const auto seed = static_cast<unsigned>(count);
  std::vector<T> mine(count), expected(count);
  std::vector<float> sum(count);
  for (int32_t rank = 0; rank < peer.communicator.world_size(); ++rank) {
    const auto values = values_of(rank, count, seed);
    for (size_t i = 0; i < count; ++i) {
      const T value = store(values[i]);
      if (rank == peer.communicator.rank()) mine[i] = value;
      sum[i] += load(value);
    }
  }
  for (size_t i = 0; i < count; ++i) expected[i] = store(sum[i]);
  void* x = peer.to_device(mine.data(), count * sizeof(T));
  peer.meet_others();
  std::this_thread::sleep_for(late);
  peer.communicator.all_reduce_sum(peer.launch(), {x, dtype, static_cast<int64_t>(count)});
  const auto got = peer.to_host<T>(x, count);
  EXPECT_EQ(std::memcmp(got.data(), expected.data(), count * sizeof(T)), 0)
      << count << " of " << dtype_name(dtype) << " on rank " << peer.communicator.rank();
}

// Odd sizes, the sizes of steps, and rings gone round several times.
TEST_P(CudaPeersTest, SumsAreThoseOfAPlainLoopBitwise) {
  on_peers([](Peer& peer) {
    for (const size_t count : {1, 7, 8, 513, 4096, 4096 * 24 + 5, 1 << 20, 8192 * 257, (5 << 20) + 40,
                               (9 << 20) + 3, (18 << 20) + 24}) {
      expect_sum<float>(peer, DType::kFloat32, count, [](float x) { return x; }, [](float x) { return x; });
      expect_sum<uint16_t>(peer, DType::kBFloat16, count, float_to_bf16, bf16_to_float);
      expect_sum<uint16_t>(peer, DType::kFloat16, count, float_to_fp16, fp16_to_float);
    }
  });
}

TEST_P(CudaPeersTest, ColumnsAreGatheredAndPaddingIsDropped) {
  struct Shape {
    int64_t rows, columns, out_columns, out_stride;  // of one rank, of all, with the rows' ends
  };
  const int64_t world = world_size();
  const Shape shapes[] = {{1, 1, world, world},
                          {3, 5, 5 * world - 2, 5 * world + 3},
                          {7, 2004, 2004 * world - 1, 2004 * world - 1},
                          {2, 64, 64 * world - 4, 64 * world},
                          {97, 64128, 64128 * world - 64, 64128 * world - 64},
                          {13, 1 << 20, (1 << 20) * world - 3, (1 << 20) * world}};
  on_peers([&](Peer& peer) {
    for (const Shape& shape : shapes) {
      const auto value = [](int32_t rank, int64_t row, int64_t column) {
        return static_cast<uint32_t>(rank * 1'000'003 + row * 1009 + column * 7);
      };
      std::vector<uint32_t> mine;
      for (int64_t row = 0; row < shape.rows; ++row) {
        for (int64_t column = 0; column < shape.columns; ++column)
          mine.push_back(value(peer.communicator.rank(), row, column));
      }
      std::vector<uint32_t> expected(static_cast<size_t>(shape.rows * shape.out_stride), 42);
      void* x = peer.to_device(mine.data(), mine.size() * 4);
      void* out = peer.to_device(expected.data(), expected.size() * 4);
      for (int64_t row = 0; row < shape.rows; ++row) {
        for (int64_t column = 0; column < shape.out_columns; ++column) {
          expected[static_cast<size_t>(row * shape.out_stride + column)] =
              value(static_cast<int32_t>(column / shape.columns), row, column % shape.columns);
        }
      }
      peer.meet_others();
      peer.communicator.all_gather_columns(
          peer.launch(),
          TensorView(out, DType::kFloat32, shape.rows, shape.out_stride).columns(0, shape.out_columns),
          {x, DType::kFloat32, shape.rows, shape.columns});
      EXPECT_EQ(peer.to_host<uint32_t>(out, expected.size()), expected) << shape.rows << " rows";
    }
  });
}

// A graph of exchanges of many sizes, large and small in turn, is replayed with new values and without
// waiting: a rank that overwrote what another still reads, or read before it was written, would show.
TEST_P(CudaPeersTest, GraphsOfExchangesMayBeReplayed) {
  if (!has_own_devices()) GTEST_SKIP() << "ranks share devices";
  on_peers([&](Peer& peer) {
    const std::vector<int64_t> sizes = {65536, 8, 1'500'000, 1, 4096, 262'144, 64, 3 << 20, 9, 1 << 20, 16};
    const auto rank = static_cast<float>(peer.communicator.rank());
    const int64_t largest = 3 << 20;
    const std::vector<float> zeros(static_cast<size_t>(largest));
    std::vector<void*> tensors;
    for (const int64_t size : sizes)
      tensors.push_back(peer.to_device(zeros.data(), static_cast<size_t>(size) * 4));
    void* source = peer.to_device(zeros.data(), static_cast<size_t>(largest) * 4);
    const DeviceGraph graph = peer.capture([&] {
      for (size_t i = 0; i < sizes.size(); ++i) {
        peer.copy(tensors[i], source, static_cast<size_t>(sizes[i]) * 4);
        peer.communicator.all_reduce_sum(peer.launch(), {tensors[i], DType::kFloat32, sizes[i]});
      }
    });
    peer.meet_others();
    for (int round = 0; round < 20; ++round) {
      std::vector<float> values(static_cast<size_t>(largest));
      for (size_t i = 0; i < values.size(); ++i)
        values[i] = rank + static_cast<float>(round) + static_cast<float>(i % 1000);
      peer.copy(source, values.data(), values.size() * 4);
      peer.wait();
      for (int replay = 0; replay < 5; ++replay) peer.replay(graph);
      // One between graphs, of the same counters.
      peer.communicator.all_reduce_sum(peer.launch(), {source, DType::kFloat32, 1000});
      tensors.push_back(source);
      for (size_t i = 0; i < tensors.size(); ++i) {
        const auto count = static_cast<size_t>(i < sizes.size() ? sizes[i] : 1000);
        const auto got = peer.to_host<float>(tensors[i], count);
        const auto world = static_cast<float>(peer.communicator.world_size());
        for (size_t k = 0; k < count; ++k) {
          ASSERT_EQ(got[k], world * (static_cast<float>(round) + static_cast<float>(k % 1000)) +
                                world * (world - 1) / 2)
              << "round " << round << ", tensor " << i << ", element " << k;
        }
      }
      tensors.pop_back();
    }
  });
}

// The same of gathering, twice without anything between, beside sums of either kind.
TEST_P(CudaPeersTest, GathersAndSumsFollowEachOther) {
  if (!has_own_devices()) GTEST_SKIP() << "ranks share devices";
  on_peers([&](Peer& peer) {
    constexpr int64_t kRows = 2, kColumns = 700'000, kSize = kRows * kColumns;
    const int64_t world = world_size();
    const std::vector<float> zeros(static_cast<size_t>(kSize * world));
    const auto make = [&] { return peer.to_device(zeros.data(), zeros.size() * 4); };
    void* source = make();
    const std::vector<void*> gathered = {make(), make(), make()};
    void *small = make(), *large = make();
    const auto gather = [&](void* out) {
      peer.communicator.all_gather_columns(peer.launch(), {out, DType::kFloat32, kRows, kColumns * world},
                                           {source, DType::kFloat32, kRows, kColumns});
    };
    const auto sum = [&](void* x, int64_t count) {
      peer.copy(x, source, static_cast<size_t>(count) * 4);
      peer.communicator.all_reduce_sum(peer.launch(), {x, DType::kFloat32, count});
    };
    const DeviceGraph graph = peer.capture([&] {
      gather(gathered[0]);
      gather(gathered[1]);
      sum(large, kSize);
      sum(small, 999);
      gather(gathered[2]);
    });
    peer.meet_others();
    const auto value = [](int64_t rank, int round, int64_t i) {
      return static_cast<float>(rank * 4096 + round * 128 + i % 101);
    };
    for (int round = 0; round < 10; ++round) {
      std::vector<float> mine;
      for (int64_t i = 0; i < kSize; ++i) mine.push_back(value(peer.communicator.rank(), round, i));
      peer.copy(source, mine.data(), mine.size() * 4);
      peer.wait();
      for (int replay = 0; replay < 5; ++replay) peer.replay(graph);
      std::vector<float> expected, sums;
      for (int64_t row = 0; row < kRows; ++row)
        for (int64_t rank = 0; rank < world; ++rank)
          for (int64_t i = 0; i < kColumns; ++i) expected.push_back(value(rank, round, row * kColumns + i));
      for (int64_t i = 0; i < kSize; ++i) {
        sums.push_back(0.0F);
        for (int64_t rank = 0; rank < world; ++rank) sums.back() += value(rank, round, i);
      }
      for (void* each : gathered)
        ASSERT_TRUE(peer.to_host<float>(each, expected.size()) == expected) << "round " << round;
      ASSERT_TRUE(peer.to_host<float>(large, sums.size()) == sums) << "round " << round;
      sums.resize(999);
      ASSERT_TRUE(peer.to_host<float>(small, sums.size()) == sums) << "round " << round;
    }
  });
}

TEST_P(CudaPeersTest, ALateRankIsWaitedFor) {
  on_peers([](Peer& peer) {
    for (int round = 0; round < 4; ++round) {
      const bool is_late = round % peer.communicator.world_size() == peer.communicator.rank();
      expect_sum<float>(
          peer, DType::kFloat32, 5000, [](float x) { return x; }, [](float x) { return x; },
          milliseconds(is_late ? 100 : 0));
    }
  });
}

// One exchange that all of them make.
void meet(Peer& peer) {
  const float one = 1.0F;
  void* x = peer.to_device(&one, sizeof one);
  peer.meet_others();
  peer.communicator.all_reduce_sum(peer.launch(), {x, DType::kFloat32, 1});
  EXPECT_EQ(peer.to_host<float>(x, 1).at(0), static_cast<float>(peer.communicator.world_size()));
  EXPECT_NO_THROW(peer.communicator.check());
}

TEST_P(CudaPeersTest, AFailedRankKeepsNoDeviceWaiting) {
  on_peers([&](Peer& peer) {
    const float one = 1.0F;
    void* x = peer.to_device(&one, sizeof one);
    peer.meet_others();
    if (peer.communicator.rank() == 0) {
      std::this_thread::sleep_for(milliseconds(100));
      peer.communicator.abort();
    } else {
      for (int i = 0; i < 50; ++i) peer.communicator.all_reduce_sum(peer.launch(), {x, DType::kFloat32, 1});
    }
    const auto begin = std::chrono::steady_clock::now();
    peer.wait();
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
    EXPECT_THROW(peer.communicator.check(), InternalError);
    peer.meet_others();
    peer.communicator.reset();
    peer.meet_others();
    for (int i = 0; i < 3; ++i) meet(peer);
  });
}

TEST_P(CudaPeersTest, ARankThatDoesNotComeIsNotWaitedForForever) {
  on_peers(
      [&](Peer& peer) {
        if (peer.communicator.rank() == 0) return;
        const float one = 1.0F;
        void* x = peer.to_device(&one, sizeof one);
        peer.communicator.all_reduce_sum(peer.launch(), {x, DType::kFloat32, 1});
        peer.wait();
        try {
          peer.communicator.check();
          ADD_FAILURE() << "nobody noticed";
        } catch (const InternalError& error) {
          EXPECT_NE(std::string(error.what()).find("rank 0 did not come"), std::string::npos) << error.what();
        }
      },
      milliseconds(200));
}

INSTANTIATE_TEST_SUITE_P(Ranks, CudaPeersTest, testing::Values(2, 3, 4));

}  // namespace
}  // namespace quire
