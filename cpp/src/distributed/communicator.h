// How ranks that share a layer exchange tensors.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "quire/kernels/tensor_view.h"

namespace quire {

// One object per rank. Every rank of the group makes the same calls in the same order. Used on the rank's
// own thread.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int32_t rank() const = 0;
  virtual int32_t world_size() const = 0;

  // x becomes the sum over all ranks, added in rank order in fp32, so every rank holds the same bits.
  //   x fp32 | bf16, rank 1 or 2, dense
  virtual void all_reduce_sum(TensorView x) = 0;

  // out[:, r * N : (r + 1) * N] = x of rank r.   x [T, N], out [T, world * N], same dtype; rows may be
  // strided.
  virtual void all_gather_columns(TensorView out, TensorView x) = 0;

  virtual void barrier() = 0;

  // This rank cannot go on: every call of the others throws InternalError instead of waiting for it, until a
  // reset.
  virtual void abort() = 0;
  // Forgets an abort: the ranks may meet again. While none of them is in a call, and from any thread.
  virtual void reset() = 0;
};

// A group of one: nothing to exchange.
std::unique_ptr<Communicator> make_single_communicator();

// `world_size` ranks over one piece of shared memory, for ranks that are threads of this process or that
// forked after this call. `max_bytes` bounds the largest tensor of one call.
std::vector<std::unique_ptr<Communicator>> make_shared_memory_communicators(int32_t world_size,
                                                                            size_t max_bytes);

}  // namespace quire
