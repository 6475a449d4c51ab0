// Exchanges between the devices of one process, each in one kernel. quire/kernels/peer_ops.h is the contract.
//
// Block b of every rank handles the same part of the tensor, so that it meets block b of the other ranks and
// nobody else. There are two mailboxes, used in turn: a rank that is two exchanges ahead knows that the
// others are done with the one before, so nobody waits before writing.
#include <algorithm>
#include <cuda/atomic>

#include "common/launch.h"
#include "common/types.cuh"
#include "ops.h"

namespace quire::cuda {
namespace {

constexpr int kThreads = 512;
// So few that all of them run at once beside other work, or blocks would wait for blocks that cannot begin.
constexpr int kMaxBlocks = 64;
// Larger tensors are exchanged in pieces.
constexpr int64_t kMailboxBytes = int64_t{16} << 20;
// How often a flag is looked at before the clock and the host's memory, which are slower, are.
constexpr int kSpins = 64;

// Begins as zeros. Counters are never reset while the group lives: 64 bits do not wrap.
struct State {
  uint64_t num_exchanges;  // done, of this rank
  uint32_t num_blocks_done;
  // The last exchange for which block [b] of rank [r] has written its part; that rank writes it here.
  uint64_t written[PeerGroup::kMaxRanks][kMaxBlocks];
};
constexpr size_t kStateBytes = (sizeof(State) + 255) / 256 * 256;

template <typename T>
using SystemAtomic = ::cuda::atomic_ref<T, ::cuda::thread_scope_system>;

__device__ State& state_of(const PeerGroup& group, int rank) {
  return *static_cast<State*>(group.memory[rank]);
}
template <typename T>
__device__ T* mailbox_of(const PeerGroup& group, int rank, uint64_t exchange) {
  return reinterpret_cast<T*>(static_cast<char*>(group.memory[rank]) + kStateBytes +
                              (exchange % 2) * kMailboxBytes);
}

__device__ uint64_t now_ns() {
  uint64_t ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}

// False when there is nothing to wait for: a rank has failed, or takes too long.
__device__ bool wait_for(const PeerGroup& group, int rank, uint64_t exchange) {
  const SystemAtomic<uint64_t> written(state_of(group, group.rank).written[rank][blockIdx.x]);
  const SystemAtomic<uint32_t> aborted(group.status->aborted);
  uint64_t begin = 0;
  for (int spins = 1; written.load(::cuda::memory_order_acquire) < exchange; ++spins) {
    if (spins % kSpins != 0) continue;
    if (aborted.load(::cuda::memory_order_relaxed) != 0) return false;
    const uint64_t now = now_ns();
    if (begin == 0) begin = now;
    if (now - begin <= group.max_wait_ns) continue;
    SystemAtomic<uint32_t>(group.status->timed_out)
        .store(static_cast<uint32_t>(rank) + 1, ::cuda::memory_order_relaxed);
    aborted.store(1, ::cuda::memory_order_release);
    return false;
  }
  return true;
}

// What this block has written is seen by the same block of every rank, and the other way round. False when
// the exchange has no result; on every thread.
__device__ bool meet(const PeerGroup& group, uint64_t exchange) {
  const int rank = static_cast<int>(threadIdx.x);
  __syncthreads();
  bool met = true;
  if (rank < group.world_size) {
    // The release carries what all threads have written before the barrier.
    SystemAtomic<uint64_t>(state_of(group, rank).written[group.rank][blockIdx.x])
        .store(exchange, ::cuda::memory_order_release);
    met = wait_for(group, rank, exchange);
  }
  return __syncthreads_and(met) != 0;
}

// The last block counts the exchange: by then all have read the count.
__device__ void finish(State& state, uint64_t exchange) {
  __syncthreads();
  if (threadIdx.x != 0 || atomicAdd(&state.num_blocks_done, 1U) + 1 != gridDim.x) return;
  state.num_blocks_done = 0;
  state.num_exchanges = exchange;
}

// Each thread walks its block's part twice: into the mailbox, and out of all of them. kWorld 0: any number.
template <typename V, typename T, int kWorld>
__global__ void __launch_bounds__(kThreads)
    all_reduce_sum_kernel(const __grid_constant__ PeerGroup group, V* x, int count) {
  constexpr int kSize = sizeof(V) / sizeof(T);
  State& state = state_of(group, group.rank);
  const uint64_t exchange = state.num_exchanges + 1;
  const int first = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  const int stride = static_cast<int>(gridDim.x) * kThreads;

  V* mine = mailbox_of<V>(group, group.rank, exchange);
  for (int i = first; i < count; i += stride) mine[i] = x[i];
  if (meet(group, exchange)) {
    for (int i = first; i < count; i += stride) {
      float sum[kSize] = {};
      const auto add = [&](const V& values) {
        const T* each = reinterpret_cast<const T*>(&values);
#pragma unroll
        for (int k = 0; k < kSize; ++k) sum[k] += to_float(each[k]);
      };
      if constexpr (kWorld > 0) {
        V values[kWorld];  // all on their way at once
#pragma unroll
        for (int rank = 0; rank < kWorld; ++rank) values[rank] = mailbox_of<V>(group, rank, exchange)[i];
#pragma unroll
        for (int rank = 0; rank < kWorld; ++rank) add(values[rank]);
      } else {
        for (int rank = 0; rank < group.world_size; ++rank) add(mailbox_of<V>(group, rank, exchange)[i]);
      }
      V out;
#pragma unroll
      for (int k = 0; k < kSize; ++k) reinterpret_cast<T*>(&out)[k] = from_float<T>(sum[k]);
      x[i] = out;
    }
  }
  finish(state, exchange);
}

// Numbers count units: one element, or several where rows begin at multiples of 16 bytes.
struct GatherShape {
  int64_t out_stride, x_stride;
  int rows, columns, out_columns;
};

template <typename Unit>
__global__ void __launch_bounds__(kThreads)
    all_gather_columns_kernel(const __grid_constant__ PeerGroup group, Unit* out, const Unit* x,
                              GatherShape shape) {
  State& state = state_of(group, group.rank);
  const uint64_t exchange = state.num_exchanges + 1;
  const int first = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  const int stride = static_cast<int>(gridDim.x) * kThreads;
  const int count = shape.rows * shape.columns;

  Unit* mine = mailbox_of<Unit>(group, group.rank, exchange);
  for (int i = first; i < count; i += stride)
    mine[i] = x[i / shape.columns * shape.x_stride + i % shape.columns];
  if (meet(group, exchange)) {
    for (int i = first; i < count; i += stride) {
      Unit* row = out + i / shape.columns * shape.out_stride;
      for (int rank = 0; rank < group.world_size; ++rank) {
        const int64_t column = int64_t{rank} * shape.columns + i % shape.columns;
        if (column < shape.out_columns) row[column] = mailbox_of<Unit>(group, rank, exchange)[i];
      }
    }
  }
  finish(state, exchange);
}

unsigned num_blocks(int64_t count) {
  return static_cast<unsigned>(std::min<int64_t>(ceil_div<int64_t>(count, kThreads), kMaxBlocks));
}

template <typename V, typename T>
void launch_all_reduce(const LaunchContext& ctx, const PeerGroup& group, V* x, int count) {
  const auto launch = [&](auto kernel) {
    kernel<<<num_blocks(count), kThreads, 0, stream_of(ctx)>>>(group, x, count);
  };
  if constexpr (std::is_same_v<V, T>) {
    launch(all_reduce_sum_kernel<V, T, 0>);
  } else {
    switch (group.world_size) {
      case 2: return launch(all_reduce_sum_kernel<V, T, 2>);
      case 4: return launch(all_reduce_sum_kernel<V, T, 4>);
      case 8: return launch(all_reduce_sum_kernel<V, T, 8>);
      default: return launch(all_reduce_sum_kernel<V, T, 0>);
    }
  }
}

bool is_aligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % sizeof(uint4) == 0; }

void all_reduce_sum(const LaunchContext& ctx, const PeerGroup& group, TensorView x) {
  const int64_t count = x.numel();
  dispatch_float(x.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int64_t kAtOnce = kMailboxBytes / sizeof(T);
    for (int64_t begin = 0; begin < count; begin += kAtOnce) {
      const int64_t piece = std::min(kAtOnce, count - begin);
      T* data = x.as<T>() + begin;
      if (is_aligned(data) && piece % Vec<T>::kSize == 0) {
        launch_all_reduce<Vec<T>, T>(ctx, group, reinterpret_cast<Vec<T>*>(data),
                                     static_cast<int>(piece / Vec<T>::kSize));
      } else {
        launch_all_reduce<T, T>(ctx, group, data, static_cast<int>(piece));
      }
    }
  });
  check_launch(ctx, "peer_all_reduce_sum", x);
}

