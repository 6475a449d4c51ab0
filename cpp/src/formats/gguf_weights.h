// The tensors of a GGUF file, as those of the Hugging Face checkpoint that it was converted from.
#pragma once

#include <memory>

#include "formats/gguf.h"
#include "formats/reserved_addresses.h"
#include "formats/tensor_file.h"

namespace quire {

// Names are Hugging Face's; rows of llama's q and k are in their places again, and gemma's norms without the
// one that the converter adds. Blocks are read as fp32. Tensors have addresses that no memory is behind.
class GgufWeights final : public TensorFile {
 public:
  // `architecture` is general.architecture of the first part, and so is `num_heads` of its kinds; see
  // open_gguf_weights.
  struct Layout {
    std::string architecture;
    int64_t num_heads = 0;
    int64_t num_kv_heads = 0;
  };
  GgufWeights(std::unique_ptr<const GgufFile> file, const Layout& layout);

  const std::string& path() const override { return file_->path(); }
  const std::string& stamp() const override { return file_->stamp(); }
  void check_unchanged() const override { file_->check_unchanged(); }
  const std::vector<TensorEntry>& entries() const override { return entries_; }
  std::span<const std::byte> bytes(const TensorEntry& entry) const override {
    return {addresses_.begin() + entry.begin, static_cast<size_t>(entry.end - entry.begin)};
  }
  bool contains(const std::byte* address) const override { return addresses_.contains(address); }
  void read(const std::byte* from, std::span<std::byte> out) const override;
  std::string compute_dtype(const TensorEntry& entry) const override;

 private:
  struct Source {
    const GgufTensor* tensor;
    int64_t num_heads = 0;  // rows were permuted within so many; 0: they were not
    bool holds_one_more = false;
  };
  void read_values(const GgufTensor& tensor, int64_t first, int64_t count, std::byte* out) const;

  std::unique_ptr<const GgufFile> file_;
  std::vector<TensorEntry> entries_;  // by `begin`, without holes
  std::vector<Source> sources_;       // of each entry
  ReservedAddresses addresses_;
};

// Opens all parts of a file, given the first. Throws InvalidArgument naming the file.
std::vector<std::shared_ptr<const TensorFile>> open_gguf_weights(const std::string& path);

}  // namespace quire
