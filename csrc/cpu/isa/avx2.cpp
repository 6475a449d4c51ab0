// AVX2 with FMA. Compiled with flags of its own; see kernels.h for what may be included.
#include "isa/simd_avx2.h"

#include "isa/kernels.h"
#include "isa/matmul_table.h"
#include "isa/row_kernels.h"
#include "isa/sampling_kernels.h"

namespace quire::cpu {

constinit const RowKernels kAvx2Rows = row_kernels();
constinit const SamplingKernels kAvx2Sampling = sampling_kernels();
constinit const MatmulKernels kAvx2Matmul = matmul_kernels();

}  // namespace quire::cpu
