// Preloaded into a server: when the file named by QUIRE_FAIL_WHEN exists, it is removed, and an allocation of
// at least QUIRE_FAIL_BYTES on an engine core's thread fails, as in a process out of memory. Production code
// has no such switch.
#include <pthread.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <new>

namespace {

bool must_fail(std::size_t size) {
  static const char* const file = std::getenv("QUIRE_FAIL_WHEN");
  static const char* const bytes = std::getenv("QUIRE_FAIL_BYTES");
  static const std::size_t least = bytes ? std::strtoul(bytes, nullptr, 10) : 0;
  char name[16] = "";
  if (!file || size < least || pthread_getname_np(pthread_self(), name, sizeof name) != 0) return false;
  return std::strcmp(name, "quire-core") == 0 && unlink(file) == 0;
}

}  // namespace

void* operator new(std::size_t size) {
  void* memory = must_fail(size) ? nullptr : std::malloc(size ? size : 1);
  if (!memory) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
