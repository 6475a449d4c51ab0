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

#include "formats/tensor_file.h"

namespace quire {

using SafetensorsEntry = TensorEntry;

// Parses and checks a header against `data_bytes`, the number of bytes that follow it: JSON without duplicate
// names, known dtypes, byte ranges that match the shapes and cover the data without holes or overlaps.
// Throws InvalidArgument that starts with `path`. Entries come in file order.
std::vector<SafetensorsEntry> parse_safetensors_header(std::span<const char> header, uint64_t data_bytes,
                                                       const std::string& path);

// An open file. Immutable and thread-safe.
//
// Its tensors have addresses, and `read` takes those: a file that is truncated while it is in use ends `read`
// with an error, but a load from its mapped memory with SIGBUS.
class SafetensorsFile final : public TensorFile {
 public:
  // Throws InvalidArgument naming the file for anything unreadable, truncated or contradictory,
  // ResourceExhausted where the address space has no room for it.
  explicit SafetensorsFile(const std::string& path);
  ~SafetensorsFile() override;
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const std::string& path() const override { return path_; }
  const std::string& stamp() const override { return stamp_; }
  void check_unchanged() const override;
  const std::vector<SafetensorsEntry>& entries() const override { return entries_; }
  // Where the tensor is mapped, valid as long as this object.
  std::span<const std::byte> bytes(const SafetensorsEntry& entry) const override;
  bool contains(const std::byte* address) const override {
    return address >= data_ && address < data_ + data_bytes_;
  }
  // The tensor at an address that the file contains.
  const SafetensorsEntry& entry_at(const std::byte* address) const;
  // Copies out.size() bytes from such an address on. Throws InvalidArgument naming the file when it does not
  // hold them any more, or cannot be read.
  void read(const std::byte* from, std::span<std::byte> out) const override;

 private:
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
