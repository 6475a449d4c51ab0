// How ranks that share a layer exchange tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "quire/export.h"
#include "quire/kernels/launch_context.h"
#include "quire/kernels/tensor_view.h"

namespace quire {
struct SamplingArgs;
}

namespace quire QUIRE_MODEL_API {

// One object per rank. Every rank makes the same exchanges in the same order, on its own thread.
// On a device they are only enqueued on ctx.stream, and may be captured in a graph that is replayed by every
// rank as often; in host memory they are done when they return.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int32_t rank() const = 0;
  virtual int32_t world_size() const = 0;

  // x becomes the sum over all ranks, added in rank order in fp32, so every rank holds the same bits.
  //   x fp32 | bf16, rank 1 or 2, dense
  virtual void all_reduce_sum(const LaunchContext& ctx, TensorView x) = 0;

  // out[:, r * N : (r + 1) * N] = x of rank r, as far as out has these columns: the last ones of the last
  // rank may be padding.   x [T, N], out [T, at most world * N], same dtype; rows may be strided.
  virtual void all_gather_columns(const LaunchContext& ctx, TensorView out, TensorView x) = 0;

  // What PeerOps::choose_tokens says, where ranks can.
  virtual bool chooses_tokens() const { return false; }
  virtual void choose_tokens(const LaunchContext& ctx, const SamplingArgs& args);

  // This rank cannot go on: nobody waits for it any more, until a reset. Exchanges of the others throw
  // InternalError, or, where they are only enqueued, have no result and `check` throws. From any thread.
  virtual void abort() = 0;
  // Throws InternalError when an exchange that was enqueued had no result, for whoever has waited for it. The
  // others throw by themselves. From any thread.
  virtual void check() {}
  // Forgets an abort: the ranks may meet again. Of every rank, while none of them has an exchange under way,
  // and before the next; from any thread.
  virtual void reset() = 0;

  // While it is on, exchanges on a device do not happen: sums stay parts, what is gathered is zeros. For a
  // warm-up: a rank that waits on its device could keep another one's kernels from being loaded.
  virtual void set_rehearsal(bool) {}

  // Device memory that it takes, beside the worker's own.
  virtual size_t device_bytes() const { return 0; }
};

// The only rank, on the host or on a device: nothing to exchange.
std::unique_ptr<Communicator> make_single_communicator();

// A rank of a group that is not there: exchanges do nothing. For finding out what a rank would take.
std::unique_ptr<Communicator> make_planned_communicator(int32_t rank, int32_t world_size,
                                                        size_t device_bytes);

// `world_size` ranks over one piece of shared memory, for ranks that are threads of this process or that
// forked after this call, and compute on the host. `max_bytes` bounds the largest tensor of one rank.
std::vector<std::unique_ptr<Communicator>> make_shared_memory_communicators(int32_t world_size,
                                                                            size_t max_bytes);

}  // namespace quire
