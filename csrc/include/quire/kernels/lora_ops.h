// Low-rank adapters (Hu et al., "LoRA", 2021): what those of a batch add to the product of a linear.
#pragma once

#include <cstdint>

#include "quire/kernels/tensor_view.h"

namespace quire {

// Modules of the checkpoint that one linear stacks: q, k and v are three.
inline constexpr int32_t kMaxLoraModules = 4;

// A run of a linear's outputs.
struct LoraModule {
  int64_t first_output = 0;
  int64_t num_outputs = 0;
};

// One adapter's share of one linear. Matrices are as the backend's products read a LinearWeight's data, in
// the dtype of the linear's inputs. Ranks are multiples of KernelTable::lora_rank_multiple: what an adapter
// has less of is zeros.
struct alignas(16) LoraSlot {
  int32_t ranks[kMaxLoraModules] = {};  // 0: the adapter has nothing for this module
  const void* a = nullptr;              // [sum of ranks, K], a module's rows behind those of the one before
  const void* b[kMaxLoraModules] = {};  // of a module with a rank: [its outputs, its rank], scaled
  int64_t expert_stride_bytes = 0;      // of a mixture: from all matrices of one expert to those of the next

  int32_t total_rank() const { return ranks[0] + ranks[1] + ranks[2] + ranks[3]; }
};

// Rows of one adapter: rows[begin .. end) of a batch.
struct LoraSegment {
  int32_t slot = 0;
  int32_t begin = 0, end = 0;
};

// The rows of a batch that have an adapter, those of one adapter side by side and ascending; behind them,
// where the table has linear_add_lora, those that have none, in slot -1. A segment is never empty,
// and has at most KernelTable::lora_segment_rows; what follows in the next one may have the same slot.
struct LoraBatch {
  const int32_t* rows = nullptr;
  const LoraSegment* segments = nullptr;
  const int32_t* num_segments = nullptr;  // [2]: those with an adapter, and all
  const int32_t* row_slots = nullptr;     // [T] of each row, -1: none; where one of them changes experts
};

// Of each module m and each row t with an adapter: out[t, m's outputs] += b[m] (a[m] x[t]). What `a` makes is
// rounded to x's dtype; sums are in fp32, that with `out` too, which then is rounded once.
struct LoraArgs {
  TensorView out;                   // [T, N] fp32 | 16-bit, rows strided; other rows stay as they are
  TensorView x;                     // [T, K] fp32 | 16-bit, rows strided
  const LoraSlot* slots = nullptr;  // that of segment s: slots[s.slot * slot_stride]
  int64_t slot_stride = 1;
  const LoraModule* modules = nullptr;  // [num_modules] on the host; their outputs are disjoint
  int32_t num_modules = 0;
  int32_t max_total_rank = 0;  // of any slot
  int32_t max_segments = 0;    // of any batch of T rows
  LoraBatch batch;
};

// What bounds the scratch of an op.
struct LoraShape {
  int64_t max_tokens = 0;
  int64_t n = 0, k = 0;
  int32_t max_total_rank = 0;     // of one adapter
  int32_t max_loras = 0;          // in a batch
  DType dtype = DType::kFloat32;  // of x
};

}  // namespace quire
