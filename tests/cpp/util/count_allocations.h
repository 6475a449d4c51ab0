// How often memory was asked for: by operator new, in any thread of the test program.
#pragma once

#include <cstddef>
#include <cstdint>

namespace quire {

// False under the sanitizers, which bring an operator new of their own: nothing is counted then.
bool allocations_are_counted();

uint64_t num_allocations();
// Allocations of `min_bytes` to `max_bytes` since this was last called with other bounds.
uint64_t num_allocations_of(size_t min_bytes, size_t max_bytes);

}  // namespace quire
