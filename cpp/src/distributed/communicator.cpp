#include "distributed/communicator.h"

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>

#include "quire/error.h"
#include "util/check.h"
#include "util/half_float.h"

namespace quire {
namespace {

class SingleCommunicator final : public Communicator {
 public:
  int32_t rank() const override { return 0; }
  int32_t world_size() const override { return 1; }
  void all_reduce_sum(const LaunchContext&, TensorView) override {}
  void all_gather_columns(const LaunchContext& ctx, TensorView out, TensorView x) override {
    QUIRE_CHECK(ctx.stream == nullptr, "one rank has all columns: there is nothing to gather on a device");
    for (int64_t t = 0; t < x.shape[0]; ++t) {
      std::memcpy(out.at(t), x.at(t), static_cast<size_t>(out.shape[1]) * dtype_bytes(x.dtype));
    }
  }
  void abort() override {}
  void reset() override {}
};

// One mapping, shared by threads and by forked processes: a barrier, then one part for each rank.
class SharedSegment {
 public:
  SharedSegment(int32_t world_size, size_t part_bytes)
      : world_size_(world_size),
        part_bytes_((part_bytes + 63) / 64 * 64),
        mapped_(sizeof(Barrier) + part_bytes_ * static_cast<size_t>(world_size)) {
    void* start =
        ::mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) throw ResourceExhausted(str("cannot map ", mapped_, " bytes of shared memory"));
    barrier_ = new (start) Barrier;
    parts_ = static_cast<std::byte*>(start) + sizeof(Barrier);
  }
  ~SharedSegment() { ::munmap(barrier_, mapped_); }
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  int32_t world_size() const { return world_size_; }
  size_t part_bytes() const { return part_bytes_; }
  std::byte* part(int32_t rank) const { return parts_ + static_cast<size_t>(rank) * part_bytes_; }

  void wait() {
    QUIRE_CHECK(!barrier_->failed.load(std::memory_order_relaxed), "another rank failed");
    const uint32_t generation = barrier_->generation.load(std::memory_order_acquire);
    if (barrier_->arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<uint32_t>(world_size_)) {
      barrier_->arrived.store(0, std::memory_order_relaxed);
      barrier_->generation.store(generation + 1, std::memory_order_release);
      return;
    }
    // Ranks are in the same layer: the wait is short. Yielding keeps it so when they share cores.
    for (int spins = 0; barrier_->generation.load(std::memory_order_acquire) == generation; ++spins) {
      QUIRE_CHECK(!barrier_->failed.load(std::memory_order_relaxed), "another rank failed");
      if (spins >= 64) ::sched_yield();
    }
  }
  void fail() { barrier_->failed.store(true, std::memory_order_relaxed); }
  void reset() {
    barrier_->arrived.store(0, std::memory_order_relaxed);
    barrier_->failed.store(false, std::memory_order_release);
  }

 private:
  struct alignas(64) Barrier {
    std::atomic<uint32_t> arrived{0};
    std::atomic<uint32_t> generation{0};
    std::atomic<bool> failed{false};
  };
  static_assert(std::atomic<uint32_t>::is_always_lock_free);

  int32_t world_size_;
  size_t part_bytes_;
  size_t mapped_;
  Barrier* barrier_;
  std::byte* parts_;
};

class SharedMemoryCommunicator final : public Communicator {
 public:
  SharedMemoryCommunicator(std::shared_ptr<SharedSegment> segment, int32_t rank)
      : segment_(std::move(segment)), rank_(rank) {}
  int32_t rank() const override { return rank_; }
  int32_t world_size() const override { return segment_->world_size(); }
  void abort() override { segment_->fail(); }
  void reset() override { segment_->reset(); }

