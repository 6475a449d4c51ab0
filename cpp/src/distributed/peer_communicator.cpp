#include "distributed/peer_communicator.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <new>

#include "device/runtime_handles.h"
#include "quire/error.h"
#include "util/check.h"

namespace quire {
namespace {

// All ranks' memory: none of it may go while one of them may still exchange.
class PeerMemory {
 public:
  PeerMemory(const DeviceRuntime& runtime, const PeerOps& ops, std::span<const int32_t> devices)
      : runtime_(runtime), ops_(ops), devices_(devices.begin(), devices.end()) {
    for (const int32_t device : devices) {
      void *handle = nullptr, *data = nullptr;
      const int code = runtime.allocate_shared(&handle, &data, ops.memory_bytes, device, devices.data(),
                                               static_cast<int32_t>(devices.size()));
      if (code != 0) {
        throw ResourceExhausted(str("cannot allocate ", ops.memory_bytes, " bytes on ", runtime.backend, ":",
                                    device,
                                    " that the other ranks' devices can read: ", runtime.error_text(code)));
      }
      memory_.emplace_back(runtime, handle);
      data_.push_back(data);
      streams_.push_back(make_stream(runtime));
      check_device(runtime, ops.load(), "loading the exchanges' kernels");
    }
    status_memory_ = make_pinned(runtime, sizeof(PeerStatus));
    status_ = new (status_memory_.get()) PeerStatus;
    is_alone_.resize(devices.size());
    const std::lock_guard lock(all_mutex);
    all.push_back(this);
    for (PeerMemory* memory : all) {
      const int code = memory->tell_ranks();
      if (code == 0) continue;
      std::erase(all, this);
      check_device(runtime, code, "telling ranks who else has exchanges on their devices");
    }
  }

  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;
  ~PeerMemory() {
    const std::lock_guard lock(all_mutex);
    std::erase(all, this);
    // Who is not told goes on as if not alone.
    for (PeerMemory* other : all) other->tell_ranks();
  }

  PeerGroup group(int32_t rank, std::chrono::nanoseconds max_wait, bool has_whole_writes) const {
    PeerGroup group;
    group.has_whole_writes = has_whole_writes;
    group.rank = rank;
    group.world_size = static_cast<int32_t>(data_.size());
    for (size_t i = 0; i < data_.size(); ++i) group.memory[i] = data_[i];
    group.status = status_;
    group.max_wait_ns = static_cast<uint64_t>(max_wait.count());
    return group;
  }

  void fill_with_zeros(TensorView rows, void* stream) const {
    const size_t bytes = static_cast<size_t>(rows.shape[1]) * dtype_bytes(rows.dtype);
    for (int64_t row = 0; row < rows.shape[0]; ++row)
      check_device(runtime_, runtime_.fill(rows.at(row), 0, bytes, stream), "filling a tensor");
  }

  // A device that has failed has nothing to forget, and its worker says so itself.
  void clear(int32_t rank, size_t bytes) {
    const auto i = static_cast<size_t>(rank);
    if (runtime_.select(devices_[i]) != 0) return;
    if (runtime_.fill(data_[i], 0, bytes, streams_[i].get()) != 0) return;
    runtime_.synchronize_stream(streams_[i].get());
  }

 private:
  // Whether no other rank of any group has exchanges on a rank's device, where that has changed.
  int tell_ranks() {
    for (size_t i = 0; i < devices_.size(); ++i) {
      std::ptrdiff_t num_ranks = 0;
      for (const PeerMemory* group : all) num_ranks += std::ranges::count(group->devices_, devices_[i]);
      const bool is_alone = num_ranks == 1;
      if (is_alone == is_alone_[i]) continue;
      void* stream = streams_[i].get();
      int code = runtime_.select(devices_[i]);
      if (code == 0)
        code = runtime_.fill(static_cast<char*>(data_[i]) + ops_.is_alone_offset, is_alone ? 1 : 0,
                             sizeof(uint32_t), stream);
      if (code == 0) code = runtime_.synchronize_stream(stream);
      if (code != 0) return code;
      is_alone_[i] = is_alone;
    }
    return 0;
  }

  // Of this process.
  static inline std::mutex all_mutex;
  static inline std::vector<PeerMemory*> all;

