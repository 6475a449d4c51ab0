// How a device builds the inputs of a step from the little that the host knows and sends. The tokens and
// block ids of every request stay on the device, in rows of their own that its "state index" names, whatever
// its row in the batch: so a sampled token is the next step's input without the host having seen it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "quire/kernels/launch_context.h"

namespace quire {

// `count` ints for one row of a table: table[row * stride + begin ..] = values[first ..].
struct RowWrite {
  int32_t table = 0;  // index into RowWriteArgs::tables
  int32_t row = 0;
  int32_t begin = 0;
  int32_t count = 0;
  int32_t first = 0;
};

// Writes do not overlap, and the values of each follow those of the one before.
struct RowWriteArgs {
  static constexpr int32_t kMaxTables = 9;
  int32_t* tables[kMaxTables] = {};
  int64_t strides[kMaxTables] = {};
  const RowWrite* writes = nullptr;  // [num_writes]
  const int32_t* values = nullptr;   // [num_values]
  int32_t num_writes = 0, num_values = 0;
};

// Bytes of the host's pinned memory, read by a kernel rather than copied by a call of their own. Multiples of
// 16, as `to` and `from` are.
struct PinnedBytes {
  void* to = nullptr;
  const void* from = nullptr;
  size_t count = 0;
};

// One KV cache group's part of the step's inputs.
struct GroupInputs {
  const int32_t* block_table = nullptr;  // [*, stride]
  int64_t block_table_stride = 0;
  int32_t block_size = 0;
  int64_t* slot_mapping = nullptr;           // [padded T] out; -1 for padding
  int32_t common_prefix_len = 0;             // AttentionMetadata's, of the host
  int32_t* common_prefix_len_out = nullptr;  // [1]; null: nobody reads it
};

// In this order: `bytes` are brought, `row_writes` written, the inputs made. What the first brings may hold
// whatever the others read.
struct PrepareInputsArgs {
  static constexpr int32_t kMaxGroups =
      RowWriteArgs::kMaxTables - 2;  // one is the tokens', one the adapters'
  PinnedBytes bytes;
  RowWriteArgs row_writes;
  // From the host, for this step. Rows beyond num_rows have no tokens.
  const int32_t* query_start_loc = nullptr;  // [num_rows + 1]
  const int32_t* num_computed = nullptr;     // [num_rows]
  const int32_t* state_indices = nullptr;    // [num_rows] rows of `tokens` and of the block tables
  int32_t num_rows = 0, num_tokens = 0;
  int32_t padded_rows = 0, padded_tokens = 0;
  const int32_t* tokens = nullptr;  // [*, tokens_stride]
  int64_t tokens_stride = 0;
  // Out, at fixed addresses.
  int32_t* input_ids = nullptr;               // [padded_tokens]; 0 for padding
  int32_t* positions = nullptr;               // [padded_tokens]; 0 for padding
  int32_t* padded_query_start_loc = nullptr;  // [padded_rows + 1]; padding repeats the last
  int32_t* seq_lens = nullptr;                // [padded_rows]; 0 for padding
  int32_t* padded_state_indices = nullptr;    // [padded_rows]; 0 for padding
  int32_t* unpadded_tokens = nullptr;         // [1]; num_tokens. Null: nobody reads it
  GroupInputs groups[kMaxGroups];
  int32_t num_groups = 0;
};

struct BatchOps {
  // One kernel: LaunchContext::into. Without rows, tokens and bytes, and with padded_rows -1, it does
  // nothing.
  void (*prepare_inputs)(const LaunchContext& ctx, const PrepareInputsArgs& args);
};

}  // namespace quire
