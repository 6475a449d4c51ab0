// Small tensors go to the other ranks as packets that carry the number of the exchange: who looks at one sees
// whether it is there, so that nobody needs a fence and a flag behind it, and the way to another device is
// gone once. After the protocols that NCCL calls LL and LL128.
#pragma once

#include "common/types.cuh"
#include "peers/group.cuh"

namespace quire::cuda {

// Written and read as one, which holds between devices only where PeerGroup::has_whole_writes. Three words of
// the tensor lie behind each other in it.
struct alignas(16) Packet {
  static constexpr int kWords = 3;
  uint32_t words[kWords];
  uint32_t flag;
};

// Never 0, which is what memory begins with. It comes again after 2^31 exchanges: a packet that nobody has
// written in exactly that many would be taken for a new one.
__device__ __forceinline__ uint32_t flag_of(uint64_t exchange) {
  return static_cast<uint32_t>(exchange << 1) | 1U;
}

__device__ __forceinline__ void send(Packet* to, const Packet& packet) {
  asm volatile("st.relaxed.sys.global.b128 [%0], %1;" ::"l"(to),
               "q"(__builtin_bit_cast(unsigned __int128, packet))
               : "memory");
}
__device__ __forceinline__ Packet look_at(const Packet* packet) {
  unsigned __int128 bits;
  asm volatile("ld.relaxed.sys.global.b128 %0, [%1];" : "=q"(bits) : "l"(packet) : "memory");
  return __builtin_bit_cast(Packet, bits);
}

// Of each thread, on their way at once.
constexpr int kPackets = 2;

// x becomes the sum of all ranks', added in rank order in fp32.
//   x [num_words] words, of one or two T
template <typename T>
__global__ void __launch_bounds__(kMaxPeerThreads, 2)
    sum_by_flags_kernel(const __grid_constant__ PeerGroup group, uint32_t* x, int num_words) {
  constexpr int kOfWord = sizeof(uint32_t) / sizeof(T), kWords = Packet::kWords;
  struct alignas(4) Elements {
    T x[kOfWord];
  };
  let_next_start_if_alone(group);
  const int me = group.rank, world = group.world_size;
  const int num_packets = ceil_div(num_words, kWords), threads = static_cast<int>(gridDim.x * blockDim.x);
  const int first = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  wait_for_inputs();
  const uint64_t exchange = begin_exchange(group);
  const uint32_t flag = flag_of(exchange);
  const auto load = [&](int i) {
    Packet packet{};
    packet.flag = flag;
#pragma unroll
    for (int j = 0; j < kWords; ++j)
      if (i * kWords + j < num_words) packet.words[j] = x[i * kWords + j];
    return packet;
  };
  // Each thread's i, kPackets at once; all threads of a warp as often as each other.
  const auto for_packets = [&](auto f) {
    for (int begin = first - first % 32; begin < num_packets; begin += kPackets * threads)
      f(begin + first % 32);
  };

  for_packets([&](int begin) {
    Packet packets[kPackets];
#pragma unroll
    for (int k = 0; k < kPackets; ++k) packets[k] = load(begin + k * threads);
    for (int step = 1; step < world; ++step) {
      const int to = (me + step) % world;
      auto* inbox = reinterpret_cast<Packet*>(inbox_of(group, to, me, exchange));
#pragma unroll
      for (int k = 0; k < kPackets; ++k)
        if (const int i = begin + k * threads; i < num_packets) send(inbox + i, packets[k]);
    }
  });

  for_packets([&](int begin) {
    float sum[kPackets][kWords][kOfWord] = {};
    for (int rank = 0; rank < world; ++rank) {
      Packet packets[kPackets];
#pragma unroll
      for (int k = 0; k < kPackets; ++k) packets[k] = load(begin + k * threads);
      if (rank != me) {
        const auto* inbox = reinterpret_cast<const Packet*>(inbox_of(group, me, rank, exchange));
        Patience patience(group, rank);
        for (bool is_over = false; !is_over;) {
          bool is_there = true;
#pragma unroll
          for (int k = 0; k < kPackets; ++k)
            if (const int i = begin + k * threads; i < num_packets) packets[k] = look_at(inbox + i);
#pragma unroll
          for (int k = 0; k < kPackets; ++k) is_there = is_there && packets[k].flag == flag;
          // Warps wait together. When the exchange has failed the sum is anything.
          constexpr unsigned kAll = 0xFFFFFFFFU;
          if (__all_sync(kAll, is_there)) break;
          is_over = __any_sync(kAll, threadIdx.x % 32 == 0 && patience.is_over());
        }
      }
#pragma unroll
      for (int k = 0; k < kPackets; ++k) {
#pragma unroll
        for (int j = 0; j < kWords; ++j) {
          const auto elements = __builtin_bit_cast(Elements, packets[k].words[j]);
#pragma unroll
          for (int e = 0; e < kOfWord; ++e) sum[k][j][e] += to_float(elements.x[e]);
        }
      }
    }
#pragma unroll
    for (int k = 0; k < kPackets; ++k) {
#pragma unroll
      for (int j = 0; j < kWords; ++j) {
        const int word = (begin + k * threads) * kWords + j;
        Elements out;
#pragma unroll
        for (int e = 0; e < kOfWord; ++e) out.x[e] = from_float<T>(sum[k][j][e]);
        if (word < num_words) x[word] = __builtin_bit_cast(uint32_t, out);
      }
    }
  });
}

}  // namespace quire::cuda
