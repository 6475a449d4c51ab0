// Exchanges between the devices of one process, each in one kernel. quire/kernels/peer_ops.h is the contract.
#include <algorithm>
#include <limits>

#include "ops.h"
#include "peers/choose.cuh"
#include "peers/flagged.cuh"
#include "peers/rounds.cuh"

namespace quire::cuda {
namespace {

template <typename Unit>
bool is_of_units(TensorView x) {
  return reinterpret_cast<uintptr_t>(x.data) % sizeof(Unit) == 0 &&
         static_cast<size_t>(x.numel()) * dtype_bytes(x.dtype) % sizeof(Unit) == 0;
}

template <typename T>
void sum_by_flags(const LaunchContext& ctx, const PeerGroup& group, TensorView x, int64_t bytes) {
  const int64_t words = bytes / static_cast<int64_t>(sizeof(uint32_t));
  const int64_t packets = ceil_div<int64_t>(words, Packet::kWords);
  // As many blocks as there may be, until threads are too few.
  const int64_t threads = std::clamp<int64_t>(
      ceil_div<int64_t>(packets, int64_t{kMaxPeerBlocks} * kPackets * 32) * 32, 128, kMaxPeerThreads);
  const int64_t blocks = std::min<int64_t>(ceil_div(packets, threads), kMaxPeerBlocks);
  launch_dependent(ctx, sum_by_flags_kernel<T>, static_cast<unsigned>(blocks), static_cast<unsigned>(threads),
                   0, group, static_cast<uint32_t*>(x.data), static_cast<int>(words));
}

unsigned ring_blocks(const PeerGroup& group, int64_t count) {
  return static_cast<unsigned>(std::min(ceil_div<int64_t>(count, kChunk), max_ring_blocks(group.world_size)));
}

template <typename T, typename V>
void sum_in_rounds(const LaunchContext& ctx, const PeerGroup& group, TensorView x) {
  const int64_t count = x.numel() * static_cast<int64_t>(sizeof(T)) / static_cast<int64_t>(sizeof(V));
  const int64_t part = ceil_div<int64_t>(count, group.world_size);
  launch_dependent(ctx, sum_in_rounds_kernel<T, V>, ring_blocks(group, part), kMaxPeerThreads, 0, group,
                   static_cast<V*>(x.data), count, part);
}

void all_reduce_sum(const LaunchContext& ctx, const PeerGroup& group, TensorView x) {
  if (x.numel() == 0) return;
  dispatch_float(x.dtype, [&](auto type) {
    using T = decltype(type);
    const int64_t bytes = x.numel() * static_cast<int64_t>(sizeof(T));
    if (group.has_whole_writes && bytes * (group.world_size - 1) <= kFlaggedBytes &&
        is_of_units<uint32_t>(x)) {
      sum_by_flags<T>(ctx, group, x, bytes);
    } else if (is_of_units<uint4>(x)) {
      sum_in_rounds<T, Vec<T>>(ctx, group, x);
    } else {
      sum_in_rounds<T, T>(ctx, group, x);
    }
  });
  check_launch(ctx, "peer_all_reduce_sum", x);
}

template <typename V>
void gather(const LaunchContext& ctx, const PeerGroup& group, TensorView out, TensorView x) {
  const auto units = [&](int64_t elements) {
    return elements * static_cast<int64_t>(dtype_bytes(x.dtype)) / static_cast<int64_t>(sizeof(V));
  };
  const int64_t count = units(x.numel());
  if (count > std::numeric_limits<int>::max())
    return note_error(ctx, "peer_all_gather_columns", "", "there are too many columns and rows");
  const GatherShape shape = {units(out.stride[0]), units(x.stride[0]), static_cast<int>(count),
                             static_cast<int>(units(x.shape[1])), static_cast<int>(units(out.shape[1]))};
  launch_dependent(ctx, gather_columns_kernel<V>, ring_blocks(group, count), kMaxPeerThreads, 0, group,
                   static_cast<V*>(out.data), static_cast<const V*>(x.data), shape);
}

void all_gather_columns(const LaunchContext& ctx, const PeerGroup& group, TensorView out, TensorView x) {
  const auto size = static_cast<int64_t>(dtype_bytes(x.dtype));
  if (x.numel() == 0) return;
  bool whole_vectors = true;
  for (const void* data : {out.data, x.data})
    whole_vectors = whole_vectors && reinterpret_cast<uintptr_t>(data) % sizeof(uint4) == 0;
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

void choose_tokens(const LaunchContext& ctx, const PeerGroup& group, const SamplingArgs& args) {
  const auto rows = static_cast<int>(args.logits.shape[0]);
  if (rows == 0) return;
  if (int64_t{rows} * static_cast<int64_t>(sizeof(Packet)) * (group.world_size - 1) > kFlaggedBytes)
    return note_error(ctx, "peer_choose_tokens", "", "there are too many rows");
  launch_or_set(ctx, choose_tokens_kernel, dim3(static_cast<unsigned>(ceil_div(rows, kChooseThreads))),
                kChooseThreads, group, args, rows);
  check_launch(ctx, "peer_choose_tokens", args.logits);
}

int load() {
  int code = 0;
  // Asking for a kernel's attributes loads it.
  const auto load_one = [&](auto* kernel) {
    cudaFuncAttributes attributes;
    if (code == 0) code = cudaFuncGetAttributes(&attributes, kernel);
    if (code != 0) cudaGetLastError();
  };
  const auto load_of_type = [&](auto type) {
    using T = decltype(type);
    load_one(sum_by_flags_kernel<T>);
    load_one(sum_in_rounds_kernel<T, Vec<T>>);
    load_one(sum_in_rounds_kernel<T, T>);
  };
  load_of_type(float{});
  load_of_type(fp16{});
  load_of_type(bf16{});
  load_one(gather_columns_kernel<uint4>);
  load_one(gather_columns_kernel<uint32_t>);
  load_one(gather_columns_kernel<uint16_t>);
  load_one(choose_tokens_kernel);
  return code;
}

}  // namespace

const PeerOps kPeerOps = {.memory_bytes = kPeerMemoryBytes,
                          .state_bytes = kIsAlone,
                          .is_alone_offset = kIsAlone,
                          .load = load,
                          .all_reduce_sum = all_reduce_sum,
                          .all_gather_columns = all_gather_columns,
                          .choose_tokens = choose_tokens};

}  // namespace quire::cuda
