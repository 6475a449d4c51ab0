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
// the dtype of the linear's inputs.
struct LoraSlot {
  const void* a = nullptr;              // [sum of ranks, K], a module's rows behind those of the one before
  const void* b[kMaxLoraModules] = {};  // of a module with a rank: [its outputs, its rank], scaled
  int32_t ranks[kMaxLoraModules] = {};  // 0: the adapter has nothing for this module

  int32_t total_rank() const { return ranks[0] + ranks[1] + ranks[2] + ranks[3]; }
};

// The rows of a batch that have an adapter, those of one adapter side by side: segment i is
// rows[begin[i] .. begin[i + 1]), never empty and ascending, and its adapter lies in slots[i]. No two
// segments have the same.
struct LoraBatch {
  const int32_t* rows = nullptr;   // [begin[num_segments]]
  const int32_t* begin = nullptr;  // [num_segments + 1]
  const int32_t* slots = nullptr;  // [num_segments]
  int32_t num_segments = 0;
};

// Of each module m and each row t with an adapter: out[t, m's outputs] += b[m] (a[m] x[t]). What `a` makes is
// rounded to x's dtype; sums are in fp32, that with `out` too, which then is rounded once.
struct LoraArgs {
  TensorView out;                       // [T, N] fp32 | 16-bit, rows strided; other rows stay as they are
  TensorView x;                         // [T, K] fp32 | 16-bit, rows strided
  const LoraSlot* slots = nullptr;      // by LoraBatch::slots
  const LoraModule* modules = nullptr;  // [num_modules] on the host; their outputs are disjoint
  int32_t num_modules = 0;
  LoraBatch batch;
};

// What bounds the scratch of an op.
struct LoraShape {
  int64_t max_tokens = 0;
  int64_t n = 0, k = 0;
  int32_t max_total_rank = 0;  // of one adapter
  int32_t max_segments = 0;
  DType dtype = DType::kFloat32;  // of x
};

}  // namespace quire
