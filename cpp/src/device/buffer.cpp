#include "device/buffer.h"

#include <sys/mman.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>
#include <utility>

#include "quire/error.h"
#include "util/str.h"

namespace quire {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

size_t read_number(const char* path) {
  std::ifstream file(path);
  size_t value = 0;
  return file >> value ? value : std::numeric_limits<size_t>::max();  // "max" does not parse: no limit
}

}  // namespace

Buffer::Buffer(size_t bytes) {
  if (bytes == 0) return;
  const bool large = bytes >= kHugePage;
  // Room to start at a huge page's boundary; what lies outside is given back.
  const size_t mapped = large ? bytes + kHugePage : bytes;
  void* start =
      ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED) throw ResourceExhausted(str("cannot allocate ", bytes, " bytes of memory"));
  data_ = static_cast<std::byte*>(start);
  size_ = bytes;
  if (!large) return;
  const auto address = reinterpret_cast<uintptr_t>(start);
  const uintptr_t aligned = (address + kHugePage - 1) / kHugePage * kHugePage;
  if (aligned > address) ::munmap(start, aligned - address);
  const uintptr_t page_end = (aligned + bytes + 4095) / 4096 * 4096;
  if (address + mapped > page_end) ::munmap(reinterpret_cast<void*>(page_end), address + mapped - page_end);
  data_ = reinterpret_cast<std::byte*>(aligned);
  ::madvise(data_, bytes, MADV_HUGEPAGE);  // advice only: fewer page walks when it is taken
}

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

Buffer::~Buffer() {
  if (data_) ::munmap(data_, size_);
}

size_t available_host_memory() {
  size_t available = std::numeric_limits<size_t>::max();
  std::ifstream meminfo("/proc/meminfo");
  for (std::string key; meminfo >> key;) {
    size_t kib = 0;
    if (key == "MemAvailable:" && meminfo >> kib) available = kib << 10;
    meminfo.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  const size_t limit = read_number("/sys/fs/cgroup/memory.max");
  if (limit != std::numeric_limits<size_t>::max()) {
    const size_t used = read_number("/sys/fs/cgroup/memory.current");
    available = std::min(available, used < limit ? limit - used : 0);
  }
  return available;
}

}  // namespace quire
