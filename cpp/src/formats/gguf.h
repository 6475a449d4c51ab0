// A GGUF file: its metadata, and where its tensors lie.
//
// The format (ggml-org/ggml, docs/gguf.md): "GGUF", a version, two counts, pairs of key and typed value, a
// description of each tensor, and from the next multiple of general.alignment on the data. Versions 2 and 3,
// little-endian.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace quire {

// Types of tensors that are read, under ggml's numbers.
enum class GgmlType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ8_0 = 8,
  kQ4_K = 12,
  kQ6_K = 14,
  kBF16 = 30
};

struct GgmlTypeInfo {
  GgmlType type;
  const char* name;
  int64_t block_values;
  int64_t block_bytes;
};
const GgmlTypeInfo& ggml_type_info(GgmlType type);

// Values of `num_blocks` blocks as fp32, bit for bit what the Python package gguf makes of them. `blocks` may
// lie anywhere; `out` holds num_blocks * block_values floats. Not for kF32, kF16 and kBF16.
void dequantize_blocks(GgmlType type, const std::byte* blocks, int64_t num_blocks, float* out);

using GgufArray = std::variant<std::vector<int64_t>, std::vector<double>, std::vector<std::string>>;

// float32 is the shortest decimal that it rounds from: 1e-05 as in the config.json that it was written from.
// Bools of an array are 0 and 1. Arrays of arrays are checked and dropped: no key that is read has one.
using GgufValue = std::variant<std::monostate, bool, uint64_t, int64_t, double, std::string, GgufArray>;

struct GgufTensor {
  std::string name;
  GgmlType type;
  std::vector<int64_t> shape;  // rows first: the file has the dimensions the other way round
  uint64_t position = 0;       // of its data in the file
  uint64_t num_bytes = 0;
};

class GgufHeader {
 public:
  // Throws InvalidArgument naming the file, the key, what was found and what would do: for a missing key, a
  // value of another type, a number outside [min, max].
  int64_t get_int(const std::string& key, int64_t min, int64_t max) const;
  double get_number(const std::string& key) const;  // finite
  bool get_bool(const std::string& key, bool otherwise) const;
  const std::string& get_string(const std::string& key) const;
  template <typename T>  // int64_t, double or std::string
  const std::vector<T>& get_array(const std::string& key) const;
  bool has(const std::string& key) const { return metadata.contains(key); }
  const GgufValue& at(const std::string& key) const;
  const GgufTensor* find_tensor(const std::string& name) const;
  // InvalidArgument("<path>: <message>")
  [[noreturn]] void fail(const std::string& message) const;

  std::string path;
  std::map<std::string, GgufValue> metadata;
  std::vector<GgufTensor> tensors;  // by position
};

// Fills `out` from a position that lies within the file, whole.
using ReadAt = std::function<void(uint64_t position, std::span<std::byte> out)>;

// Reads and checks all but the tensors' data. Throws InvalidArgument that starts with `path` for whatever is
// truncated, contradictory, overlapping or beyond the limits (docs/checkpoints.md), before it takes memory
// for it, and for a tensor of a type that is not read.
GgufHeader parse_gguf(const ReadAt& read_at, uint64_t file_bytes, const std::string& path);

// An open file that is read by position. Thread-safe.
class GgufFile {
 public:
  explicit GgufFile(const std::string& path);
  ~GgufFile();
  GgufFile(const GgufFile&) = delete;
  GgufFile& operator=(const GgufFile&) = delete;

  const GgufHeader& header() const { return header_; }
  const std::string& path() const { return path_; }
  const std::string& stamp() const { return stamp_; }
  // Throws InvalidArgument naming the file when it was written since it was opened.
  void check_unchanged() const;
  // Throws InvalidArgument naming the file when it does not hold them any more.
  void read_at(uint64_t position, std::span<std::byte> out) const;

 private:
  std::string path_;
  std::string stamp_;
  int fd_ = -1;
  GgufHeader header_;
};

// Whether a model's path is a file of this kind, by its name.
bool is_gguf_path(const std::string& path);
// The one GGUF file, or first part of one, of a directory; empty when it has none, several, or safetensors.
std::string find_gguf(const std::string& directory);
// Which part of how many a file is, by its name "...-00001-of-00003.gguf"; {0, 0} for others.
std::pair<int, int> gguf_part_of(std::string_view path);
// The files that a model is split into, given the first; of one that is not split: itself.
// Throws InvalidArgument for another part than the first.
std::vector<std::string> gguf_parts(const std::string& path);

}  // namespace quire
