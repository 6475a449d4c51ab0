#include "weights/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "formats/hf_config.h"
#include "quire/error.h"
#include "util/half_float.h"
#include "util/str.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

std::string shape_text(const auto& shape) {
  std::string text = "[";
  for (int64_t size : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  return text + "]";
}

}  // namespace

float load_float(const void* data, DType dtype, int64_t index) {
  if (dtype == DType::kFloat32) return static_cast<const float*>(data)[index];
  const uint16_t bits = static_cast<const uint16_t*>(data)[index];
  return dtype == DType::kFloat16 ? fp16_to_float(bits) : bf16_to_float(bits);
}

Checkpoint Checkpoint::open(const std::string& directory) {
  Checkpoint checkpoint;
  checkpoint.directory_ = directory;
  const fs::path root(directory);
  const fs::path single = root / "model.safetensors";
  const fs::path index = root / "model.safetensors.index.json";
  if (fs::exists(single)) {
    checkpoint.add_file(single.string());
  } else if (fs::exists(index)) {
    const HfConfig file = HfConfig::load(index.string());
    const auto weight_map = file.get_object("weight_map");
    if (!weight_map) file.fail("key 'weight_map' is missing");
    std::map<std::string, std::string> shard_of;
    for (const std::string& name : weight_map->keys()) shard_of[name] = weight_map->get_string(name);
    std::set<std::string> shards;
    for (const auto& [name, shard] : shard_of) {
      // A shard lies beside the index: a path could point anywhere.
      if (shard.empty() || fs::path(shard).filename() != shard) {
        file.fail(str("weight_map of '", name, "' must be a file name, got '", shard, "'"));
      }
      shards.insert(shard);
    }
    for (const std::string& shard : shards) checkpoint.add_file((root / shard).string());
    for (const auto& [name, shard] : shard_of) {
      const auto found = checkpoint.tensors_.find(name);
      if (found == checkpoint.tensors_.end()) file.fail(str("'", name, "' is not in ", shard));
    }
  } else {
    throw InvalidArgument(str(directory, ": has neither model.safetensors nor model.safetensors.index.json"));
  }
  std::map<std::string, uint64_t> bytes_by_dtype;
  for (const auto& [name, tensor] : checkpoint.tensors_) {
    bytes_by_dtype[tensor.entry->dtype] += tensor.entry->end - tensor.entry->begin;
  }
  uint64_t most = 0;
  for (const auto& [dtype, bytes] : bytes_by_dtype) {
    if (bytes > most) {
      most = bytes;
      checkpoint.main_dtype_ = dtype;
    }
  }
  return checkpoint;
}

void Checkpoint::add_file(const std::string& path) {
  auto file = std::make_shared<const SafetensorsFile>(path);
  for (const SafetensorsEntry& entry : file->entries()) {
    if (!tensors_.emplace(entry.name, Tensor{file, &entry}).second) {
      throw InvalidArgument(str(path, ": tensor '", entry.name, "' is in another shard too"));
    }
  }
}

TensorView Checkpoint::take(const std::string& name, std::initializer_list<int64_t> shape) {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) throw InvalidArgument(str(directory_, ": tensor '", name, "' is missing"));
  Tensor& tensor = found->second;
  const SafetensorsEntry& entry = *tensor.entry;
  if (!std::equal(shape.begin(), shape.end(), entry.shape.begin(), entry.shape.end())) {
    throw InvalidArgument(str(tensor.file->path(), ": tensor '", name, "' has shape ",
                              shape_text(entry.shape), ", the config asks for ", shape_text(shape)));
  }
  DType dtype;
  if (entry.dtype == "F32")
    dtype = DType::kFloat32;
  else if (entry.dtype == "F16")
    dtype = DType::kFloat16;
  else if (entry.dtype == "BF16")
    dtype = DType::kBFloat16;
  else
    throw InvalidArgument(str(tensor.file->path(), ": tensor '", name, "' has dtype ", entry.dtype,
                              "; F32, F16 and BF16 are supported"));
  tensor.taken = true;
  void* data =
      const_cast<std::byte*>(tensor.file->bytes(entry).data());  // a view has no const form; nobody writes
  const int64_t* d = shape.begin();
  return shape.size() == 1 ? TensorView(data, dtype, d[0]) : TensorView(data, dtype, d[0], d[1]);
}

std::vector<float> Checkpoint::take_floats(const std::string& name, int64_t size) {
  const TensorView view = take(name, {size});
  std::vector<float> values(static_cast<size_t>(size));
  for (int64_t i = 0; i < size; ++i) values[static_cast<size_t>(i)] = load_float(view.data, view.dtype, i);
  return values;
}

void Checkpoint::done_with(const std::string& name) {
  const Tensor& tensor = tensors_.at(name);
  tensor.file->done_with(*tensor.entry);
}

void Checkpoint::check_all_taken(const std::vector<std::string_view>& ignored) const {
  std::vector<std::string> left;
  for (const auto& [name, tensor] : tensors_) {
    const auto ends_with = [&name = name](std::string_view suffix) { return name.ends_with(suffix); };
    if (!tensor.taken && std::none_of(ignored.begin(), ignored.end(), ends_with)) left.push_back(name);
  }
  if (left.empty()) return;
  std::sort(left.begin(), left.end());
  throw InvalidArgument(str(directory_, ": the model has no place for tensor '", left[0], "'",
                            left.size() > 1 ? str(" and ", left.size() - 1, " more") : "",
                            "; the weights do not match config.json"));
}

}  // namespace quire
