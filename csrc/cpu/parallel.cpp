#include "parallel.h"

#include <cstddef>
#include <cstdlib>

namespace quire::cpu {
namespace {

struct Scratch {
  void* data = nullptr;
  size_t bytes = 0;
  ~Scratch() { std::free(data); }
};

}  // namespace

void* thread_scratch(size_t bytes) {
  thread_local Scratch scratch;
  if (bytes > scratch.bytes) {
    std::free(scratch.data);
    scratch.bytes = (bytes + 4095) / 4096 * 4096;
    scratch.data = std::aligned_alloc(4096, scratch.bytes);
    if (scratch.data == nullptr) std::abort();  // ops do not throw; the size is a few hundred KiB
  }
  return scratch.data;
}

}  // namespace quire::cpu
