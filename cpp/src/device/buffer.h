// Memory that owns itself.
#pragma once

#include <cstddef>
#include <cstdint>

#include "quire/export.h"

namespace quire QUIRE_MODEL_API {

// What a huge page backs at once: one byte touched costs all of it.
inline constexpr size_t kHugePageBytes = size_t{2} << 20;

enum class HugePages : uint8_t { kWherePossible, kNever };

// Zero-filled host memory from the kernel. Pages that are never touched cost nothing. Movable, not copyable.
class Buffer {
 public:
  Buffer() = default;
  // Throws ResourceExhausted, with the size, when the address space is refused.
  explicit Buffer(size_t bytes, HugePages huge_pages = HugePages::kWherePossible);
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

  // Gives the memory of the whole pages inside [offset, offset + bytes) back to the kernel. The addresses
  // stay; what is read there next is zero, in whole pages, or as it was, at the two edges.
  void discard(size_t offset, size_t bytes);
  // Gives all of it back, the page at its end too: what is read there next is zero.
  void discard();
  // Memory that it really takes now. Slow: asks the kernel about every page.
  size_t resident_bytes() const;

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// Bytes of memory this process may still take: the machine's, or its cgroup's if that is less.
size_t available_host_memory();

}  // namespace quire
