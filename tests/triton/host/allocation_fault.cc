#include "allocation_fault.h"

#include <sys/prctl.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>

namespace quire::triton::host {
namespace {

std::atomic<bool> armed{false};
std::atomic<bool> fired{false};
std::atomic<size_t> smallest{0};
char victim[16];  // written before `armed`

bool is_victim() {
  char name[16] = {};
  prctl(PR_GET_NAME, name);
  return std::strcmp(name, victim) == 0;
}

bool allocation_fails(size_t bytes) {
  if (!armed.load(std::memory_order_acquire) || bytes < smallest || !is_victim() || !armed.exchange(false))
    return false;
  fired = true;
  return true;
}

}  // namespace

void fail_allocation(const char* thread_name, size_t min_bytes) {
  std::strncpy(victim, thread_name, sizeof victim - 1);
  smallest = min_bytes;
  fired = false;
  armed.store(true, std::memory_order_release);
}

bool disarm_allocation_fault() {
  armed = false;
  return fired;
}

}  // namespace quire::triton::host

// What a sanitizer brings for the array and aligned forms stays: they are deleted by its own forms too.
void* operator new(size_t bytes) {
  if (quire::triton::host::allocation_fails(bytes)) throw std::bad_alloc();
  void* memory = std::malloc(bytes > 0 ? bytes : 1);
  if (!memory) throw std::bad_alloc();
  return memory;
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return std::malloc(bytes > 0 ? bytes : 1);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
