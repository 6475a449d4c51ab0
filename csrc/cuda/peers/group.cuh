// What a rank's memory holds that all ranks of its group read and write, and how they wait for each other.
// quire/kernels/peer_ops.h is the contract.
//
// Every exchange has a number, which each rank counts on its device. What ranks write for each other
// alternates between two places, where nothing else keeps exchanges apart: who makes the one after the next
// has heard of the next from all ranks, and these were done with the one before when they began that. So
// nobody waits before writing.
#pragma once

#include <cuda/atomic>

#include "common/dependent_launch.cuh"
#include "quire/kernels/peer_ops.h"

namespace quire::cuda {

// So few blocks that all of them run at once beside other work, or blocks would wait for blocks that cannot
// begin. Twice as many threads have room on a device, with this many registers.
constexpr int kMaxPeerBlocks = 128;
constexpr int kMaxPeerThreads = 512;

// What a rank sends to all others as packets with flags (flagged.cuh), and where all others send it so, each
// with as much room.
constexpr int64_t kFlaggedBytes = int64_t{4} << 20;
constexpr int64_t kInboxesBytes = 3 * kFlaggedBytes;
// Of the slots of all ranks and blocks (rounds.cuh).
constexpr int64_t kRingBytes = int64_t{16} << 20;

// Begins as zeros. Counters are never reset while the group lives: 64 bits do not wrap.
struct PeerState {
  uint64_t num_exchanges;  // done, of this rank
  uint32_t num_blocks_begun;
  // The last ticket of block [b] of rank [r], which that rank writes here.
  uint64_t tickets[PeerGroup::kMaxRanks][kMaxPeerBlocks];
};

// Offsets within a rank's memory. Up to kIsAlone it begins as zeros.
constexpr size_t kInboxes = (sizeof(PeerState) + 255) / 256 * 256;
constexpr size_t kIsAlone = kInboxes + 2 * kInboxesBytes;
constexpr size_t kPartsRing = kIsAlone + 256;
constexpr size_t kSumsRing = kPartsRing + kRingBytes;
constexpr size_t kColumnsRings = kSumsRing + kRingBytes;
constexpr size_t kPeerMemoryBytes = kColumnsRings + 2 * kRingBytes;

template <typename T>
using SystemAtomic = ::cuda::atomic_ref<T, ::cuda::thread_scope_system>;

__device__ __forceinline__ char* memory_of(const PeerGroup& group, int rank) {
  return static_cast<char*>(group.memory[rank]);
}
__device__ __forceinline__ PeerState& state_of(const PeerGroup& group, int rank) {
  return *static_cast<PeerState*>(group.memory[rank]);
}
// On device `rank`: where rank `from` writes.
__device__ __forceinline__ char* inbox_of(const PeerGroup& group, int rank, int from, uint64_t exchange) {
  const int64_t bytes = kInboxesBytes / group.world_size / 1024 * 1024;
  return memory_of(group, rank) + kInboxes + static_cast<int64_t>(exchange % 2) * kInboxesBytes +
         from * bytes;
}
// First of all. What follows an exchange would start early and wait, on multiprocessors that it does not
// share with anybody, for an exchange that waits for another device, where another group's may do the same:
// that is all well while nobody else has exchanges on this device.
__device__ __forceinline__ void let_next_start_if_alone(const PeerGroup& group) {
  if (*reinterpret_cast<const volatile uint32_t*>(memory_of(group, group.rank) + kIsAlone) != 0)
    let_next_start();
}

// By all threads of each block, after wait_for_inputs: the exchange's number. The last block to ask counts
// it.
__device__ __forceinline__ uint64_t begin_exchange(const PeerGroup& group) {
  PeerState& state = state_of(group, group.rank);
  const uint64_t exchange = __ldcg(&state.num_exchanges) + 1;
  __syncthreads();
  if (threadIdx.x == 0 && atomicAdd(&state.num_blocks_begun, 1U) + 1 == gridDim.x) {
    state.num_blocks_begun = 0;
    state.num_exchanges = exchange;
  }
  return exchange;
}

// Ends waits that have lasted: a rank has failed, or the one waited for takes too long. The clock and, above
// all, the host's memory are slow to read, and slow for all others that read them: where each of some
// thousand threads looks at the host's, what they wait for has long come when they are back, and then the
// others wait for them.
class Patience {
 public:
  __device__ Patience(const PeerGroup& group, int rank) : group_(group), rank_(rank) {}

  __device__ __forceinline__ bool is_over() {
    constexpr int kLooks = 64;
    return ++num_looks_ % kLooks == 0 && look_elsewhere();
  }

 private:
  // Not inlined, so that who need not be patient has its registers for other things.
  __device__ __noinline__ bool look_elsewhere() {
    constexpr uint64_t kNsBetween = 1'000'000;  // two looks at the host's memory
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    if (begin_ == 0) begin_ = last_ = now;
    if (now - last_ < kNsBetween) return false;
    last_ = now;
    const SystemAtomic<uint32_t> aborted(group_.status->aborted);
    if (aborted.load(::cuda::memory_order_relaxed) != 0) return true;
    if (now - begin_ <= group_.max_wait_ns) return false;
    SystemAtomic<uint32_t>(group_.status->timed_out)
        .store(static_cast<uint32_t>(rank_) + 1, ::cuda::memory_order_relaxed);
    aborted.store(1, ::cuda::memory_order_release);
    return true;
  }

  const PeerGroup& group_;
  int rank_;
  int num_looks_ = 0;
  uint64_t begin_ = 0, last_ = 0;
};

}  // namespace quire::cuda
