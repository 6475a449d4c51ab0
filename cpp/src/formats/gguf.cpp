#include "formats/gguf.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <set>
#include <utility>

#include "formats/file_stamp.h"
#include "quire/error.h"
#include "util/str.h"

namespace quire {
namespace gguf {
namespace {

constexpr uint64_t kMaxStringBytes = 16 << 20;
constexpr uint64_t kMaxKeyBytes = 65535;
constexpr uint64_t kMaxPairs = 1 << 16;
constexpr uint64_t kMaxTensors = 1 << 20;
constexpr uint64_t kMaxElements = 1 << 23;  // of all arrays together
constexpr uint64_t kMaxHeaderBytes = uint64_t{1} << 30;
constexpr int kMaxDepth = 4;
constexpr uint64_t kMaxDimensions = 4;
constexpr size_t kReadBytes = 256 << 10;

enum ValueType : uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64
};

constexpr const char* kTypeNames[] = {"uint8", "int8",   "uint16", "int16",  "uint32", "int32",  "float32",
                                      "bool",  "string", "array",  "uint64", "int64",  "float64"};

const char* other_type_name(uint32_t type) {
  static const std::map<uint32_t, const char*> kNames = {
      {3, "Q4_1"},     {6, "Q5_0"},   {7, "Q5_1"},    {9, "Q8_1"},     {10, "Q2_K"},
      {11, "Q3_K"},    {13, "Q5_K"},  {15, "Q8_K"},   {16, "IQ2_XXS"}, {17, "IQ2_XS"},
      {18, "IQ3_XXS"}, {19, "IQ1_S"}, {20, "IQ4_NL"}, {21, "IQ3_S"},   {22, "IQ2_S"},
      {23, "IQ4_XS"},  {24, "I8"},    {25, "I16"},    {26, "I32"},     {27, "I64"},
      {28, "F64"},     {29, "IQ1_M"}, {34, "TQ1_0"},  {35, "TQ2_0"},   {39, "MXFP4"}};
  const auto found = kNames.find(type);
  return found == kNames.end() ? nullptr : found->second;
}

bool is_read(uint32_t type) {
  constexpr uint32_t kRead[] = {0, 1, 2, 8, 12, 14, 30};
  return std::ranges::find(kRead, type) != std::end(kRead);
}

// Reads forward, a stretch of the file at a time.
class Reader {
 public:
  Reader(const ReadAt& read_at, uint64_t file_bytes, const std::string& path)
      : read_at_(read_at), file_bytes_(std::min(file_bytes, kMaxHeaderBytes)), path_(path) {}

  uint64_t position() const { return buffer_begin_ + used_; }
  uint64_t bytes_left() const { return file_bytes_ - position(); }

  void take(void* out, size_t num_bytes, const std::string& what) {
    if (num_bytes > bytes_left())
      fail(str(what, " ends beyond the file's header: it is truncated, or its metadata has more than ",
               kMaxHeaderBytes, " bytes"));
    auto* to = static_cast<std::byte*>(out);
    while (num_bytes > 0) {
      if (used_ == buffer_.size()) fill();
      const size_t n = std::min(num_bytes, buffer_.size() - used_);
      std::memcpy(to, buffer_.data() + used_, n);
      used_ += n;
      to += n;
      num_bytes -= n;
    }
  }

  template <typename T>
  T number(const std::string& what) {
    T value;
    take(&value, sizeof(value), what);
    return value;
  }

  std::string string(const std::string& what, uint64_t max_bytes) {
    const auto size = number<uint64_t>(what);
    if (size > max_bytes) fail(str(what, " has ", size, " bytes; at most ", max_bytes, " are read"));
    if (size > bytes_left()) fail(str(what, " has ", size, " bytes, the file has ", bytes_left(), " more"));
    std::string text(size, '\0');
    take(text.data(), size, what);
    return text;
  }

  [[noreturn]] void fail(const std::string& what) const { throw InvalidArgument(str(path_, ": ", what)); }

 private:
  void fill() {
    buffer_begin_ += buffer_.size();
    used_ = 0;
    buffer_.resize(std::min<uint64_t>(kReadBytes, file_bytes_ - buffer_begin_));
    read_at_(buffer_begin_, buffer_);
  }

