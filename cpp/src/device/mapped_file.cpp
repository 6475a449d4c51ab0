#include "device/mapped_file.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <mutex>
#include <utility>

#include "quire/error.h"
#include "util/str.h"

namespace quire {
namespace mapped_files {
namespace {

// What the handler reads, without a lock: a mapping is between begin and end.
struct Slot {
  std::atomic<uintptr_t> begin{0};
  std::atomic<uintptr_t> end{0};
  std::atomic<bool> is_damaged{false};
};

std::array<Slot, 1024> slots;
std::mutex slots_mutex;
struct sigaction previous_action;

// Calls only what a handler may: mmap is a system call, and the rest are atomic words.
bool fill_with_zeros(uintptr_t address) {
  static_assert(std::atomic<uintptr_t>::is_always_lock_free);
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  for (Slot& slot : slots) {
    const uintptr_t end = slot.end.load();
    if (address < slot.begin.load() || address >= end) continue;
    // What follows is gone as well, or will not be used any more.
    void* first = reinterpret_cast<void*>(address / page * page);
    const size_t bytes = end - address / page * page;
    constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE;
    if (::mmap(first, bytes, PROT_READ | PROT_WRITE, kFlags, -1, 0) == MAP_FAILED) return false;
    slot.is_damaged.store(true);
    return true;
  }
  return false;
}

void on_bus_error(int signal, siginfo_t* info, void* context) {
  const int error = errno;
  const bool is_fault = info->si_code == BUS_ADRERR;
  if (is_fault && fill_with_zeros(reinterpret_cast<uintptr_t>(info->si_addr))) {
    errno = error;
    return;
  }
  if ((previous_action.sa_flags & SA_SIGINFO) != 0) {
    previous_action.sa_sigaction(signal, info, context);
  } else if (previous_action.sa_handler == SIG_DFL || previous_action.sa_handler == SIG_IGN) {
    // On return the instruction faults again; what was only sent is sent again.
    ::sigaction(signal, &previous_action, nullptr);
    if (!is_fault) ::raise(signal);
  } else {
    previous_action.sa_handler(signal);
  }
  errno = error;
}

// Called with the mutex held.
void install_handler() {
  static bool is_installed = false;
  if (is_installed) return;
  struct sigaction action{};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  sigemptyset(&action.sa_mask);
  // Known before a fault can come.
  ::sigaction(SIGBUS, nullptr, &previous_action);
  is_installed = ::sigaction(SIGBUS, &action, nullptr) == 0;
}

}  // namespace
}  // namespace mapped_files

MappedFile::MappedFile(int descriptor, const std::string& path, uint64_t offset, size_t bytes)
    : size_(bytes) {
  using namespace mapped_files;
  if (bytes == 0) return;
  const std::lock_guard lock(slots_mutex);
  install_handler();
  const auto free = std::ranges::find_if(slots, [](const Slot& slot) { return slot.end.load() == 0; });
  if (free == slots.end())
    throw ResourceExhausted(str(path, ": cannot be mapped: ", slots.size(), " files are mapped already"));
  map(descriptor, path, offset);
  slot_ = static_cast<size_t>(free - slots.begin());
  free->is_damaged.store(false);
  free->begin.store(reinterpret_cast<uintptr_t>(data_));
  free->end.store(reinterpret_cast<uintptr_t>(data_) + size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)), slot_(other.slot_) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(slot_, other.slot_);
  return *this;
}

MappedFile::~MappedFile() {
  using namespace mapped_files;
  if (data_ == nullptr) return;
  const std::lock_guard lock(slots_mutex);
  slots[slot_].begin.store(0);
  slots[slot_].end.store(0);
  ::munmap(data_, size_);
}

bool MappedFile::is_damaged() const {
  return data_ != nullptr && mapped_files::slots[slot_].is_damaged.load();
}

void MappedFile::discard() {
  if (data_ == nullptr) return;
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE;
  if (::mmap(data_, size_, PROT_NONE, kFlags, -1, 0) == MAP_FAILED)
    throw InternalError(str("cannot let ", size_, " bytes of a mapped file go: ", std::strerror(errno)));
}

void MappedFile::restore(int descriptor, const std::string& path, uint64_t offset) {
  if (data_ == nullptr) return;
  mapped_files::slots[slot_].is_damaged.store(false);
  map(descriptor, path, offset);
}

// Where it was, if it was anywhere.
void MappedFile::map(int descriptor, const std::string& path, uint64_t offset) {
  const int flags = MAP_PRIVATE | MAP_NORESERVE | (data_ != nullptr ? MAP_FIXED : 0);
  void* mapped = ::mmap(data_, size_, PROT_READ | PROT_WRITE, flags, descriptor, static_cast<off_t>(offset));
  if (mapped == MAP_FAILED)
    throw ResourceExhausted(str(path, ": cannot be mapped into memory: ", std::strerror(errno)));
  data_ = static_cast<std::byte*>(mapped);
}

}  // namespace quire
