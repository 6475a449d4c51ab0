// What adapters add, of rows that are collected first: each of the two products of all adapters is one go.
#pragma once

#include <algorithm>
#include <cstdint>

#include "grouped_linear.h"
#include "ops.h"

namespace quire::cpu {

// Rows of one adapter.
struct LoraRun {
  const LoraSlot* slot;
  int64_t offset_bytes;  // of their expert's matrices behind the slot's; of a linear 0
  const int32_t* rows;   // [num_rows] of x and of the output
  int64_t num_rows;
};

// A linear, or one product of all experts, as LoraArgs has it.
struct LoraProduct {
  TensorView out, x;
  const LoraModule* modules;  // [num_modules]
  int32_t num_modules;
};

// What bounds the memory of rows that are multiplied at once.
struct LoraBounds {
  int64_t blocks;  // of staged rows: a run begins one
  int64_t k;
  int32_t total_rank;
  DType dtype;
};

// Bounds of `rows` rows in up to `runs` runs. More than some are cut: no row knows of others.
LoraBounds lora_bounds(int64_t rows, int64_t runs, int64_t k, int32_t total_rank, DType dtype);

class LoraProducts {
 public:
  // The memory of whatever is within `bounds` is taken from `memory`.
  LoraProducts(const Isa& isa, Workspace& memory, const LoraBounds& bounds);

  // Of an adapter that has something for the product, and no more of a rank than the bounds; multiplies when
  // there is no room for all of it.
  void add(const LaunchContext& ctx, const LoraProduct& product, LoraRun run);
  // What was added and waits.
  void multiply(const LaunchContext& ctx, const LoraProduct& product);

 private:
  struct Piece {
    LoraRun run;
    std::byte* h;  // [num_rows, total rank] what `a` made of them
  };
  int64_t list_shrinking(const LoraProduct& product) const;
  int64_t list_expanding(const LoraProduct& product) const;

  const Isa& isa_;
  LoraBounds bounds_;
  Piece* pieces_;         // [blocks]
  LinearArgs* products_;  // [blocks * kMaxLoraModules]
  std::byte* h_;          // of all pieces
  std::byte* staged_;     // inputs of the products with `a`, then of those with `b`
  int64_t num_pieces_ = 0;
  int64_t blocks_left_;
  std::byte* next_h_;
};

}  // namespace quire::cpu
