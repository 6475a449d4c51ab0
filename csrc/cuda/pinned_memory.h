// Host memory that a device reads and writes at its own address.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

namespace quire {

// From a huge page on it is ordinary memory of huge pages, which are pinned in a fraction of the time that
// cudaHostAlloc takes for as many bytes: it finds, zeroes and pins pages of 4 KiB. Thread-safe. A child that
// is forked does not have it. Contents are unspecified.
cudaError_t allocate_pinned(void** data, size_t bytes);
cudaError_t release_pinned(void* data);

}  // namespace quire
