// A file of tensors, as a checkpoint sees it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "quire/export.h"

namespace quire QUIRE_MODEL_API {

struct TensorEntry {
  std::string name;
  std::string dtype;           // "F32", "BF16", ...: what `read` gives
  std::vector<int64_t> shape;  // products do not overflow
  uint64_t begin = 0;          // bytes of values of that dtype, from the start of the data
  uint64_t end = 0;
};

// An open file. Immutable and thread-safe.
//
// Its tensors have addresses, so that views of rows and columns name parts of them; only `read` gives what is
// there.
class TensorFile {
 public:
  virtual ~TensorFile() = default;

  virtual const std::string& path() const = 0;
  // Differs between files that differ, as far as their names, sizes, times and places tell.
  virtual const std::string& stamp() const = 0;
  // Throws InvalidArgument naming the file when it was written since it was opened.
  virtual void check_unchanged() const = 0;
  virtual const std::vector<TensorEntry>& entries() const = 0;
  // Where the tensor is, valid as long as this object.
  virtual std::span<const std::byte> bytes(const TensorEntry& entry) const = 0;
  virtual bool contains(const std::byte* address) const = 0;
  // Copies whole values, out.size() bytes, from such an address on; all are one tensor's. Throws
  // InvalidArgument naming the file when it does not hold them any more, or cannot be read.
  virtual void read(const std::byte* from, std::span<std::byte> out) const = 0;
  // The dtype that weights of this entry want to be computed in: its own, unless it is quantized.
  virtual std::string compute_dtype(const TensorEntry& entry) const { return entry.dtype; }
};

}  // namespace quire