  const ReadAt& read_at_;
  const uint64_t file_bytes_;
  const std::string& path_;
  std::vector<std::byte> buffer_;
  uint64_t buffer_begin_ = 0;
  size_t used_ = 0;
};

uint64_t least_bytes(uint32_t type) {
  switch (type) {
    case kU8:
    case kI8:
    case kBool: return 1;
    case kU16:
    case kI16: return 2;
    case kU32:
    case kI32:
    case kF32: return 4;
    case kArray: return 12;
    default: return 8;
  }
}

struct Limits {
  uint64_t elements_left = kMaxElements;
};

// The double that is written with the fewest digits among those that round to `value`.
double shortest_double(float value) {
  std::array<char, 32> text;
  const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), value);
  double read = value;
  if (error != std::errc() || std::from_chars(text.data(), end, read).ec != std::errc()) return value;
  return static_cast<float>(read) == value ? read : double{value};
}

template <typename T>
int64_t read_int(Reader& reader, const std::string& what) {
  const T value = reader.number<T>(what);
  if (std::cmp_greater(value, INT64_MAX))
    reader.fail(str(what, " holds ", value, "; at most 2^63 - 1 will do"));
  return static_cast<int64_t>(value);
}

bool read_bool(Reader& reader, const std::string& what) {
  const auto byte = reader.number<uint8_t>(what);
  if (byte > 1) reader.fail(str(what, " is a bool of ", int{byte}, "; 0 or 1 is expected"));
  return byte == 1;
}

double read_float32(Reader& reader, const std::string& what) {
  return shortest_double(reader.number<float>(what));
}

GgufValue read_array(Reader& reader, const std::string& what, Limits& limits, int depth) {
  if (depth == kMaxDepth) reader.fail(str(what, " is nested more than ", kMaxDepth, " deep"));
  const auto element = reader.number<uint32_t>(what);
  const auto count = reader.number<uint64_t>(what);
  if (element > kF64) reader.fail(str(what, " is an array of the type ", element, ", which is unknown"));
  if (count > limits.elements_left || count > reader.bytes_left() / least_bytes(element))
    reader.fail(str(what, " has ", count, " elements of ", kTypeNames[element], ", for which the file has ",
                    reader.bytes_left(), " bytes; all arrays may have ", kMaxElements, " elements"));
  limits.elements_left -= count;
  const auto collect = [&](const auto& read_one) -> GgufValue {
    std::vector<decltype(read_one())> values;
    values.reserve(count);
    for (uint64_t i = 0; i < count; ++i) values.push_back(read_one());
    return GgufArray(std::move(values));
  };
  switch (element) {
    case kU8: return collect([&] { return read_int<uint8_t>(reader, what); });
    case kI8: return collect([&] { return read_int<int8_t>(reader, what); });
    case kU16: return collect([&] { return read_int<uint16_t>(reader, what); });
    case kI16: return collect([&] { return read_int<int16_t>(reader, what); });
    case kU32: return collect([&] { return read_int<uint32_t>(reader, what); });
    case kI32: return collect([&] { return read_int<int32_t>(reader, what); });
    case kU64: return collect([&] { return read_int<uint64_t>(reader, what); });
    case kI64: return collect([&] { return read_int<int64_t>(reader, what); });
    case kBool: return collect([&] { return int64_t{read_bool(reader, what)}; });
    case kF32: return collect([&] { return read_float32(reader, what); });
    case kF64: return collect([&] { return reader.number<double>(what); });
    case kString: return collect([&] { return reader.string(what, kMaxStringBytes); });
    default: break;
  }
  for (uint64_t i = 0; i < count; ++i) read_array(reader, what, limits, depth + 1);
  return std::monostate();
}

GgufValue read_value(Reader& reader, uint32_t type, const std::string& what, Limits& limits) {
  switch (type) {
    case kU8: return uint64_t{reader.number<uint8_t>(what)};
    case kI8: return int64_t{reader.number<int8_t>(what)};
    case kU16: return uint64_t{reader.number<uint16_t>(what)};
    case kI16: return int64_t{reader.number<int16_t>(what)};
    case kU32: return uint64_t{reader.number<uint32_t>(what)};
    case kI32: return int64_t{reader.number<int32_t>(what)};
    case kF32: return read_float32(reader, what);
    case kBool: return read_bool(reader, what);
    case kString: return reader.string(what, kMaxStringBytes);
    case kArray: return read_array(reader, what, limits, 0);
    case kU64: return reader.number<uint64_t>(what);
    case kI64: return reader.number<int64_t>(what);
    case kF64: return reader.number<double>(what);
    default: reader.fail(str(what, " has the type ", type, "; 0 (uint8) to 12 (float64) are known"));
  }
}

