// What DeviceRuntime's graphs are.
#pragma once

#include <cuda_runtime.h>

namespace quire::cuda {

struct CapturedGraph {
  cudaGraph_t graph = nullptr;  // its nodes are how kernels of the executable one are named
  cudaGraphExec_t executable = nullptr;
};

// Puts kernels in the place of what fills a little memory. With memsets in it a graph takes the host several
// times as long to launch, and the device waits for some microseconds at each.
cudaError_t fill_by_kernels(cudaGraph_t graph);

}  // namespace quire::cuda
