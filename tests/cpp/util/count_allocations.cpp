#include "util/count_allocations.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace quire {
namespace {
std::atomic<uint64_t> count{0};
std::atomic<uint64_t> count_within{0};
std::atomic<size_t> min_bytes_within{SIZE_MAX}, max_bytes_within{0};
}  // namespace

uint64_t num_allocations() { return count; }
uint64_t num_allocations_of(size_t min_bytes, size_t max_bytes) {
  const bool same = min_bytes_within.exchange(min_bytes) == min_bytes;
  if (!(max_bytes_within.exchange(max_bytes) == max_bytes && same)) count_within = 0;
  return count_within;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
bool allocations_are_counted() { return false; }
}  // namespace quire
#else
bool allocations_are_counted() { return true; }
}  // namespace quire

namespace {
void* allocate(size_t bytes, size_t alignment) {
  quire::count.fetch_add(1, std::memory_order_relaxed);
  if (bytes >= quire::min_bytes_within && bytes <= quire::max_bytes_within)
    quire::count_within.fetch_add(1, std::memory_order_relaxed);
  void* memory = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (!memory) throw std::bad_alloc();
  return memory;
}
}  // namespace

// The array and nothrow forms end up here.
void* operator new(size_t bytes) { return allocate(bytes > 0 ? bytes : 1, alignof(std::max_align_t)); }
void* operator new(size_t bytes, std::align_val_t alignment) {
  return allocate(bytes > 0 ? bytes : 1, static_cast<size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
#endif
