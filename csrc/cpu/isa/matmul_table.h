// The matmuls on vectors as a table. Include after one simd_*.h.
#pragma once

#include "isa/attention_kernels.h"
#include "isa/matmul_kernels.h"

namespace quire::cpu {
namespace {

constexpr MatmulKernels matmul_kernels() {
  return {.release = nullptr,
          .staged_bytes = {staged_bytes<float>, staged_bytes<bf16>},
          .stage = {stage_rows<float>, stage_rows<bf16>},
          .linear_scratch_bytes = {no_scratch, no_scratch},
          .linear = {linear<float>, linear<bf16>},
          .staged_element_bytes = {sizeof(float), sizeof(Staged)},
          .stage_query = {stage_query<float>, stage_query<bf16>},
          .scores = {scores<float>, scores<bf16>},
          .softmax = {softmax_row<float>, softmax_row<Staged>},
          .values = {values<float>, values<bf16>},
          .fold = fold,
          .finish = {finish<float>, finish<bf16>}};
}

}  // namespace
}  // namespace quire::cpu
