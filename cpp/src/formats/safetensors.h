// A safetensors file, read in place.
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

// Maps the file; the tensors' bytes stay valid as long as this object. Immutable and thread-safe. A file that
// is truncated while mapped raises SIGBUS on access: do not overwrite a model in place while it loads.
class SafetensorsFile {
 public:
  // Throws InvalidArgument naming the file for anything unreadable, truncated or contradictory.
  explicit SafetensorsFile(const std::string& path);
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const std::string& path() const { return path_; }
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }
  std::span<const std::byte> bytes(const SafetensorsEntry& entry) const;
  // The pages of this entry are not needed again: the kernel may drop them.
  void done_with(const SafetensorsEntry& entry) const;

 private:
  std::string path_;
  void* mapped_ = nullptr;
  size_t mapped_bytes_ = 0;
  const std::byte* data_ = nullptr;
  std::vector<SafetensorsEntry> entries_;
};

}  // namespace quire
