// Tensors of MXFP4 (Open Compute Project, Microscaling Formats 1.0, 2023), as the bfloat16 values that they
// stand for: 32 values of four bits, E2M1, share a power of two, E8M0.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "formats/reserved_addresses.h"
#include "formats/tensor_file.h"

namespace quire {

constexpr int64_t kMxfp4BlockValues = 32;
constexpr int64_t kMxfp4BlockBytes = 16;
constexpr uint8_t kMxfp4NanScale = 255;

// Writes the values of one block as bfloat16, the low half of each byte first. `scale` is not NaN; what is
// too large for bfloat16 is infinite.
void decode_mxfp4_block(const uint8_t* bytes, uint8_t scale, uint16_t* out);

// A tensor as a checkpoint stores it: in a file, or in memory when `file` is null.
struct StoredTensor {
  std::shared_ptr<const TensorFile> file;
  const TensorEntry* entry = nullptr;
  const std::byte* data = nullptr;
};

// A tensor [..., 32 N] under the name of its blocks.
struct Mxfp4Tensor {
  StoredTensor blocks;  // U8 [..., N, 16]
  StoredTensor scales;  // U8 [..., N]
};

// Tensors have addresses that no memory is behind.
class Mxfp4Weights final : public TensorFile {
 public:
  // `path` names the whole in errors. Throws InvalidArgument, naming the tensor, for one whose shapes or
  // dtypes are not those above.
  Mxfp4Weights(const std::string& path, std::vector<Mxfp4Tensor> tensors);

  const std::string& path() const override { return path_; }
  // The files below have theirs.
  const std::string& stamp() const override { return no_stamp_; }
  void check_unchanged() const override {}
  const std::vector<TensorEntry>& entries() const override { return entries_; }
  std::span<const std::byte> bytes(const TensorEntry& entry) const override {
    return {addresses_.begin() + entry.begin, static_cast<size_t>(entry.end - entry.begin)};
  }
  bool contains(const std::byte* address) const override { return addresses_.contains(address); }
  // Throws InvalidArgument, naming the tensor of scales, where one is NaN.
  void read(const std::byte* from, std::span<std::byte> out) const override;

 private:
  std::string path_, no_stamp_;
  std::vector<Mxfp4Tensor> tensors_;
  std::vector<TensorEntry> entries_;  // of each tensor; by `begin`, without holes
  ReservedAddresses addresses_;
};

}  // namespace quire
