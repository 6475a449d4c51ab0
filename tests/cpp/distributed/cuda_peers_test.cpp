// Exchanges between CUDA devices that read each other's memory. A device may have two ranks: each has room
// for the blocks of two exchanges that wait for each other. Skipped where there are too few.
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <cstring>
#include <random>
#include <thread>

#include "device/runtime_handles.h"
#include "distributed/peer_communicator.h"
#include "quire/error.h"
#include "quire/kernels/backend_registry.h"
#include "quire/kernels/draw_math.h"
#include "util/half_float.h"

namespace quire {
namespace {

using std::chrono::milliseconds;

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
  void on_peers(const auto& body, milliseconds max_wait = std::chrono::seconds(60)) const {
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

// What an exchange of tokens is about: each rank has what is best of its own, the likelier the greater, and
// below that what id it has.
class ChosenTokens {
 public:
  ChosenTokens(Peer& peer, size_t rows, uint32_t exchange) : peer_(peer), rows_(rows), exchange_(exchange) {
    std::vector<uint64_t> best;
    for (size_t r = 0; r < rows; ++r) best.push_back(best_of(peer.communicator.rank(), r));
    best_ = peer.to_device(best.data(), rows * sizeof(uint64_t));
    const std::vector<int32_t> none(rows, -7);
    for (void** each : {&ids_, &host_ids_, &place_})
      *each = peer.to_device(none.data(), rows * sizeof(int32_t));
    std::vector<int32_t*> places;  // the odd rows have none
    for (size_t r = 0; r < rows; ++r)
      places.push_back(r % 2 == 0 ? static_cast<int32_t*>(place_) + r : nullptr);
    places_ = peer.to_device(places.data(), rows * sizeof(int32_t*));
  }

  void choose() const {
    SamplingArgs args{};
    args.logits = {nullptr, DType::kFloat32, static_cast<int64_t>(rows_), 1};
    args.best = static_cast<uint64_t*>(best_);
    args.sampled_token_ids = static_cast<int32_t*>(ids_);
    args.host_token_ids = static_cast<int32_t*>(host_ids_);
    args.token_places = static_cast<int32_t* const*>(places_);
    peer_.communicator.choose_tokens(peer_.launch(), args);
  }

  void expect() const {
    std::vector<int32_t> ids, host_ids, places;
    for (size_t r = 0; r < rows_; ++r) {
      uint64_t best = 0;
      for (int32_t rank = 0; rank < peer_.communicator.world_size(); ++rank)
        best = std::max(best, best_of(rank, r));
      const bool has_token = best != 0 && best != kNotANumber;
      ids.push_back(has_token ? static_cast<int32_t>(~static_cast<uint32_t>(best)) : 0);
      host_ids.push_back(has_token ? ids.back() : best == 0 ? draw_math::kNoTokenLeft : kNoToken);
      places.push_back(r % 2 == 0 ? ids.back() : -7);
    }
    EXPECT_EQ(peer_.to_host<int32_t>(ids_, rows_), ids) << exchange_;
    EXPECT_EQ(peer_.to_host<int32_t>(host_ids_, rows_), host_ids) << exchange_;
    EXPECT_EQ(peer_.to_host<int32_t>(place_, rows_), places) << exchange_;
  }

 private:
  static constexpr uint64_t kNotANumber = ~uint64_t{0};
  uint64_t best_of(int32_t rank, size_t row) const {
    if (row % 50 == 3) return rank == 1 ? kNotANumber : 0;
    if (row % 50 == 4) return 0;  // all are forbidden
    const auto of_rank = static_cast<uint32_t>(rank);
    const uint32_t token = of_rank * 1000 + static_cast<uint32_t>(row) + exchange_ * 100'000;
    const uint64_t likely =
        row % 50 == 5 ? 7 : 1 + (row * 2'654'435'761U + of_rank * 40'503U + exchange_ * 7'919U) % 9973;
    return likely << 32 | ~token;
  }

  Peer& peer_;
  size_t rows_;
  uint32_t exchange_;
  void *best_, *ids_, *host_ids_, *place_, *places_;
};

TEST_P(CudaPeersTest, TheTokenIsTheBestOfAllRanks) {
  std::atomic<bool> can_choose = true;
  on_peers([&](Peer& peer) {
    if (!peer.communicator.chooses_tokens()) {
      can_choose = false;
      return;
    }
    for (const size_t rows : {1, 7, 128, 300}) {
      const ChosenTokens first(peer, rows, 0), second(peer, rows, 1);
      const std::vector<float> mine(rows, static_cast<float>(peer.communicator.rank() + 1));
      void* x = peer.to_device(mine.data(), rows * sizeof(float));
      peer.meet_others();
      first.choose();
      if (!has_own_devices()) {
        first.expect();
        continue;
      }
      // What they tell each other next lies in the same two places, in turn.
      peer.communicator.all_reduce_sum(peer.launch(), {x, DType::kFloat32, static_cast<int64_t>(rows)});
      second.choose();
      first.expect();
      second.expect();
      const int32_t world = peer.communicator.world_size();
      const std::vector<float> sums(rows, static_cast<float>(world * (world + 1) / 2));
      EXPECT_EQ(peer.to_host<float>(x, rows), sums);
    }
  });
  if (!can_choose) GTEST_SKIP() << "writes between these devices are not whole";
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