GgufTensor read_tensor(Reader& reader, uint64_t index) {
  GgufTensor tensor;
  tensor.name = reader.string(str("the name of tensor ", index), kMaxKeyBytes);
  const std::string what = str("tensor '", tensor.name, "'");
  const auto num_dimensions = reader.number<uint32_t>(what);
  if (num_dimensions < 1 || num_dimensions > kMaxDimensions)
    reader.fail(str(what, " has ", num_dimensions, " dimensions; 1 to ", kMaxDimensions, " are expected"));
  uint64_t count = 1;
  for (uint32_t i = 0; i < num_dimensions; ++i) {
    const auto size = reader.number<uint64_t>(what);
    // Room for any type's bytes, so that no product below overflows.
    if (size == 0 || size > INT64_MAX / 64 || __builtin_mul_overflow(count, size, &count) ||
        count > INT64_MAX / 64)
      reader.fail(str(what, " has a dimension of ", size, "; its values cannot be counted"));
    tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(size));
  }
  const auto type = reader.number<uint32_t>(what);
  tensor.position = reader.number<uint64_t>(what);
  if (!is_read(type)) {
    const char* name = other_type_name(type);
    reader.fail(str(what, " has the type ", name != nullptr ? name : str(type),
                    ", which is not read; read are F32, F16, BF16, Q8_0, Q4_0, Q4_K and Q6_K"));
  }
  tensor.type = static_cast<GgmlType>(type);
  const GgmlTypeInfo& info = ggml_type_info(tensor.type);
  if (tensor.shape.back() % info.block_values != 0) {
    reader.fail(str(what, " has rows of ", tensor.shape.back(), " values; blocks of ", info.name, " have ",
                    info.block_values));
  }
  tensor.num_bytes =
      count / static_cast<uint64_t>(info.block_values) * static_cast<uint64_t>(info.block_bytes);
  return tensor;
}

// Positions become those in the file.
void place_tensors(GgufHeader& header, uint64_t data_begin, uint64_t alignment, uint64_t file_bytes) {
  for (GgufTensor& tensor : header.tensors) {
    const std::string what = str("tensor '", tensor.name, "'");
    if (tensor.position % alignment != 0)
      header.fail(str(what, " begins at ", tensor.position, " of the data, no multiple of ", alignment));
    if (data_begin > file_bytes || tensor.position > file_bytes - data_begin ||
        tensor.num_bytes > file_bytes - data_begin - tensor.position)
      header.fail(str(what, " has ", tensor.num_bytes, " bytes at ", tensor.position,
                      " of the data, the file has ", file_bytes - std::min(file_bytes, data_begin),
                      " bytes of data: it is truncated"));
    tensor.position += data_begin;
  }
  std::ranges::sort(header.tensors, {}, &GgufTensor::position);
  for (size_t i = 1; i < header.tensors.size(); ++i) {
    const GgufTensor& before = header.tensors[i - 1];
    if (before.position + before.num_bytes > header.tensors[i].position)
      header.fail(str("tensors '", before.name, "' and '", header.tensors[i].name, "' overlap"));
  }
}

}  // namespace
}  // namespace gguf

GgufHeader parse_gguf(const ReadAt& read_at, uint64_t file_bytes, const std::string& path) {
  using namespace gguf;
  static_assert(std::endian::native == std::endian::little);
  GgufHeader header;
  header.path = path;
  Reader reader(read_at, file_bytes, path);
  char magic[4];
  reader.take(magic, sizeof(magic), "the first word");
  if (std::string_view(magic, 4) != "GGUF") reader.fail("is no GGUF file: it does not begin with 'GGUF'");
  const auto version = reader.number<uint32_t>("the version");
  if (version != 2 && version != 3) {
    const bool swapped = __builtin_bswap32(version) == 2 || __builtin_bswap32(version) == 3;
    reader.fail(swapped ? std::string("is big-endian; little-endian files are read")
                        : str("has version ", version, "; versions 2 and 3 are read"));
  }
  const auto num_tensors = reader.number<uint64_t>("the number of tensors");
  const auto num_pairs = reader.number<uint64_t>("the number of keys");
  if (num_tensors > kMaxTensors || num_tensors > reader.bytes_left() / 32)
    reader.fail(str("claims ", num_tensors, " tensors, and has ", reader.bytes_left(), " more bytes"));
  if (num_pairs > kMaxPairs || num_pairs > reader.bytes_left() / 13)
    reader.fail(str("claims ", num_pairs, " keys, and has ", reader.bytes_left(), " more bytes"));
  Limits limits;
  for (uint64_t i = 0; i < num_pairs; ++i) {
    std::string key = reader.string(str("key ", i), kMaxKeyBytes);
    const std::string what = str("'", key, "'");
    const auto type = reader.number<uint32_t>(what);
    GgufValue value = read_value(reader, type, what, limits);
    if (!header.metadata.emplace(std::move(key), std::move(value)).second)
      reader.fail(str("key ", what, " is there twice"));
  }
  const uint64_t alignment = header.has("general.alignment")
                                 ? static_cast<uint64_t>(header.get_int("general.alignment", 1, 1 << 20))
                                 : 32;
  if (!std::has_single_bit(alignment))
    header.fail(str("'general.alignment' must be a power of two, got ", alignment));
  std::set<std::string> names;
  for (uint64_t i = 0; i < num_tensors; ++i) {
    header.tensors.push_back(read_tensor(reader, i));
    if (!names.insert(header.tensors.back().name).second)
      header.fail(str("tensor '", header.tensors.back().name, "' is there twice"));
  }
  const uint64_t data_begin = (reader.position() + alignment - 1) / alignment * alignment;
  place_tensors(header, data_begin, alignment, file_bytes);
  return header;
}

