#include "formats/reserved_addresses.h"

#include <sys/mman.h>

#include <utility>

#include "quire/error.h"
#include "util/str.h"

namespace quire {

ReservedAddresses::ReservedAddresses(size_t count, const std::string& owner) {
  if (count == 0) return;
  void* reserved = ::mmap(nullptr, count, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED)
    throw ResourceExhausted(str(owner, ": no room for ", count, " bytes of addresses"));
  begin_ = static_cast<const std::byte*>(reserved);
  count_ = count;
}

ReservedAddresses::~ReservedAddresses() {
  if (begin_ != nullptr) ::munmap(const_cast<std::byte*>(begin_), count_);
}

ReservedAddresses::ReservedAddresses(ReservedAddresses&& other) noexcept
    : begin_(std::exchange(other.begin_, nullptr)), count_(std::exchange(other.count_, 0)) {}

ReservedAddresses& ReservedAddresses::operator=(ReservedAddresses&& other) noexcept {
  std::swap(begin_, other.begin_);
  std::swap(count_, other.count_);
  return *this;
}

}  // namespace quire
