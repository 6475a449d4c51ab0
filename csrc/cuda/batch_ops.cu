// A step's inputs, made on the device from a few numbers for each row.
#include "common/launch.h"
#include "ops.h"

namespace quire::cuda {
namespace {

constexpr int kThreads = 1024;

// The last of `count` ascending numbers that is not above x; the first one is not.
template <typename F>
__device__ int last_not_above(int count, int x, F at) {
  int low = 0, high = count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (at(middle) <= x) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// Value i to where it belongs. Writes without values are never found: another begins where they do.
__device__ void write_value(const RowWriteArgs& args, int i) {
  const RowWrite write =
      args.writes[last_not_above(args.num_writes, i, [&](int w) { return args.writes[w].first; })];
  int32_t* row = args.tables[write.table] + write.row * args.strides[write.table];
  row[write.begin + i - write.first] = args.values[i];
}

__device__ void prepare_row(const PrepareInputsArgs& args, int i) {
  const bool real = i < args.num_rows;
  const int begin = real ? args.query_start_loc[i] : args.num_tokens;
  args.padded_query_start_loc[i] = begin;
  if (i == 0 && args.unpadded_tokens != nullptr) *args.unpadded_tokens = args.num_tokens;
  if (i >= args.padded_rows) return;
  args.seq_lens[i] = real ? args.num_computed[i] + args.query_start_loc[i + 1] - begin : 0;
  args.padded_state_indices[i] = real ? args.state_indices[i] : 0;
}

__device__ void prepare_token(const PrepareInputsArgs& args, int i) {
  if (i >= args.num_tokens) {
    args.input_ids[i] = 0;
    args.positions[i] = 0;
    for (int g = 0; g < args.num_groups; ++g) args.groups[g].slot_mapping[i] = -1;
    return;
  }
  const int row = last_not_above(args.num_rows, i, [&](int r) { return args.query_start_loc[r]; });
  const int position = args.num_computed[row] + i - args.query_start_loc[row];
  const int32_t state_index = args.state_indices[row];
  args.input_ids[i] = args.tokens[state_index * args.tokens_stride + position];
  args.positions[i] = position;
  for (int g = 0; g < args.num_groups; ++g) {
    const GroupInputs& group = args.groups[g];
    const int64_t block =
        group.block_table[state_index * group.block_table_stride + position / group.block_size];
    group.slot_mapping[i] = block * group.block_size + position % group.block_size;
  }
}

// One block, so that what it has brought and written can be read. For a decode that is a few numbers for each
// thread; 16,384 tokens of one step take it 24 us on an H200, and the model half a second.
__global__ void __launch_bounds__(kThreads)
    prepare_inputs_kernel(const __grid_constant__ PrepareInputsArgs args) {
  const int thread = static_cast<int>(threadIdx.x);
  const auto* from = static_cast<const int4*>(args.bytes.from);
  auto* to = static_cast<int4*>(args.bytes.to);
  for (int i = thread; i < static_cast<int>(args.bytes.count / sizeof(int4)); i += kThreads) to[i] = from[i];
  __syncthreads();
  for (int i = thread; i < args.row_writes.num_values; i += kThreads) write_value(args.row_writes, i);
  for (int i = thread; i <= args.padded_rows; i += kThreads) prepare_row(args, i);
  if (thread < args.num_groups && args.groups[thread].common_prefix_len_out != nullptr)
    *args.groups[thread].common_prefix_len_out = args.groups[thread].common_prefix_len;
  __syncthreads();
  for (int i = thread; i < args.padded_tokens; i += kThreads) prepare_token(args, i);
  __threadfence();  // kernels of the step read it as soon as this one has ended
}

// As an ordinary launch, which lets nothing start early: kernels of the step read ahead what it writes.
void prepare_inputs(const LaunchContext& ctx, const PrepareInputsArgs& args) {
  launch_or_set(ctx, prepare_inputs_kernel, 1, kThreads, args);
  check_launch(ctx, "prepare_inputs", "[%d rows, %d tokens]", args.num_rows, args.num_tokens);
}

}  // namespace

const BatchOps kBatchOps = {prepare_inputs};

}  // namespace quire::cuda
