// Large tensors go to the other ranks in rounds, a chunk in each for every block: blocks b of all ranks meet
// each other and nobody else. What a round has written is said by a ticket behind it, which the next round
// waits for when it has sent its own chunk. Chunks lie in a ring of slots, one for each rank that writes.
//
// Nobody waits for a slot. Who sends chunk c has had the tickets of round c - 2, and what the slot held
// before is that of chunk c - 4, which the others were done with in round c - 3.
#pragma once

#include <algorithm>

#include "common/types.cuh"
#include "peers/group.cuh"

namespace quire::cuda {

constexpr int kChunkUnits = 2;  // of each thread
constexpr int kChunk = kMaxPeerThreads * kChunkUnits;
constexpr int kSlots = 4;
constexpr int64_t kMaxUnitBytes = 16;
// So that a block's slots have room in kRingBytes.
inline int64_t max_ring_blocks(int world_size) {
  return std::min<int64_t>(kMaxPeerBlocks, kRingBytes / (kMaxUnitBytes * kChunk * kSlots * world_size));
}

// An exchange in rounds, of units of V, as a block of a rank sees it.
template <typename V>
class Rounds {
 public:
  __device__ Rounds(const PeerGroup& group, uint64_t exchange)
      : group_(group),
        first_ticket_(exchange << 16),
        other_(static_cast<int>(threadIdx.x)),
        is_messenger_(other_ < group.world_size && other_ != group.rank) {}

  // This thread's units of the chunk of a round that are below `end`: f(unit, which of the thread's).
  template <typename F>
  __device__ __forceinline__ void for_units(int64_t round, int64_t end, F f) const {
#pragma unroll
    for (int k = 0; k < kChunkUnits; ++k) {
      const int64_t i = (round * gridDim.x + blockIdx.x) * kChunk + k * kMaxPeerThreads + threadIdx.x;
      if (i < end) f(i, k);
    }
  }
  // On the device of a ring, where `from` writes this thread's k-th unit.
  __device__ __forceinline__ V& slot(char* ring, int from, int64_t round, int k) const {
    const auto place = (static_cast<int64_t>(from) * kSlots + round % kSlots) * gridDim.x + blockIdx.x;
    return reinterpret_cast<V*>(ring)[place * kChunk + k * kMaxPeerThreads + threadIdx.x];
  }

  // What this block has written until now is seen by who gets the tickets of a round.
  __device__ __forceinline__ void send_tickets(int64_t round) const {
    __syncthreads();
    if (is_messenger_)
      SystemAtomic<uint64_t>(state_of(group_, other_).tickets[group_.rank][blockIdx.x])
          .store(first_ticket_ + static_cast<uint64_t>(round), ::cuda::memory_order_release);
  }
  // Waits for all other ranks'. False when the exchange has no result; on every thread.
  __device__ __forceinline__ bool wait_for_tickets(int64_t round) const {
    bool is_there = true;
    if (is_messenger_) {
      const SystemAtomic<uint64_t> ticket(state_of(group_, group_.rank).tickets[other_][blockIdx.x]);
      Patience patience(group_, other_);
      while (is_there &&
             ticket.load(::cuda::memory_order_acquire) < first_ticket_ + static_cast<uint64_t>(round))
        is_there = !patience.is_over();
    }
    return __syncthreads_and(is_there) != 0;
  }

