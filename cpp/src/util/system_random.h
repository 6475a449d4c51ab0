// Bytes from the operating system that nobody can guess.
#pragma once

#include <cstddef>
#include <span>

namespace quire {

// Fills `out`. Thread-safe; throws InternalError when the system refuses.
void fill_from_system(std::span<std::byte> out);

}  // namespace quire
