// Tokens that ranks on CUDA devices choose together. CudaPeersTest's numbers of ranks are
// cuda_peers_test.cpp's.
#include <algorithm>
#include <atomic>

#include "distributed/cuda_peers.h"
#include "quire/kernels/draw_math.h"

namespace quire {
namespace {

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

}  // namespace
}  // namespace quire
