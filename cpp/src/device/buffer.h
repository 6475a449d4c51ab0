// Memory that owns itself.
#pragma once

#include <cstddef>

namespace quire {

// Zero-filled host memory from the kernel, in 2 MiB pages where it can be. Pages that are never touched cost
// nothing. Movable, not copyable.
class Buffer {
 public:
  Buffer() = default;
  // Throws ResourceExhausted, with the size, when the address space is refused.
  explicit Buffer(size_t bytes);
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// Bytes of memory this process may still take: the machine's, or its control group's if that is less.
size_t available_host_memory();

}  // namespace quire
