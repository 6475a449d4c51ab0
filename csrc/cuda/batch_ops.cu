// A step's inputs, made on the device from a few numbers for each row.
#include "common/launch.h"
#include "ops.h"

namespace quire::cuda {
namespace {

constexpr int kThreads = 128;

__global__ void write_rows_kernel(RowWriteArgs args) {
  const RowWrite write = args.writes[blockIdx.x];
  int32_t* row = args.tables[write.table] + write.row * args.strides[write.table] + write.begin;
  const int32_t* values = args.values + write.first;
  for (int i = threadIdx.x; i < write.count; i += kThreads) row[i] = values[i];
}

// The row that token t belongs to: the last whose first token is not behind it.
__device__ int row_of(const int32_t* query_start_loc, int num_rows, int token) {
  int low = 0, high = num_rows;  // query_start_loc[low] <= token < query_start_loc[high]
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (query_start_loc[middle] <= token) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

__global__ void prepare_inputs_kernel(PrepareInputsArgs args) {
  const int i = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (i <= args.padded_rows) {
    args.padded_query_start_loc[i] = i < args.num_rows ? args.query_start_loc[i] : args.num_tokens;
  }
  if (i < args.padded_rows) {
    args.seq_lens[i] =
        i < args.num_rows ? args.num_computed[i] + args.query_start_loc[i + 1] - args.query_start_loc[i] : 0;
  }
  if (i >= args.padded_tokens) return;
  if (i >= args.num_tokens) {
    args.input_ids[i] = 0;
    args.positions[i] = 0;
    for (int g = 0; g < args.num_groups; ++g) args.groups[g].slot_mapping[i] = -1;
    return;
  }
  const int row = row_of(args.query_start_loc, args.num_rows, i);
  const int position = args.num_computed[row] + i - args.query_start_loc[row];
  args.input_ids[i] = args.tokens[args.slots[row] * args.tokens_stride + position];
  args.positions[i] = position;
  for (int g = 0; g < args.num_groups; ++g) {
    const GroupInputs& group = args.groups[g];
    const int64_t block = group.block_table[row * group.block_table_stride + position / group.block_size];
    group.slot_mapping[i] = block * group.block_size + position % group.block_size;
  }
}

__global__ void store_tokens_kernel(StoreTokensArgs args) {
  const int i = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (i >= args.count || args.slots[i] < 0 || args.positions[i] >= args.tokens_stride) return;
  args.tokens[args.slots[i] * args.tokens_stride + args.positions[i]] = args.token_ids[i];
}

void write_rows(const LaunchContext& ctx, const RowWriteArgs& args) {
  if (args.num_writes == 0) return;
  write_rows_kernel<<<static_cast<unsigned>(args.num_writes), kThreads, 0, stream_of(ctx)>>>(args);
  check_launch(ctx, "write_rows", "[%d]", args.num_writes);
}

void prepare_inputs(const LaunchContext& ctx, const PrepareInputsArgs& args) {
  const int32_t threads = args.padded_tokens > args.padded_rows ? args.padded_tokens : args.padded_rows + 1;
  prepare_inputs_kernel<<<static_cast<unsigned>(ceil_div(threads, kThreads)), kThreads, 0, stream_of(ctx)>>>(
      args);
  check_launch(ctx, "prepare_inputs", "[%d rows, %d tokens]", args.num_rows, args.num_tokens);
}

void store_tokens(const LaunchContext& ctx, const StoreTokensArgs& args) {
  if (args.count == 0) return;
  store_tokens_kernel<<<static_cast<unsigned>(ceil_div(args.count, kThreads)), kThreads, 0, stream_of(ctx)>>>(
      args);
  check_launch(ctx, "store_tokens", "[%d]", args.count);
}

}  // namespace

const BatchOps kBatchOps = {write_rows, prepare_inputs, store_tokens};

}  // namespace quire::cuda
