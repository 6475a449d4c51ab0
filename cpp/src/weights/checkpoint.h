// The tensors of a model directory, by name.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "formats/safetensors.h"
#include "quire/kernels/tensor_view.h"

namespace quire {

// Reads model.safetensors, or the shards that model.safetensors.index.json names. Not thread-safe but for
// `read`: it notes which tensors were taken. Used while a model is built, then dropped.
class Checkpoint {
 public:
  // Throws InvalidArgument naming the file for anything missing, truncated or contradictory.
  static Checkpoint open(const std::string& directory);
  // For load_format "dummy": has whatever is asked of `take`, without data, and nothing else. The main dtype
  // is that of config.json's "dtype" (or "torch_dtype"), float32 when it names none.
  static Checkpoint dummy(const std::string& directory);

  bool has(const std::string& name) const { return tensors_.contains(name); }

  // Where the tensor lies. What is there is to be had from `read`: the files are mapped, and to look at one
  // that has been truncated would end the process. Throws InvalidArgument when it is missing, has another
  // shape (of one or two dimensions), or another dtype than those; by default F32, F16 and BF16. Of a dummy:
  // a view of that shape whose data is null, in the main dtype, or the first of `dtypes` where that is not
  // among them.
  TensorView take(const std::string& name, std::initializer_list<int64_t> shape,
                  std::initializer_list<DType> dtypes = {DType::kFloat32, DType::kFloat16, DType::kBFloat16});

  // Copies `count` values of `dtype` that lie within a taken tensor of that dtype. Thread-safe. Throws
  // InvalidArgument naming the file when they cannot be read, and the tensor too when one is infinite or NaN.
  // The words of an int32 tensor may be read as bytes.
  void read(const std::byte* from, DType dtype, int64_t count, std::byte* out) const;

  // Throws InvalidArgument when tensors are left that no one took, except names that end in one of `ignored`:
  // the architecture would not be what the config says.
  void check_all_taken(const std::vector<std::string_view>& ignored) const;

  // The floating-point dtype most bytes are stored in: "F32", "F16" or "BF16".
  const std::string& main_dtype() const { return main_dtype_; }
  const std::string& directory() const { return directory_; }

 private:
  struct Tensor {
    std::shared_ptr<const SafetensorsFile> file;
    const SafetensorsEntry* entry;
    bool taken = false;
  };
  void add_file(const std::string& path);
  const SafetensorsFile& file_of(const std::byte* address) const;

  std::string directory_;
  std::string main_dtype_ = "F32";
  bool is_dummy_ = false;
  std::vector<std::shared_ptr<const SafetensorsFile>> files_;
  std::unordered_map<std::string, Tensor> tensors_;
};

}  // namespace quire
