#include "util/count_allocations.h"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace quire {
namespace {
std::atomic<uint64_t> count{0};
}  // namespace

uint64_t num_allocations() { return count; }

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
bool allocations_are_counted() { return false; }
}  // namespace quire
#else
bool allocations_are_counted() { return true; }
}  // namespace quire

namespace {
void* allocate(size_t bytes, size_t alignment) {
  quire::count.fetch_add(1, std::memory_order_relaxed);
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