GgufFile::GgufFile(const std::string& path) : path_(path) {
  const auto fail = [&](const std::string& what) { throw InvalidArgument(str(path, ": ", what)); };
  fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a FIFO is no file
  if (fd_ < 0) fail(std::strerror(errno));
  try {
    struct stat status{};
    if (::fstat(fd_, &status) != 0 || !S_ISREG(status.st_mode)) fail("is not a file");
    stamp_ = file_stamp(fd_, path);
    header_ = parse_gguf([this](uint64_t position, std::span<std::byte> out) { read_at(position, out); },
                         static_cast<uint64_t>(status.st_size), path);
  } catch (...) {
    ::close(fd_);
    throw;
  }
}

void GgufFile::check_unchanged() const { check_file_stamp(fd_, path_, stamp_); }

GgufFile::~GgufFile() { ::close(fd_); }

void GgufFile::read_at(uint64_t position, std::span<std::byte> out) const {
  while (!out.empty()) {
    const ssize_t count = ::pread(fd_, out.data(), out.size(), static_cast<off_t>(position));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0)
      throw InvalidArgument(str(path_, ": cannot be read at byte ", position, ": ", std::strerror(errno)));
    if (count == 0) throw InvalidArgument(path_ + ": was truncated while it was read");
    position += static_cast<uint64_t>(count);
    out = out.subspan(static_cast<size_t>(count));
  }
}

namespace gguf {
namespace {

constexpr size_t kPartBytes = 20;  // "-00001-of-00003.gguf"

// The place of a part and the number of parts that a name tells; zeros for another name.

}  // namespace
}  // namespace gguf

bool is_gguf_path(const std::string& path) {
  std::error_code error;
  return path.ends_with(".gguf") && !std::filesystem::is_directory(path, error);
}

std::pair<int, int> gguf_part_of(std::string_view name) {
  if (name.size() < gguf::kPartBytes) return {0, 0};
  name.remove_prefix(name.size() - gguf::kPartBytes);
  if (name[0] != '-' || name.substr(6, 4) != "-of-" || !name.ends_with(".gguf")) return {0, 0};
  const auto number = [](std::string_view digits) {
    int value = 0;
    for (const char c : digits) {
      if (c < '0' || c > '9') return -1;
      value = value * 10 + (c - '0');
    }
    return value;
  };
  const int part = number(name.substr(1, 5)), count = number(name.substr(10, 5));
  if (part < 0 || count <= 0) return {0, 0};
  return {part, count};
}

std::string find_gguf(const std::string& directory) {
  const std::filesystem::path root(directory);
  std::error_code error;
  for (const char* name : {"model.safetensors", "model.safetensors.index.json"})
    if (std::filesystem::exists(root / name, error)) return "";
  std::string found;
  for (const auto& entry : std::filesystem::directory_iterator(root, error)) {
    const std::string path = entry.path().string();
    if (!is_gguf_path(path) || gguf_part_of(path).first > 1) continue;
    if (!found.empty()) return "";
    found = path;
  }
  return found;
}

std::vector<std::string> gguf_parts(const std::string& path) {
  const auto [part, count] = gguf_part_of(path);
  if (count == 0) return {path};
  if (part != 1) throw InvalidArgument(str(path, ": is part ", part, " of ", count, "; give the first one"));
  std::vector<std::string> parts;
  for (int i = 1; i <= count; ++i) {
    char name[64];
    std::snprintf(name, sizeof(name), "-%05d-of-%05d.gguf", i, count);
    parts.push_back(path.substr(0, path.size() - gguf::kPartBytes) + name);
  }
  return parts;
}

}  // namespace quire
