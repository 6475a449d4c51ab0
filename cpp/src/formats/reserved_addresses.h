// Addresses that no memory is behind.
#pragma once

#include <cstddef>
#include <string>

namespace quire {

// Tensors that only `TensorFile::read` gives have these, so that views can name parts of them.
class ReservedAddresses {
 public:
  ReservedAddresses() = default;
  // Throws ResourceExhausted, naming `owner`, when the process has no room for them.
  ReservedAddresses(size_t count, const std::string& owner);
  ~ReservedAddresses();
  ReservedAddresses(ReservedAddresses&& other) noexcept;
  ReservedAddresses& operator=(ReservedAddresses&& other) noexcept;

  const std::byte* begin() const { return begin_; }
  bool contains(const std::byte* address) const { return address >= begin_ && address < begin_ + count_; }

 private:
  const std::byte* begin_ = nullptr;
  size_t count_ = 0;
};

}  // namespace quire
