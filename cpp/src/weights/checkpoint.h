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

// Reads model.safetensors, or the shards that model.safetensors.index.json names. Not thread-safe: it notes
// which tensors were taken. Used while a model is built, then dropped.
class Checkpoint {
 public:
  // Throws InvalidArgument naming the file for anything missing, truncated or contradictory.
  static Checkpoint open(const std::string& directory);

  bool has(const std::string& name) const { return tensors_.contains(name); }

  // The tensor in place, read-only. Throws InvalidArgument when it is missing, has another shape, or a dtype
  // other than F32, F16 and BF16.
  TensorView take(const std::string& name, std::initializer_list<int64_t> shape);

  // `take`, converted to fp32: for biases and norms.
  std::vector<float> take_floats(const std::string& name, int64_t size);

  // The memory behind a taken tensor may be dropped.
  void done_with(const std::string& name);

  // Throws InvalidArgument when tensors are left that no one took, except names that end in one of `ignored`:
  // the architecture would not be what the config says.
  void check_all_taken(const std::vector<std::string_view>& ignored) const;

  // The dtype most bytes are stored in: "F32", "F16" or "BF16".
  const std::string& main_dtype() const { return main_dtype_; }
  const std::string& directory() const { return directory_; }

 private:
  struct Tensor {
    std::shared_ptr<const SafetensorsFile> file;
    const SafetensorsEntry* entry;
    bool taken = false;
  };
  void add_file(const std::string& path);

  std::string directory_;
  std::string main_dtype_ = "F32";
  std::unordered_map<std::string, Tensor> tensors_;
};

// One element of an F32, F16 or BF16 tensor's memory as fp32.
float load_float(const void* data, DType dtype, int64_t index);

}  // namespace quire
