#include "formats/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "formats/file_stamp.h"
#include "formats/json.h"
#include "quire/error.h"
#include "util/str.h"

namespace quire {
namespace {

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the reference reader's limit

uint64_t dtype_bits(const std::string& dtype) {
  static const std::pair<const char*, uint64_t> kBits[] = {
      {"F64", 64}, {"I64", 64}, {"U64", 64},  {"F32", 32},    {"I32", 32},
      {"U32", 32}, {"F16", 16}, {"BF16", 16}, {"I16", 16},    {"U16", 16},
      {"I8", 8},   {"U8", 8},   {"BOOL", 8},  {"F8_E4M3", 8}, {"F8_E5M2", 8}};
  for (const auto& [name, bits] : kBits) {
    if (dtype == name) return bits;
  }
  return 0;
}

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  throw InvalidArgument(str(path, ": ", what));
}

Json parse_header(std::span<const char> header, const std::string& path) {
  const std::string_view text(header.data(), header.size());
  const std::string where = path + ": the header";
  Json json = parse_json(text, where);
  if (!json.is_object()) throw InvalidArgument(where + " is not a JSON object");
  check_unique_members(text, where);
  return json;
}

SafetensorsEntry parse_entry(const std::string& name, const Json& value, const std::string& path) {
  const auto bad = [&](const std::string& what) { fail(path, str("tensor '", name, "': ", what)); };
  if (!value.is_object()) bad("the header entry is not an object");
  const auto dtype = value.find("dtype");
  const auto shape = value.find("shape");
  const auto offsets = value.find("data_offsets");
  SafetensorsEntry entry;
  entry.name = name;
  if (dtype == value.end() || !dtype->is_string()) bad("dtype is missing");
  entry.dtype = dtype->get<std::string>();
  const uint64_t bits = dtype_bits(entry.dtype);
  if (bits == 0) bad(str("dtype '", entry.dtype, "' is unknown"));
  if (shape == value.end() || !shape->is_array()) bad("shape is missing");
  uint64_t numel = 1;
  for (const Json& dimension : *shape) {
    if (!dimension.is_number_unsigned() || dimension.get<uint64_t>() > INT64_MAX) {
      bad(str("shape ", shape->dump(), " holds something other than sizes"));
    }
    entry.shape.push_back(static_cast<int64_t>(dimension.get<uint64_t>()));
    if (__builtin_mul_overflow(numel, dimension.get<uint64_t>(), &numel)) bad("shape overflows");
  }
  uint64_t num_bits = 0;
  if (__builtin_mul_overflow(numel, bits, &num_bits)) bad("shape overflows");
  if (offsets == value.end() || !offsets->is_array() || offsets->size() != 2 ||
      !(*offsets)[0].is_number_unsigned() || !(*offsets)[1].is_number_unsigned()) {
    bad("data_offsets is not a pair of byte positions");
  }
  entry.begin = (*offsets)[0].get<uint64_t>();
  entry.end = (*offsets)[1].get<uint64_t>();
  if (entry.end < entry.begin) bad(str("data_offsets end before they begin: ", offsets->dump()));
  if (entry.end - entry.begin != num_bits / 8) {
    bad(str("data_offsets span ", entry.end - entry.begin, " bytes, but shape ", shape->dump(), " of ",
            entry.dtype, " takes ", num_bits / 8));
  }
  return entry;
}

}  // namespace

