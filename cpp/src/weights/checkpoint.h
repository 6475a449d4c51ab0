// The tensors of a model directory, or of somebody's memory, by name.
#pragma once

#include <atomic>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "formats/tensor_file.h"
#include "quire/export.h"
#include "quire/kernels/tensor_view.h"
#include "quire/weights.h"

namespace quire QUIRE_MODEL_API {

// Reads model.safetensors, or the shards that model.safetensors.index.json names, or a GGUF file. Not
// thread-safe but for `read`: it notes which tensors were taken. Used while a model is built, then dropped.
class Checkpoint {
 public:
  // Throws InvalidArgument naming the file for anything missing, truncated or contradictory.
  static Checkpoint open(const std::string& model);
  // The tensors of one safetensors file, which `directory` then is the path of. Throws as `open` does.
  static Checkpoint open_file(const std::string& path);
  // For load_format "dummy": has whatever is asked of `take`, without data, and nothing else. The main dtype
  // is that of config.json's "dtype" (or "torch_dtype"), float32 when it names none.
  static Checkpoint dummy(const std::string& directory);
  // What the tensors point to lives longer. Throws InvalidArgument for a name that comes twice, an unknown
  // dtype, or a tensor without data.
  static Checkpoint of(std::span<const WeightTensor> tensors);
  // Has these tensors, without data.
  static Checkpoint described(const std::string& directory, const std::string& main_dtype,
                              std::vector<TensorEntry> tensors);
  // All tensors, by name, without places.
  std::vector<TensorEntry> described_tensors() const;
  // Whether there is something for `open`.
  static bool is_at(const std::string& directory);

  // Makes one tensor of every pair "<x>_blocks" and "<x>_scales" of MXFP4, under the name of its blocks: the
  // bfloat16 values that they stand for, [..., N, 16] and [..., N] bytes as [..., 32 N]. The second call does
  // nothing. Throws InvalidArgument naming the tensor for blocks without scales and for other shapes.
  void decode_mxfp4();

  // Names that begin with `from` begin with `to` instead, from now on. Throws InvalidArgument when there is
  // such a one already.
  void rename(const std::string& from, const std::string& to);

  // From now on `take` gives what is missing as a view without data, and a loader leaves the values alone.
  void allow_missing() { allows_missing_ = true; }
  bool allows_missing() const { return allows_missing_; }

  bool has(const std::string& name) const { return tensors_.contains(name); }

  // Where the tensor lies. What is there is to be had from `read`: the files are mapped, and to look at one
  // that has been truncated would end the process. Throws InvalidArgument when it is missing, has another
  // shape (of one to three dimensions), or another dtype than those; by default F32, F16 and BF16. Of a
  // dummy: a view of that shape whose data is null, in the main dtype, or the first of `dtypes` where that is
  // not among them.
  TensorView take(const std::string& name, std::initializer_list<int64_t> shape,
                  std::initializer_list<DType> dtypes = {DType::kFloat32, DType::kFloat16, DType::kBFloat16});

  // Copies `count` values of `dtype` that lie within a taken tensor of that dtype. Thread-safe. Throws
  // InvalidArgument naming the file when they cannot be read, and the tensor too when one is infinite or NaN.
  // The words of an int32 tensor may be read as bytes.
  void read(const std::byte* from, DType dtype, int64_t count, std::byte* out) const;

  // Of all tensors, and of those how many were read.
  int64_t total_bytes() const;
  int64_t bytes_read() const { return bytes_read_->load(std::memory_order_relaxed); }
  // Throws InvalidArgument naming a file that was written since it was opened.
  void check_unchanged() const;

  // Throws InvalidArgument when tensors are left that no one took, except names that end in one of
  // `ignored_ends` or begin with one of `ignored_beginnings`: the architecture would not be what the config
  // says.
  void check_all_taken(const std::vector<std::string>& ignored_ends,
                       const std::vector<std::string>& ignored_beginnings = {}) const;
  // Throws InvalidArgument when `take` was asked for what is not there, and was allowed to.
  void check_none_missing() const;

  // The floating-point dtype most bytes are stored in: "F32", "F16" or "BF16".
  const std::string& main_dtype() const { return main_dtype_; }
  const std::string& directory() const { return directory_; }
  // Of all files: the same as long as nobody has written one of them. Empty for a dummy.
  std::string stamp() const;

 private:
  struct Tensor {
    std::shared_ptr<const TensorFile> file;  // null: in memory
    const TensorEntry* entry;
    const std::byte* data;
    bool taken = false;

    size_t bytes() const { return static_cast<size_t>(entry->end - entry->begin); }
    bool contains(const std::byte* address) const { return address >= data && address < data + bytes(); }
  };
  void add_file(std::shared_ptr<const TensorFile> file);
  void open_safetensors(const std::string& directory);
  void find_main_dtype();
  std::vector<std::string> missing_names() const;
  // Null for memory.
  const TensorFile* file_of(const std::byte* address) const;
  // Where a tensor lies, as errors say it.
  const std::string& place_of(const Tensor& tensor) const {
    return tensor.file ? tensor.file->path() : directory_;
  }
  [[noreturn]] void fail_at(const std::byte* from, const std::byte* bad, size_t value_bytes) const;

  std::string directory_;
  std::string main_dtype_ = "F32";
  bool is_dummy_ = false;
  bool allows_missing_ = false;
  std::set<std::string> asked_;              // names that `take` was asked for
  std::vector<TensorEntry> memory_entries_;  // of tensors in memory
  std::vector<std::shared_ptr<const TensorFile>> files_;
  std::unique_ptr<std::atomic<int64_t>> bytes_read_ = std::make_unique<std::atomic<int64_t>>(0);
  std::unordered_map<std::string, Tensor> tensors_;
};

}  // namespace quire