  void all_reduce_sum(const LaunchContext&, TensorView x) override {
    const auto numel = static_cast<size_t>(x.numel());
    const size_t bytes = numel * dtype_bytes(x.dtype);
    QUIRE_CHECK(bytes <= segment_->part_bytes(), "all_reduce of ", bytes, " bytes");
    std::memcpy(segment_->part(rank_), x.data, bytes);
    segment_->wait();
    if (x.dtype == DType::kFloat32) {
      add_all(x.as<float>(), numel, [](float v) { return v; }, [](float v) { return v; });
    } else {
      QUIRE_CHECK(x.dtype == DType::kBFloat16);
      add_all(x.as<uint16_t>(), numel, bf16_to_float, float_to_bf16);
    }
    segment_->wait();  // nobody overwrites a part that another still reads
  }

  void all_gather_columns(const LaunchContext&, TensorView out, TensorView x) override {
    const size_t row_bytes = static_cast<size_t>(x.shape[1]) * dtype_bytes(x.dtype);
    const auto rows = static_cast<size_t>(x.shape[0]);
    QUIRE_CHECK(rows * row_bytes <= segment_->part_bytes(), "all_gather of ", rows * row_bytes, " bytes");
    for (size_t t = 0; t < rows; ++t) {
      std::memcpy(segment_->part(rank_) + t * row_bytes, x.at(static_cast<int64_t>(t)), row_bytes);
    }
    segment_->wait();
    const size_t out_row_bytes = static_cast<size_t>(out.shape[1]) * dtype_bytes(out.dtype);
    for (int32_t rank = 0; rank < world_size(); ++rank) {
      const size_t begin = static_cast<size_t>(rank) * row_bytes;
      if (begin >= out_row_bytes) break;
      const size_t bytes = std::min(row_bytes, out_row_bytes - begin);
      for (size_t t = 0; t < rows; ++t) {
        std::memcpy(out.at(static_cast<int64_t>(t)) + begin, segment_->part(rank) + t * row_bytes, bytes);
      }
    }
    segment_->wait();
  }

 private:
  template <typename T, typename Load, typename Store>
  void add_all(T* out, size_t numel, Load load, Store store) {
    for (size_t i = 0; i < numel; ++i) {
      float sum = 0.0F;
      for (int32_t rank = 0; rank < world_size(); ++rank) {
        sum += load(reinterpret_cast<const T*>(segment_->part(rank))[i]);
      }
      out[i] = store(sum);
    }
  }

  std::shared_ptr<SharedSegment> segment_;
  int32_t rank_;
};

class PlannedCommunicator final : public Communicator {
 public:
  PlannedCommunicator(int32_t rank, int32_t world_size, size_t device_bytes)
      : rank_(rank), world_size_(world_size), device_bytes_(device_bytes) {}
  int32_t rank() const override { return rank_; }
  int32_t world_size() const override { return world_size_; }
  void all_reduce_sum(const LaunchContext&, TensorView) override {}
  void all_gather_columns(const LaunchContext&, TensorView, TensorView) override {}
  void abort() override {}
  void reset() override {}
  size_t device_bytes() const override { return device_bytes_; }

 private:
  int32_t rank_, world_size_;
  size_t device_bytes_;
};

}  // namespace

void Communicator::choose_tokens(const LaunchContext&, const SamplingArgs&) {
  throw InternalError("these ranks choose no tokens together");
}

std::unique_ptr<Communicator> make_planned_communicator(int32_t rank, int32_t world_size,
                                                        size_t device_bytes) {
  return std::make_unique<PlannedCommunicator>(rank, world_size, device_bytes);
}

std::unique_ptr<Communicator> make_single_communicator() { return std::make_unique<SingleCommunicator>(); }

std::vector<std::unique_ptr<Communicator>> make_shared_memory_communicators(int32_t world_size,
                                                                            size_t max_bytes) {
  auto segment = std::make_shared<SharedSegment>(world_size, max_bytes);
  std::vector<std::unique_ptr<Communicator>> ranks;
  for (int32_t rank = 0; rank < world_size; ++rank) {
    ranks.push_back(std::make_unique<SharedMemoryCommunicator>(segment, rank));
  }
  return ranks;
}

}  // namespace quire