std::vector<SafetensorsEntry> parse_safetensors_header(std::span<const char> header, uint64_t data_bytes,
                                                       const std::string& path) {
  const Json json = parse_header(header, path);
  std::vector<SafetensorsEntry> entries;
  for (const auto& [name, value] : json.items()) {
    if (name != "__metadata__") entries.push_back(parse_entry(name, value, path));
  }
  std::sort(entries.begin(), entries.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  uint64_t position = 0;
  for (const SafetensorsEntry& entry : entries) {
    if (entry.begin != position) {
      fail(path, str("tensor '", entry.name, "' begins at byte ", entry.begin, ", expected ", position,
                     ": the data has a hole or tensors overlap"));
    }
    position = entry.end;
  }
  if (position != data_bytes) {
    fail(path, str("the header describes ", position, " bytes of data, the file holds ", data_bytes,
                   position > data_bytes ? ": it is truncated" : ""));
  }
  return entries;
}

SafetensorsFile::SafetensorsFile(const std::string& path) : path_(path) {
  fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a FIFO is no file
  if (fd_ < 0) fail(path, std::strerror(errno));
  try {
    struct stat status{};
    if (::fstat(fd_, &status) != 0 || !S_ISREG(status.st_mode)) fail(path, "is not a file");
    const auto file_bytes = static_cast<size_t>(status.st_size);
    stamp_ = file_stamp(fd_, path);
    if (file_bytes < 8) fail(path, str("has ", file_bytes, " bytes; a safetensors file has at least 8"));
    uint64_t header_bytes = 0;
    read_at(0, std::as_writable_bytes(std::span(&header_bytes, 1)));
    if (header_bytes > std::min<uint64_t>(file_bytes - 8, kMaxHeaderBytes)) {
      fail(path, str("the header claims ", header_bytes, " bytes, the file has ", file_bytes,
                     ": it is truncated or not a safetensors file"));
    }
    std::string header(header_bytes, '\0');
    read_at(8, std::as_writable_bytes(std::span(header)));
    data_bytes_ = file_bytes - 8 - header_bytes;
    entries_ = parse_safetensors_header(header, data_bytes_, path);
    mapped_bytes_ = file_bytes;
    mapped_ = ::mmap(nullptr, mapped_bytes_, PROT_READ, MAP_PRIVATE, fd_, 0);
    if (mapped_ == MAP_FAILED && errno == ENOMEM)
      throw ResourceExhausted(str(path, ": its ", file_bytes, " bytes cannot be mapped into memory"));
    if (mapped_ == MAP_FAILED) fail(path, str("cannot be mapped into memory: ", std::strerror(errno)));
    data_ = static_cast<const std::byte*>(mapped_) + 8 + header_bytes;
  } catch (...) {
    ::close(fd_);
    throw;
  }
  ::posix_fadvise(fd_, 0, 0, POSIX_FADV_SEQUENTIAL);
}

void SafetensorsFile::check_unchanged() const { check_file_stamp(fd_, path_, stamp_); }

SafetensorsFile::~SafetensorsFile() {
  ::munmap(mapped_, mapped_bytes_);
  ::close(fd_);
}

std::span<const std::byte> SafetensorsFile::bytes(const SafetensorsEntry& entry) const {
  return {data_ + entry.begin, static_cast<size_t>(entry.end - entry.begin)};
}

const SafetensorsEntry& SafetensorsFile::entry_at(const std::byte* address) const {
  const auto position = static_cast<uint64_t>(address - data_);
  // The entries cover the data without holes.
  return *std::upper_bound(entries_.begin(), entries_.end(), position,
                           [](uint64_t at, const SafetensorsEntry& entry) { return at < entry.end; });
}

void SafetensorsFile::read(const std::byte* from, std::span<std::byte> out) const {
  read_at(static_cast<uint64_t>(from - static_cast<const std::byte*>(mapped_)), out);
}

void SafetensorsFile::read_at(uint64_t position, std::span<std::byte> out) const {
  while (!out.empty()) {
    const ssize_t count = ::pread(fd_, out.data(), out.size(), static_cast<off_t>(position));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail(path_, str("cannot be read at byte ", position, ": ", std::strerror(errno)));
    if (count == 0) fail(path_, "was truncated while it was read");
    position += static_cast<uint64_t>(count);
    out = out.subspan(static_cast<size_t>(count));
  }
}

}  // namespace quire
