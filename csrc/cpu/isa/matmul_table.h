// The matmuls on vectors as a table. Include after one simd_*.h.
#pragma once

#include "isa/attention_kernels.h"
#include "isa/matmul_kernels.h"

namespace quire::cpu {
namespace {

constexpr MatmulKernels matmul_kernels() {
  return {.release = nullptr,
          .linear = {{staged_bytes<float>, stage_rows<float>, no_scratch, linear<float>},
                     {staged_bytes<bf16>, stage_rows<bf16>, no_scratch, linear<bf16>},
                     {staged_bytes<float>, stage_rows<float>, unpacked_bytes<float>, linear_int8<float>},
                     {staged_bytes<bf16>, stage_rows<bf16>, unpacked_bytes<bf16>, linear_int8<bf16>}},
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
