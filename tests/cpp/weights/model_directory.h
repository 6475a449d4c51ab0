// Checkpoints that tests write.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "util/str.h"

namespace quire {

// A model directory that goes when the test does.
class ModelDirectory {
 public:
  ModelDirectory() {
    std::string pattern = (std::filesystem::temp_directory_path() / "quire_weights_XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~ModelDirectory() { std::filesystem::remove_all(path_); }
  ModelDirectory(const ModelDirectory&) = delete;
  ModelDirectory& operator=(const ModelDirectory&) = delete;

  const std::string& path() const { return path_; }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(path_ + "/" + name, std::ios::binary) << text;
  }

 private:
  std::string path_;
};

struct NamedTensor {
  std::string name;
  const char* dtype;  // "F32", "F16", "BF16"
  std::vector<int64_t> shape;
  std::string bytes;
};

inline void write_safetensors(const ModelDirectory& directory, const std::vector<NamedTensor>& tensors,
                              const std::string& file_name = "model.safetensors") {
  std::string header = "{", data;
  for (const NamedTensor& tensor : tensors) {
    std::string shape;
    for (const int64_t size : tensor.shape) shape += (shape.empty() ? "" : ",") + std::to_string(size);
    header +=
        str(header.size() > 1 ? "," : "", '"', tensor.name, R"(":{"dtype":")", tensor.dtype, R"(","shape":[)",
            shape, R"(],"data_offsets":[)", data.size(), ",", data.size() + tensor.bytes.size(), "]}");
    data += tensor.bytes;
  }
  header += "}";
  uint64_t length = header.size();
  std::string file(reinterpret_cast<const char*>(&length), sizeof length);
  directory.write(file_name, file + header + data);
}

}  // namespace quire
