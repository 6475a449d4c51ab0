// A safetensors file.
//
// The format: an 8-byte little-endian length, a JSON header of that many bytes that gives each tensor's
// dtype, shape and byte range, then the data. (huggingface/safetensors, format description in its README.)
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace quire {

struct SafetensorsEntry {
  std::string name;
  std::string dtype;           // "F32", "BF16", ... as the file writes it
  std::vector<int64_t> shape;  // products do not overflow
  uint64_t begin = 0;          // bytes from the start of the data
  uint64_t end = 0;
};

// Parses and checks a header against `data_bytes`, the number of bytes that follow it: JSON without duplicate
// names, known dtypes, byte ranges that match the shapes and cover the data without holes or overlaps.
// Throws InvalidArgument that starts with `path`. Entries come in file order.
std::vector<SafetensorsEntry> parse_safetensors_header(std::span<const char> header, uint64_t data_bytes,
                                                       const std::string& path);

// An open file. Immutable and thread-safe.
//
// Its tensors have addresses, and `read` takes those: a file that is truncated while it is in use ends `read`
// with an error, but a load from its mapped memory with SIGBUS.
class SafetensorsFile {
 public:
  // Throws InvalidArgument naming the file for anything unreadable, truncated or contradictory.
  explicit SafetensorsFile(const std::string& path);
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const std::string& path() const { return path_; }
  // Differs between files that differ, as far as their names, sizes, times and places tell.
  const std::string& stamp() const { return stamp_; }
  // Throws InvalidArgument naming the file when it was written since it was opened.
  void check_unchanged() const;
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }
  // Where the tensor is mapped, valid as long as this object.
  std::span<const std::byte> bytes(const SafetensorsEntry& entry) const;
  bool contains(const std::byte* address) const { return address >= data_ && address < data_ + data_bytes_; }
  // The tensor at an address that the file contains.
  const SafetensorsEntry& entry_at(const std::byte* address) const;
  // Copies out.size() bytes from such an address on. Throws InvalidArgument naming the file when it does not
  // hold them any more, or cannot be read.
  void read(const std::byte* from, std::span<std::byte> out) const;

 private:
  std::string stamp_now() const;
  void read_at(uint64_t position, std::span<std::byte> out) const;

  std::string path_;
  std::string stamp_;
  int fd_ = -1;
  void* mapped_ = nullptr;
  size_t mapped_bytes_ = 0;
  const std::byte* data_ = nullptr;
  size_t data_bytes_ = 0;
  std::vector<SafetensorsEntry> entries_;
};

}  // namespace quire
