// The baseline: runs on any machine the program was compiled for.
#include "isa/simd_generic.h"

#include "isa/kernels.h"
#include "isa/matmul_table.h"
#include "isa/row_kernels.h"
#include "isa/sampling_kernels.h"

namespace quire::cpu {

constinit const RowKernels kGenericRows = row_kernels();
constinit const SamplingKernels kGenericSampling = sampling_kernels();
constinit const MatmulKernels kGenericMatmul = matmul_kernels();

}  // namespace quire::cpu
