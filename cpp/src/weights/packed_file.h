// A file of packed weights: the memory of one rank's model, as it is when everything is loaded.
//
// The 8 bytes "QUIREPAK", the length of a JSON header as 8 bytes, little-endian, the header, zeros up to a
// multiple of MappedFile::kAlignment, then the sections, each at a multiple of DeviceArena::kAlignment: what
// an arena handed out, in order, but for what is computed.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "device/device_arena.h"
#include "device/mapped_file.h"
#include "formats/tensor_file.h"

namespace quire {

struct PackedHeader {
  // Of the file's form; a layout's order of values has a name of its own.
  static constexpr int64_t kVersion = 1;

  std::string layout;  // KernelTable::weight_layout of those it is packed for
  std::string dtype;   // that they compute in: "bfloat16"
  int32_t rank = 0;
  int32_t world_size = 1;
  std::string main_dtype;            // of the checkpoint: "BF16"
  std::vector<TensorEntry> tensors;  // of the checkpoint; without places
  std::vector<uint64_t> sections;    // bytes of each
};

// Parses and checks a header against `data_bytes`, what follows it and its padding. Throws InvalidArgument
// that starts with `path`.
PackedHeader parse_packed_header(std::string_view text, uint64_t data_bytes, const std::string& path);

// An open file. Immutable and thread-safe but for what it maps.
class PackedFile {
 public:
  static constexpr const char* kSuffix = ".quire";

  // Throws InvalidArgument naming the file for anything unreadable, truncated or contradictory.
  explicit PackedFile(const std::string& path);
  ~PackedFile();
  PackedFile(const PackedFile&) = delete;
  PackedFile& operator=(const PackedFile&) = delete;

  const std::string& path() const { return path_; }
  const PackedHeader& header() const { return header_; }
  uint64_t data_bytes() const { return data_bytes_; }
  // Where a section begins, from the first one's begin.
  uint64_t begin_of(size_t section) const { return begins_.at(section); }
  // Differs between files that differ, as far as their names, sizes, times and places tell.
  const std::string& stamp() const { return stamp_; }
  // Throws InvalidArgument naming the file when it was written or cut off since it was opened. Allocates
  // nothing when it was not.
  void check_unchanged() const;

  // Copies out.size() bytes of the data. Throws InvalidArgument naming the file when it does not hold them.
  void read(uint64_t begin, std::span<std::byte> out) const;
  // All sections.
  MappedFile map() const;
  void map_again(MappedFile& mapping) const { mapping.restore(fd_, path_, data_at_); }

 private:
  // What tells versions of a file apart.
  struct Identity {
    int64_t bytes, seconds, nanoseconds;
    uint64_t device, inode;
    bool operator==(const Identity&) const = default;
  };
  Identity identity() const;

  std::string path_;
  Identity identity_{};
  std::string stamp_;
  int fd_ = -1;
  uint64_t data_at_ = 0;
  uint64_t data_bytes_ = 0;
  PackedHeader header_;
  std::vector<uint64_t> begins_;
};

// Writes what `sections` hold, which is `header.sections` but for their sizes, which it sets. The file gets
// its name when it is whole. Throws ResourceExhausted naming it when it cannot be written.
void write_packed_file(const std::string& path, PackedHeader header,
                       std::span<const std::span<const std::byte>> sections);

// Throws InvalidArgument naming the file unless its sections are what `arena` handed out and is not computed.
void check_sections(const PackedFile& file, const DeviceArena& arena);

// Hands out the sections of a file, in order, where they are mapped, and memory for what is computed. Throws
// InvalidArgument naming the file when it is asked for other sizes. `discard` and `restore` give back and
// take again what the file holds, whatever was written there. `file` lives as long.
std::unique_ptr<DeviceArena> make_packed_arena(std::shared_ptr<const PackedFile> file);

}  // namespace quire
