// AVX-512 with bf16 instructions. Compiled with flags of its own; see kernels.h for what may be included.
#include "isa/simd_avx512.h"

#include "isa/kernels.h"
#include "isa/matmul_table.h"
#include "isa/row_kernels.h"
#include "isa/sampling_kernels.h"

namespace quire::cpu {

constinit const RowKernels kAvx512Rows = row_kernels();
constinit const SamplingKernels kAvx512Sampling = sampling_kernels();
constinit const MatmulKernels kAvx512Matmul = matmul_kernels();

}  // namespace quire::cpu
