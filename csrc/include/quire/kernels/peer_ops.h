// How the devices of one process exchange tensors through memory that all of them read and write.
#pragma once

#include <cstddef>
#include <cstdint>

#include "quire/kernels/launch_context.h"
#include "quire/kernels/tensor_view.h"

namespace quire {

struct SamplingArgs;

// What all ranks of a group look at, in pinned memory: written by the host and by every device, never back to
// 0 but by the host while nothing is under way.
struct PeerStatus {
  uint32_t aborted = 0;    // not 0: nobody waits any longer, and exchanges have no result
  uint32_t timed_out = 0;  // not 0: a rank waited too long, for rank timed_out - 1
};

// The group as one rank sees it. Goes into kernels by value: a captured graph keeps it.
struct PeerGroup {
  static constexpr int32_t kMaxRanks = 8;

  int32_t rank = 0;
  int32_t world_size = 0;
  // Each rank's memory, on its device: PeerOps::memory_bytes, of which the first state_bytes begin as zeros.
  void* memory[kMaxRanks] = {};
  PeerStatus* status = nullptr;
  uint64_t max_wait_ns = 0;  // for one exchange; then the group is aborted
  // Whether 16 bytes that one device writes to another are seen there at once.
  bool has_whole_writes = false;
};

// Every rank makes the same calls in the same order, with tensors of the same shapes, strides and alignments.
// How many were made is counted in `memory`, so graphs may be replayed, by all ranks alike.
struct PeerOps {
  size_t memory_bytes;
  size_t state_bytes;
  // Of 4 bytes in that memory, which begin as zeros: the host makes them another number while no other rank
  // has memory on this device. Kernels that follow an exchange then begin while it waits.
  size_t is_alone_offset;

  // Loads the exchanges' kernels on the device that is selected, before the first exchange: the driver may
  // let a load wait for what runs. Returns a code of DeviceRuntime's.
  int (*load)();

  // x becomes the sum over all ranks, added in rank order in fp32: every rank holds the same bits.
  //   x fp32 | fp16 | bf16, dense
  void (*all_reduce_sum)(const LaunchContext& ctx, const PeerGroup& group, TensorView x);

  // out[:, r * N : (r + 1) * N] = x of rank r, as far as out has these columns.
  //   x [T, N], out [T, at most world * N] of the same dtype; rows strided, columns contiguous
  void (*all_gather_columns)(const LaunchContext& ctx, const PeerGroup& group, TensorView out, TensorView x);

  // Of R = logits.shape[0] rows the best of what KernelTable::sample left in `best` of each rank: the token
  // that it would have chosen had it seen all ranks' logits. Of `args` that are read: logits.shape[0], best,
  // sampled_token_ids, host_token_ids, token_places. Takes LaunchContext::into. Only where has_whole_writes.
  void (*choose_tokens)(const LaunchContext& ctx, const PeerGroup& group, const SamplingArgs& args);
};

}  // namespace quire
