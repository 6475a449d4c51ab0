// Ranks that have a part of the vocabulary each tell each other what is best of it.
#pragma once

#include "peers/flagged.cuh"
#include "sampling/row.cuh"

namespace quire::cuda {

constexpr int kChooseThreads = 128;  // a thread has a row

// Where the exchange fails a row has what is best of this rank's part.
__global__ void __launch_bounds__(kChooseThreads)
    choose_tokens_kernel(const __grid_constant__ PeerGroup group, SamplingArgs rows, int num_rows) {
  const int me = group.rank, world = group.world_size;
  const int r = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const uint64_t exchange = begin_exchange(group);
  const bool has_row = r < num_rows;
  Ranked best = has_row ? rows.best[r] : 0;
  const Packet packet{{static_cast<uint32_t>(best), static_cast<uint32_t>(best >> 32), 0}, flag_of(exchange)};
  for (int step = 1; step < world && has_row; ++step) {
    const int to = (me + step) % world;
    send(reinterpret_cast<Packet*>(inbox_of(group, to, me, exchange)) + r, packet);
  }
  for (int step = 1; step < world; ++step) {
    const int from = (me + step) % world;
    const auto* theirs = reinterpret_cast<const Packet*>(inbox_of(group, me, from, exchange)) + r;
    Patience patience(group, from);
    for (bool is_over = false; !is_over;) {
      const Packet found = has_row ? look_at(theirs) : packet;
      constexpr unsigned kAll = 0xFFFFFFFFU;
      if (__all_sync(kAll, found.flag == packet.flag)) {  // warps wait together
        best = max(best, Ranked{found.words[1]} << 32 | found.words[0]);
        break;
      }
      is_over = __any_sync(kAll, threadIdx.x % 32 == 0 && patience.is_over());
    }
  }
  if (has_row) sampling::store_token(rows, r, best);
}

}  // namespace quire::cuda
