// A file's bytes as memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace quire {

// Part of a file, mapped: its pages are shared with everyone who maps it, and those that are written become
// this process's own. Movable, not copyable.
//
// A file that is cut off takes its pages along, and who touches one is sent SIGBUS. Here they become zeros,
// and `is_damaged` says so: a handler, installed with the first mapping, sees to faults within mappings of
// this class, and leaves all others to whoever handled the signal before.
class MappedFile {
 public:
  // The file itself is on offer at a multiple of this.
  static constexpr uint64_t kAlignment = 65536;

  MappedFile() = default;
  // `descriptor` may be closed afterwards but for `restore`. Throws ResourceExhausted naming `path` when the
  // kernel refuses, or when there are more than 1024 mappings.
  MappedFile(int descriptor, const std::string& path, uint64_t offset, size_t bytes);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  bool contains(const void* address) const {
    return address >= data_ && address < static_cast<const void*>(data_ + size_);
  }
  // Whether a page of it could not be had. Thread-safe.
  bool is_damaged() const;

  // Lets the pages go, those that were written too; the addresses stay, and are not to be touched.
  void discard();
  // Maps the file there again, as it is now. Throws as the constructor.
  void restore(int descriptor, const std::string& path, uint64_t offset);

 private:
  void map(int descriptor, const std::string& path, uint64_t offset);

  std::byte* data_ = nullptr;
  size_t size_ = 0;
  size_t slot_ = 0;  // of the handler's table
};

}  // namespace quire
