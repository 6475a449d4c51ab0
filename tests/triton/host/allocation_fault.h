// Out of memory, where and when a test wants it: the program's operator new is replaced.
#pragma once

#include <cstddef>

namespace quire::triton::host {

// The next allocation of at least `min_bytes` on a thread called `thread_name` throws std::bad_alloc. Once.
void fail_allocation(const char* thread_name, size_t min_bytes);
// Takes that back. True when it has happened.
bool disarm_allocation_fault();

}  // namespace quire::triton::host
