// How often memory was asked for: by operator new, in any thread of the test program.
#pragma once

#include <cstdint>

namespace quire {

// False under the sanitizers, which bring an operator new of their own: nothing is counted then.
bool allocations_are_counted();

uint64_t num_allocations();

}  // namespace quire
