// What the thread sanitizer is told of loops over the values of tensors: looking at each value takes it many
// times as long as the loop. It does not look into a function that is QUIRE_RANGES_TOLD; whoever calls one
// says at once what is read and written there, so that no race is missed. Nothing in other builds.
#pragma once

#include <cstddef>

#if defined(__SANITIZE_THREAD__)
#define QUIRE_RANGES_TOLD [[gnu::no_sanitize("thread")]]
// By names of ours: compilers know the runtime's by themselves, and not all with these types.
extern "C" void quire_tsan_read_range(void* begin, std::size_t bytes) __asm__("__tsan_read_range");
extern "C" void quire_tsan_write_range(void* begin, std::size_t bytes) __asm__("__tsan_write_range");
#else
#define QUIRE_RANGES_TOLD
#endif

namespace quire {

inline void sanitizer_reads([[maybe_unused]] const void* begin, [[maybe_unused]] std::size_t bytes) {
#if defined(__SANITIZE_THREAD__)
  quire_tsan_read_range(const_cast<void*>(begin), bytes);
#endif
}
inline void sanitizer_writes([[maybe_unused]] void* begin, [[maybe_unused]] std::size_t bytes) {
#if defined(__SANITIZE_THREAD__)
  quire_tsan_write_range(begin, bytes);
#endif
}

}  // namespace quire