 private:
  const PeerGroup& group_;
  uint64_t first_ticket_;  // those of an exchange follow each other, and later ones' are greater
  int other_;              // whose ticket this thread waits for
  bool is_messenger_;
};

// Past the L1 cache, which does not see what others write.
template <typename V>
__device__ __forceinline__ V load_from_ring(const V& slot) {
  return __ldcg(&slot);
}
template <typename T>
__device__ __forceinline__ Vec<T> load_from_ring(const Vec<T>& slot) {
  return __builtin_bit_cast(Vec<T>, __ldcg(reinterpret_cast<const uint4*>(&slot)));
}

// Sums in two steps: each rank sums one part of the tensor, which all others send it, and sends all others
// what came out, so that each byte goes to another device twice at most, however many ranks there are. While
// chunk c is on its way to who sums it, c - 1 is summed and c - 2 is taken over. Parts are read before the
// exchange is done, and sums are sent by who has had parts of all, so they are done with the exchange before:
// either ring is used by every exchange.
//   x [count] units of T or Vec<T>, of which `part` are each rank's but for the last ones
template <typename T, typename V>
__global__ void __launch_bounds__(kMaxPeerThreads, 2)
    sum_in_rounds_kernel(const __grid_constant__ PeerGroup group, V* x, int64_t count, int64_t part) {
  constexpr int kSize = sizeof(V) / sizeof(T);
  wait_for_inputs();
  const Rounds<V> rounds(group, begin_exchange(group));
  const int me = group.rank, world = group.world_size;
  const int64_t num_rounds = ceil_div<int64_t>(part, int64_t{gridDim.x} * kChunk);
  const auto part_of = [&](int rank) { return x + rank * part; };
  const auto length = [&](int rank) { return min(part, count - rank * part); };
  V* mine = part_of(me);

  for (int64_t round = 0; round < num_rounds + 2; ++round) {
    if (round < num_rounds) {
      for (int step = 1; step < world; ++step) {
        const int to = (me + step) % world;
        char* ring = memory_of(group, to) + kPartsRing;
        V v[kChunkUnits];
        rounds.for_units(round, length(to), [&](int64_t i, int k) { v[k] = part_of(to)[i]; });
        rounds.for_units(round, length(to), [&](int64_t, int k) { rounds.slot(ring, me, round, k) = v[k]; });
      }
    }
    if (round > 0 && !rounds.wait_for_tickets(round - 1)) return;
    if (const int64_t summed = round - 1; summed >= 0 && summed < num_rounds) {
      char* ring = memory_of(group, me) + kPartsRing;
      float sum[kChunkUnits][kSize] = {};
      for (int from = 0; from < world; ++from) {
        V v[kChunkUnits];
        rounds.for_units(summed, length(me), [&](int64_t i, int k) {
          v[k] = from == me ? mine[i] : load_from_ring(rounds.slot(ring, from, summed, k));
        });
        rounds.for_units(summed, length(me), [&](int64_t, int k) {
          const T* each = reinterpret_cast<const T*>(&v[k]);
#pragma unroll
          for (int j = 0; j < kSize; ++j) sum[k][j] += to_float(each[j]);
        });
      }
      rounds.for_units(summed, length(me), [&](int64_t i, int k) {
        V v;
#pragma unroll
        for (int j = 0; j < kSize; ++j) reinterpret_cast<T*>(&v)[j] = from_float<T>(sum[k][j]);
        mine[i] = v;
        for (int step = 1; step < world; ++step)
          rounds.slot(memory_of(group, (me + step) % world) + kSumsRing, me, summed, k) = v;
      });
    }
    if (const int64_t taken = round - 2; taken >= 0) {
      char* ring = memory_of(group, me) + kSumsRing;
      for (int step = 1; step < world; ++step) {
        const int from = (me + step) % world;
        V v[kChunkUnits];
        rounds.for_units(taken, length(from),
                         [&](int64_t, int k) { v[k] = load_from_ring(rounds.slot(ring, from, taken, k)); });
        rounds.for_units(taken, length(from), [&](int64_t i, int k) { part_of(from)[i] = v[k]; });
      }
    }
    if (round <= num_rounds) rounds.send_tickets(round);
  }
}

// Numbers count units: one element, or several where rows begin at multiples of 16 bytes.
struct GatherShape {
  int64_t out_stride, x_stride;
  int count;  // rows times columns
  int columns, out_columns;
};

// There are two rings, in turn, as nobody hears of the last chunk that it was taken.
template <typename V>
__global__ void __launch_bounds__(kMaxPeerThreads, 2)
    gather_columns_kernel(const __grid_constant__ PeerGroup group, V* out, const V* x, GatherShape shape) {
  wait_for_inputs();
  const uint64_t exchange = begin_exchange(group);
  const Rounds<V> rounds(group, exchange);
  const int me = group.rank, world = group.world_size;
  const int64_t num_rounds = ceil_div<int64_t>(shape.count, int64_t{gridDim.x} * kChunk);
  const auto ring_of = [&](int rank) {
    return memory_of(group, rank) + kColumnsRings + (exchange % 2) * kRingBytes;
  };
  const auto put = [&](int rank, int64_t unit, const V& value) {
    const int i = static_cast<int>(unit), row = i / shape.columns;
    const int64_t column = int64_t{rank} * shape.columns + (i - row * shape.columns);
    if (column < shape.out_columns) out[row * shape.out_stride + column] = value;
  };
  for (int64_t round = 0; round <= num_rounds; ++round) {
    if (round < num_rounds) {
      V v[kChunkUnits];
      rounds.for_units(round, shape.count, [&](int64_t unit, int k) {
        const int i = static_cast<int>(unit), row = i / shape.columns;
        v[k] = x[row * shape.x_stride + (i - row * shape.columns)];
      });
      for (int step = 1; step < world; ++step) {
        char* ring = ring_of((me + step) % world);
        rounds.for_units(round, shape.count, [&](int64_t, int k) { rounds.slot(ring, me, round, k) = v[k]; });
      }
      rounds.for_units(round, shape.count, [&](int64_t i, int k) { put(me, i, v[k]); });
    }
    if (const int64_t taken = round - 1; taken >= 0) {
      if (!rounds.wait_for_tickets(taken)) return;
      for (int step = 1; step < world; ++step) {
        const int from = (me + step) % world;
        V v[kChunkUnits];
        rounds.for_units(taken, shape.count, [&](int64_t, int k) {
          v[k] = load_from_ring(rounds.slot(ring_of(me), from, taken, k));
        });
        rounds.for_units(taken, shape.count, [&](int64_t i, int k) { put(from, i, v[k]); });
      }
    }
    if (round < num_rounds) rounds.send_tickets(round);
  }
}

}  // namespace quire::cuda
