#include "pinned_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace quire {
namespace {

constexpr size_t kHugePageBytes = size_t{2} << 20;

// What was mapped here, and from where; all else is cudaHostAlloc's.
std::mutex mutex;
std::map<void*, size_t>& sizes() {
  static auto* const kSizes = new std::map<void*, size_t>;  // outlives whoever releases memory at the end
  return *kSizes;
}

// Makes the system clear the pages, which takes longer than all else that is done to them: on a few threads,
// where there are some to share. Where no thread is to be had, registering them does it.
void touch_pages(std::byte* begin, size_t bytes) {
  constexpr size_t kMaxThreads = 8;
  const size_t num_threads = std::min(kMaxThreads, bytes / kHugePageBytes);
  if (num_threads < 2) return;
  std::vector<std::thread> threads;
  try {
    for (size_t i = 0; i < num_threads; ++i) {
      threads.emplace_back([=] {
        for (size_t at = i * kHugePageBytes; at < bytes; at += num_threads * kHugePageBytes)
          *static_cast<volatile std::byte*>(begin + at) = std::byte{0};
      });
    }
  } catch (const std::system_error&) {  // too many threads
  }
  for (std::thread& thread : threads) thread.join();
}

// Null where the system has none.
void* map_huge_pages(size_t bytes) {
  void* const mapped =
      ::mmap(nullptr, bytes + kHugePageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  auto* const begin = static_cast<std::byte*>(mapped);
  const size_t before =
      (kHugePageBytes - reinterpret_cast<uintptr_t>(mapped) % kHugePageBytes) % kHugePageBytes;
  if (before > 0) ::munmap(begin, before);
  if (before < kHugePageBytes) ::munmap(begin + before + bytes, kHugePageBytes - before);
  ::madvise(begin + before, bytes, MADV_HUGEPAGE);
  ::madvise(begin + before, bytes, MADV_DONTFORK);
  touch_pages(begin + before, bytes);
  return begin + before;
}

}  // namespace

cudaError_t allocate_pinned(void** data, size_t bytes) {
  if (bytes < kHugePageBytes || bytes > SIZE_MAX / 2)
    return cudaHostAlloc(data, bytes, cudaHostAllocPortable);
  const size_t mapped_bytes = (bytes + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  if (void* const mapped = map_huge_pages(mapped_bytes)) {
    void* on_device = nullptr;
    const bool is_registered =
        cudaHostRegister(mapped, mapped_bytes, cudaHostRegisterPortable | cudaHostRegisterMapped) ==
        cudaSuccess;
    if (is_registered && cudaHostGetDevicePointer(&on_device, mapped, 0) == cudaSuccess &&
        on_device == mapped) {
      const std::lock_guard lock(mutex);
      sizes()[mapped] = mapped_bytes;
      *data = mapped;
      return cudaSuccess;
    }
    if (is_registered) cudaHostUnregister(mapped);
    cudaGetLastError();
    ::munmap(mapped, mapped_bytes);
  }
  return cudaHostAlloc(data, bytes, cudaHostAllocPortable);
}

cudaError_t release_pinned(void* data) {
  size_t bytes = 0;
  {
    const std::lock_guard lock(mutex);
    if (const auto found = sizes().find(data); found != sizes().end()) {
      bytes = found->second;
      sizes().erase(found);
    }
  }
  if (bytes == 0) return cudaFreeHost(data);
  const cudaError_t error = cudaHostUnregister(data);
  ::munmap(data, bytes);
  return error;
}

}  // namespace quire
