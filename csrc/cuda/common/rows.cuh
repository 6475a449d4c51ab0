// A vector times the rows of a matrix, each read once: one token's linears and experts. What is multiplied is
// described once, for the kernels that do it (row_slots.cuh, row_stream.cuh):
//
//   using Element = T               16-bit
//   static constexpr int kRowsOfOutput
//                                   1, or 2: of a gate and of what it is a gate of
//   static constexpr bool kSegmented
//                                   whether there may be more than one segment
//   struct Shared                   shared by a block
//   num_outputs, segments, depth    an output is a sum over segments of so many elements; on the host, too
//   void start(Shared&)             by all threads of a block but those that copy
//   void started(Shared&)           by the same, when all have been there, and before all below; one of the
//                                   two lets the next kernel start
//   const T* weight(shared, o, s, r)
//                                   row r's elements of an output's segment; null: zeros
//   int run(o)                      outputs, from this one on, whose rows lie one behind the other
//   const T* values()               [segments, depth], what rows are multiplied by
//   float scale(shared, s)          of a segment's sum
//   Constants constants(shared, o)  what is added to the sums, which is read early
//   void complete(shared, o, constants)
//                                   where it is there: adds to these what kernels in front have made
//   void finish(shared, o, sums, constants)
//                                   with kRowsOfOutput sums, by one thread
//
// Rows begin at multiples of 16 bytes. A block has an equal stretch of the outputs, and sums are added up in
// an order that depends on the shape and the device alone.
#pragma once

#include "common/row_slots.cuh"
#include "common/row_stream.cuh"

namespace quire::cuda {

template <typename Rows>
void launch_rows(const LaunchContext& ctx, const Rows& rows) {
  if (!launch_row_slots(ctx, rows)) launch_row_stream(ctx, rows);
}

}  // namespace quire::cuda
