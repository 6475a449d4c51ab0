#pragma once

#include <cstddef>

namespace quire {

// DeviceRuntime's functions of these names, for the device selected on this thread.
int allocate_mapped(void** memory, void** data, size_t bytes);
int unmap_memory(void* memory);
int map_memory(void* memory);
int release_mapped(void* memory);

}  // namespace quire
