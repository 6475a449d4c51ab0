// Kernels that start before the one in front of them has ended (programmatic dependent launch, compute
// capability 9.0 and later): their blocks are there, and what they read of weights is on its way, when its
// results are. Between short kernels that is most of the time.
//
// A kernel that is launched so calls wait_for_inputs in front of all reads and writes of memory but reads of
// what does not change within a step: nothing else keeps it from running beside those before it. That is
// weights, and what the kernels write that prepare a step's inputs and plan its attention. These are launched
// otherwise, let nothing start early and end with a fence; who reads ahead what they wrote passes by the L1
// cache. Where not each thread waits, others wait in shared memory for one that does, and a block ends after
// it. Who has waited has waited for all that came before, as each of them waited too.
#pragma once

#include <utility>

#include "common/launch.h"

namespace quire::cuda {

// Until the kernels in front have ended and what they wrote is visible.
__device__ __forceinline__ void wait_for_inputs() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

// Permits the next kernel's blocks to start once every block of this one has called it or has ended. They
// find a place where there is room beside this one's.
__device__ __forceinline__ void let_next_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

// Of a launch.
struct Grid {
  Grid(unsigned blocks) : blocks(blocks) {}  // NOLINT: as dim3
  Grid(dim3 blocks) : blocks(blocks) {}      // NOLINT
  Grid(unsigned blocks, unsigned cluster_blocks) : blocks(blocks), cluster_blocks(cluster_blocks) {}
  dim3 blocks;
  unsigned cluster_blocks = 1;  // more only where has_clusters()
};

template <typename... Params, typename... Args>
void launch_dependent(const LaunchContext& ctx, void (*kernel)(Params...), Grid grid, unsigned threads,
                      size_t shared_bytes, Args&&... args) {
  cudaLaunchAttribute attributes[2]{};
  unsigned num_attributes = 0;
  if (launches_overlap() && !ctx.waits_for_all) {
    cudaLaunchAttribute& attribute = attributes[num_attributes++];
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
  }
  if (grid.cluster_blocks > 1) {
    cudaLaunchAttribute& attribute = attributes[num_attributes++];
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {grid.cluster_blocks, 1, 1};
  }
  cudaLaunchConfig_t config{};
  config.gridDim = grid.blocks;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream_of(ctx);
  config.attrs = attributes;
  config.numAttrs = num_attributes;
  // What goes wrong is found by the check after the launch.
  cudaLaunchKernelEx(&config, kernel, static_cast<Params>(std::forward<Args>(args))...);
}

}  // namespace quire::cuda