template <typename Unit>
void gather(const LaunchContext& ctx, const PeerGroup& group, TensorView out, TensorView x) {
  const auto size = static_cast<int64_t>(dtype_bytes(x.dtype));
  const auto units = [size](int64_t elements) {
    return elements * size / static_cast<int64_t>(sizeof(Unit));
  };
  const int64_t rows_at_once = kMailboxBytes / (x.shape[1] * size);
  for (int64_t row = 0; row < x.shape[0]; row += rows_at_once) {
    const GatherShape shape = {units(out.stride[0]), units(x.stride[0]),
                               static_cast<int>(std::min(rows_at_once, x.shape[0] - row)),
                               static_cast<int>(units(x.shape[1])), static_cast<int>(units(out.shape[1]))};
    all_gather_columns_kernel<<<num_blocks(int64_t{shape.rows} * shape.columns), kThreads, 0,
                                stream_of(ctx)>>>(group, reinterpret_cast<Unit*>(out.at(row)),
                                                  reinterpret_cast<const Unit*>(x.at(row)), shape);
  }
}

void all_gather_columns(const LaunchContext& ctx, const PeerGroup& group, TensorView out, TensorView x) {
  const auto size = static_cast<int64_t>(dtype_bytes(x.dtype));
  if (x.numel() == 0) return;
  if (x.shape[1] * size > kMailboxBytes) {
    note_error(ctx, "peer_all_gather_columns", "", "a row is longer than a mailbox");
    return;
  }
  bool whole_vectors = is_aligned(out.data) && is_aligned(x.data);
  for (const int64_t elements : {out.stride[0], x.stride[0], out.shape[1], x.shape[1]})
    whole_vectors = whole_vectors && elements * size % static_cast<int64_t>(sizeof(uint4)) == 0;
  if (whole_vectors) {
    gather<uint4>(ctx, group, out, x);
  } else if (size == 4) {
    gather<uint32_t>(ctx, group, out, x);
  } else {
    gather<uint16_t>(ctx, group, out, x);
  }
  check_launch(ctx, "peer_all_gather_columns", x);
}

