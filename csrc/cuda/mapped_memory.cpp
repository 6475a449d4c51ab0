// Device memory that comes and goes behind addresses that stay.
#include "mapped_memory.h"

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "common/driver.h"

namespace quire {
namespace {

struct Driver {
  decltype(&cuMemAddressReserve) reserve = nullptr;
  decltype(&cuMemAddressFree) free_addresses = nullptr;
  decltype(&cuMemCreate) create = nullptr;
  decltype(&cuMemRelease) release = nullptr;
  decltype(&cuMemMap) map = nullptr;
  decltype(&cuMemUnmap) unmap = nullptr;
  decltype(&cuMemSetAccess) set_access = nullptr;
  decltype(&cuMemGetAllocationGranularity) granularity = nullptr;
  decltype(&cuDeviceGetAttribute) attribute = nullptr;
  bool complete = true;

  Driver() {
    find("cuMemAddressReserve", &reserve);
    find("cuMemAddressFree", &free_addresses);
    find("cuMemCreate", &create);
    find("cuMemRelease", &release);
    find("cuMemMap", &map);
    find("cuMemUnmap", &unmap);
    find("cuMemSetAccess", &set_access);
    find("cuMemGetAllocationGranularity", &granularity);
    find("cuDeviceGetAttribute", &attribute);
  }

 private:
  template <typename Function>
  void find(const char* name, Function* function) {
    void* address = cuda::find_driver_function(name);
    complete = complete && address != nullptr;
    *function = reinterpret_cast<Function>(address);
  }
};

const Driver& driver() {
  static const Driver kDriver;
  return kDriver;
}

struct MappedMemory {
  CUdeviceptr address = 0;
  size_t bytes = 0;  // whole pages
  int device = 0;
  bool is_mapped = false;
  bool is_plain = false;  // cudaMalloc's, which cannot be unmapped
};

CUmemAllocationProp properties_of(int device) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device;
  return properties;
}

// The runtime's codes are the driver's.
int code(cudaError_t error) {
  if (error != cudaSuccess) cudaGetLastError();
  return error;
}

int give_back(MappedMemory* memory) {
  int error = 0;
  if (memory->is_plain) {
    error = code(cudaFree(reinterpret_cast<void*>(memory->address)));
  } else if (memory->address != 0) {
    if (memory->is_mapped) error = driver().unmap(memory->address, memory->bytes);
    const int other = driver().free_addresses(memory->address, memory->bytes);
    if (error == 0) error = other;
  }
  delete memory;
  return error;
}

}  // namespace

int map_memory(void* handle) {
  auto* memory = static_cast<MappedMemory*>(handle);
  if (memory->is_mapped) return 0;
  const CUmemAllocationProp properties = properties_of(memory->device);
  CUmemGenericAllocationHandle pages = 0;
  if (const int error = driver().create(&pages, memory->bytes, &properties, 0)) return error;
  int error = driver().map(memory->address, memory->bytes, 0, pages, 0);
  driver().release(pages);  // the mapping keeps them
  if (error != 0) return error;
  CUmemAccessDesc access{};
  access.location = properties.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  error = driver().set_access(memory->address, memory->bytes, &access, 1);
  if (error != 0) {
    driver().unmap(memory->address, memory->bytes);
    return error;
  }
  memory->is_mapped = true;
  return 0;
}

int unmap_memory(void* handle) {
  auto* memory = static_cast<MappedMemory*>(handle);
  if (memory->is_plain) return cudaErrorNotSupported;
  if (!memory->is_mapped) return 0;
  const int error = driver().unmap(memory->address, memory->bytes);
  memory->is_mapped = error != 0;
  return error;
}

int release_mapped(void* handle) { return give_back(static_cast<MappedMemory*>(handle)); }

int allocate_mapped(void** handle, void** data, size_t bytes) {
  int device = 0;
  if (const int error = code(cudaGetDevice(&device))) return error;
  auto* memory = new MappedMemory;
  memory->device = device;
  int supported = 0;
  if (driver().complete)
    driver().attribute(&supported, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device);
  int error = 0;
  if (supported == 0) {
    void* plain = nullptr;
    error = code(cudaMalloc(&plain, bytes));
    memory->address = reinterpret_cast<CUdeviceptr>(plain);
    memory->is_plain = memory->is_mapped = error == 0;
  } else {
    const CUmemAllocationProp properties = properties_of(device);
    size_t page = 0;
    error = driver().granularity(&page, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
    if (error == 0) {
      memory->bytes = (bytes + page - 1) / page * page;
      error = driver().reserve(&memory->address, memory->bytes, 0, 0, 0);
    }
    if (error == 0) error = map_memory(memory);
  }
  if (error != 0) {
    give_back(memory);
    return error;
  }
  *handle = memory;
  *data = reinterpret_cast<void*>(memory->address);
  return 0;
}

}  // namespace quire