  const DeviceRuntime& runtime_;
  const PeerOps& ops_;
  std::vector<int32_t> devices_;
  std::vector<bool> is_alone_;  // as the ranks have been told
  std::vector<SharedDeviceMemory> memory_;
  std::vector<void*> data_;
  std::vector<DeviceStream> streams_;
  PinnedMemory status_memory_;
  PeerStatus* status_ = nullptr;
};

class PeerCommunicator final : public Communicator {
 public:
  PeerCommunicator(std::shared_ptr<PeerMemory> memory, const PeerOps& ops, const PeerGroup& group)
      : memory_(std::move(memory)), ops_(ops), group_(group) {}

  int32_t rank() const override { return group_.rank; }
  int32_t world_size() const override { return group_.world_size; }

  void all_reduce_sum(const LaunchContext& ctx, TensorView x) override {
    if (rehearses_) return;
    ops_.all_reduce_sum(ctx, group_, x);
  }
  void all_gather_columns(const LaunchContext& ctx, TensorView out, TensorView x) override {
    if (rehearses_) return memory_->fill_with_zeros(out, ctx.stream);
    ops_.all_gather_columns(ctx, group_, out, x);
  }
  bool chooses_tokens() const override { return group_.has_whole_writes && !rehearses_; }
  void choose_tokens(const LaunchContext& ctx, const SamplingArgs& args) override {
    QUIRE_CHECK(chooses_tokens());
    ops_.choose_tokens(ctx, group_, args);
  }

  void abort() override { aborted().store(1, std::memory_order_release); }
  void check() override {
    if (aborted().load(std::memory_order_acquire) == 0) return;
    const uint32_t late = timed_out().load(std::memory_order_relaxed);
    if (late == 0) throw InternalError("another rank failed");
    throw InternalError(str("rank ", late - 1, " did not come to an exchange within ",
                            group_.max_wait_ns / 1'000'000, " ms"));
  }
  void reset() override {
    memory_->clear(group_.rank, ops_.state_bytes);
    timed_out().store(0, std::memory_order_relaxed);
    aborted().store(0, std::memory_order_release);
  }

  void set_rehearsal(bool on) override { rehearses_ = on; }

  size_t device_bytes() const override { return ops_.memory_bytes; }

 private:
  std::atomic_ref<uint32_t> aborted() const { return std::atomic_ref(group_.status->aborted); }
  std::atomic_ref<uint32_t> timed_out() const { return std::atomic_ref(group_.status->timed_out); }

  std::shared_ptr<PeerMemory> memory_;
  const PeerOps& ops_;
  PeerGroup group_;
  bool rehearses_ = false;
};

// Nothing says that a write of 16 bytes over PCIe comes at once; over links with atomic operations of their
// own it does, and what a device writes to itself.
bool has_whole_writes(const DeviceRuntime& runtime, std::span<const int32_t> devices) {
  for (const int32_t device : devices) {
    for (const int32_t peer : devices) {
      bool has = true;
      if (peer != device) {
        check_device(runtime, runtime.has_native_atomics(&has, device, peer),
                     "asking about atomic operations");
      }
      if (!has) return false;
    }
  }
  return true;
}

void check_reach(const DeviceRuntime& runtime, std::span<const int32_t> devices) {
  for (const int32_t device : devices) {
    for (const int32_t peer : devices) {
      bool can = true;
      if (peer != device) {
        check_device(runtime, runtime.can_access_peer(&can, device, peer), "asking for peer access");
      }
      if (can) continue;
      throw InvalidArgument(str("tensor_parallel_size ", devices.size(), ": ", runtime.backend, ":", device,
                                " cannot read the memory of ", runtime.backend, ":", peer,
                                "; use devices that NVLink or one PCIe root connects, or 1"));
    }
  }
}

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_peer_communicators(const DeviceRuntime& runtime,
                                                                   const KernelTable& ops,
                                                                   std::span<const int32_t> devices,
                                                                   std::chrono::nanoseconds max_wait) {
  const size_t most = ops.peer == nullptr ? 1 : size_t{PeerGroup::kMaxRanks};
  if (devices.size() > most) {
    throw InvalidArgument(str("tensor_parallel_size ", devices.size(), ": ", most,
                              " is the most that devices of backend '", ops.backend, "' can be"));
  }
  check_reach(runtime, devices);
  const bool whole_writes = has_whole_writes(runtime, devices);
  const auto memory = std::make_shared<PeerMemory>(runtime, *ops.peer, devices);
  std::vector<std::unique_ptr<Communicator>> ranks;
  for (int32_t rank = 0; rank < static_cast<int32_t>(devices.size()); ++rank) {
    ranks.push_back(
        std::make_unique<PeerCommunicator>(memory, *ops.peer, memory->group(rank, max_wait, whole_writes)));
  }
  return ranks;
}

}  // namespace quire