// Asking for a kernel's attributes loads it.
int load_kernel(auto* kernel) {
  cudaFuncAttributes attributes;
  const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
  if (error != cudaSuccess) cudaGetLastError();
  return error;
}

template <typename T>
int load_all_reduce() {
  using V = Vec<T>;
  int code = 0;
  for (auto* kernel : {all_reduce_sum_kernel<V, T, 2>, all_reduce_sum_kernel<V, T, 4>,
                       all_reduce_sum_kernel<V, T, 8>, all_reduce_sum_kernel<V, T, 0>}) {
    if (code == 0) code = load_kernel(kernel);
  }
  return code != 0 ? code : load_kernel(all_reduce_sum_kernel<T, T, 0>);
}

int load() {
  for (const int code :
       {load_all_reduce<float>(), load_all_reduce<fp16>(), load_all_reduce<bf16>(),
        load_kernel(all_gather_columns_kernel<uint4>), load_kernel(all_gather_columns_kernel<uint32_t>),
        load_kernel(all_gather_columns_kernel<uint16_t>)}) {
    if (code != 0) return code;
  }
  return 0;
}

}  // namespace

const PeerOps kPeerOps = {kStateBytes + 2 * kMailboxBytes, kStateBytes, load, all_reduce_sum,
                          all_gather_columns};

}  // namespace quire::cuda
