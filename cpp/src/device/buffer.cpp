#include "device/buffer.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "quire/error.h"
#include "util/check.h"

namespace quire {
namespace {

uintptr_t page_bytes() {
  static const auto bytes = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}
uintptr_t round_up(uintptr_t address, uintptr_t unit) { return (address + unit - 1) / unit * unit; }

size_t read_number(const char* path) {
  std::ifstream file(path);
  size_t value = 0;
  return file >> value ? value : std::numeric_limits<size_t>::max();  // "max" does not parse: no limit
}

}  // namespace

Buffer::Buffer(size_t bytes, HugePages huge_pages) {
  if (bytes == 0) return;
  const bool huge = bytes >= kHugePageBytes && huge_pages == HugePages::kWherePossible;
  // Room to start at a huge page's boundary; what lies outside is given back.
  const size_t mapped = huge ? bytes + kHugePageBytes : bytes;
  void* start =
      ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED) throw ResourceExhausted(str("cannot allocate ", bytes, " bytes of memory"));
  data_ = static_cast<std::byte*>(start);
  size_ = bytes;
  // Huge pages are advice: fewer page walks, or no more memory than is touched.
  if (!huge) {
    if (huge_pages == HugePages::kNever) ::madvise(data_, bytes, MADV_NOHUGEPAGE);
    return;
  }
  const auto address = reinterpret_cast<uintptr_t>(start);
  const uintptr_t aligned = round_up(address, kHugePageBytes);
  if (aligned > address) ::munmap(start, aligned - address);
  const uintptr_t end = round_up(aligned + bytes, page_bytes());
  if (address + mapped > end) ::munmap(reinterpret_cast<void*>(end), address + mapped - end);
  data_ = reinterpret_cast<std::byte*>(aligned);
  ::madvise(data_, bytes, MADV_HUGEPAGE);
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

void Buffer::discard(size_t offset, size_t bytes) {
  QUIRE_CHECK(offset <= size_ && bytes <= size_ - offset, offset, " + ", bytes, " of ", size_);
  const auto address = reinterpret_cast<uintptr_t>(data_) + offset;
  const uintptr_t begin = round_up(address, page_bytes());
  const uintptr_t end = (address + bytes) / page_bytes() * page_bytes();
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

// The mapping is this buffer's alone, up to the end of its last page.
void Buffer::discard() {
  if (data_ != nullptr) ::madvise(data_, round_up(size_, page_bytes()), MADV_DONTNEED);
}

size_t Buffer::resident_bytes() const {
  std::vector<unsigned char> pages((size_ + page_bytes() - 1) / page_bytes());
  if (size_ == 0 || ::mincore(data_, size_, pages.data()) != 0) return 0;
  const auto resident = [](unsigned char page) { return (page & 1) != 0; };
  return static_cast<size_t>(std::count_if(pages.begin(), pages.end(), resident)) * page_bytes();
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
