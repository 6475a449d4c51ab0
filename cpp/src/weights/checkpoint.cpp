#include "weights/checkpoint.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <set>

#include "formats/gguf_config.h"
#include "formats/gguf_weights.h"
#include "formats/hf_config.h"
#include "formats/json.h"
#include "formats/mxfp4_weights.h"
#include "formats/safetensors.h"
#include "quire/error.h"
#include "util/check.h"
#include "util/nearest.h"
#include "util/str.h"
#include "weights/convert.h"
#include "weights/shape_text.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::pair<DType, std::string_view>, 7> kDtypeNames = {{{DType::kFloat32, "F32"},
                                                                            {DType::kFloat16, "F16"},
                                                                            {DType::kBFloat16, "BF16"},
                                                                            {DType::kInt8, "I8"},
                                                                            {DType::kUInt8, "U8"},
                                                                            {DType::kInt32, "I32"},
                                                                            {DType::kInt64, "I64"}}};

std::optional<DType> parse_dtype(std::string_view name) {
  for (const auto& [dtype, known] : kDtypeNames) {
    if (name == known) return dtype;
  }
  return std::nullopt;
}

// "F32, F16 and BF16 are supported"
std::string supported_text(std::initializer_list<DType> dtypes) {
  std::string text;
  for (size_t i = 0; i < dtypes.size(); ++i) {
    const DType dtype = dtypes.begin()[i];
    const auto* found = std::find_if(kDtypeNames.begin(), kDtypeNames.end(),
                                     [&](const auto& each) { return each.first == dtype; });
    text += str(i == 0 ? "" : i + 1 == dtypes.size() ? " and " : ", ", found->second);
  }
  return text + (dtypes.size() > 1 ? " are supported" : " is supported");
}

bool is_float(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kFloat16 || dtype == DType::kBFloat16;
}

TensorView view_of(void* data, DType dtype, std::initializer_list<int64_t> shape) {
  const int64_t* d = shape.begin();
  if (shape.size() == 1) return {data, dtype, d[0]};
  return shape.size() == 2 ? TensorView(data, dtype, d[0], d[1]) : TensorView(data, dtype, d[0], d[1], d[2]);
}

// An index of a hundred thousand tensors has ten million.
constexpr int64_t kMaxIndexBytes = 64 << 20;

// Where a shard leads when it is a link out of the directory, by which an index could name any file. In the
// hub's cache all files are links, to blobs/ beside snapshots/.
std::string target_outside(const fs::path& root, const std::string& shard) {
  std::error_code error;
  if (!fs::is_symlink(root / shard, error)) return "";
  const fs::path target = fs::canonical(root / shard, error);
  if (error) return "";  // to be opened, and refused
  const fs::path directory = fs::canonical(root, error);
  const auto is_in = [&](const fs::path& place) {
    return std::mismatch(place.begin(), place.end(), target.begin(), target.end()).first == place.end();
  };
  const fs::path snapshots = directory.parent_path();
  const bool is_snapshot = snapshots.filename() == "snapshots";
  return is_in(directory) || (is_snapshot && is_in(snapshots.parent_path() / "blobs")) ? "" : target.string();
}

}  // namespace

Checkpoint Checkpoint::dummy(const std::string& directory) {
  Checkpoint checkpoint;
  checkpoint.directory_ = directory;
  checkpoint.is_dummy_ = true;
  const HfConfig config = read_model_config(directory);
  const char* key = config.has("dtype") ? "dtype" : "torch_dtype";
  const std::string dtype = config.get_string(key, "float32");
  if (dtype == "float16") {
    checkpoint.main_dtype_ = "F16";
  } else if (dtype == "bfloat16") {
    checkpoint.main_dtype_ = "BF16";
  } else if (dtype != "float32") {
    config.fail(str("'", key, "' must be float32, float16 or bfloat16, got '", dtype, "'"));
  }
  return checkpoint;
}

Checkpoint Checkpoint::of(std::span<const WeightTensor> tensors) {
  Checkpoint checkpoint;
  checkpoint.directory_ = "the tensors given";
  checkpoint.memory_entries_.reserve(tensors.size());  // the map has their addresses
  for (const WeightTensor& tensor : tensors) {
    const auto* known = std::ranges::find_if(
        kDtypeNames, [&](const auto& each) { return tensor.dtype == dtype_name(each.first); });
    if (known == kDtypeNames.end()) {
      throw InvalidArgument(str("tensor '", tensor.name, "' has dtype '", tensor.dtype,
                                "'; weights are float32, float16, bfloat16, int8, uint8, int32 or int64"));
    }
    uint64_t bytes = dtype_bytes(known->first);
    for (const int64_t size : tensor.shape) {
      if (size < 0 || __builtin_mul_overflow(bytes, static_cast<uint64_t>(size), &bytes))
        throw InvalidArgument(str("tensor '", tensor.name, "' has shape ", shape_text(tensor.shape)));
    }
    if (tensor.data == nullptr && bytes > 0)
      throw InvalidArgument(str("tensor '", tensor.name, "' has no data"));
    const TensorEntry& entry = checkpoint.memory_entries_.emplace_back(
        TensorEntry{tensor.name, std::string(known->second), tensor.shape, 0, bytes});
    const auto* data = static_cast<const std::byte*>(tensor.data);
    if (!checkpoint.tensors_.emplace(tensor.name, Tensor{nullptr, &entry, data}).second)
      throw InvalidArgument(str("tensor '", tensor.name, "' is given twice"));
  }
  return checkpoint;
}

Checkpoint Checkpoint::described(const std::string& directory, const std::string& main_dtype,
                                 std::vector<TensorEntry> tensors) {
  Checkpoint checkpoint;
  checkpoint.directory_ = directory;
  checkpoint.main_dtype_ = main_dtype;
  checkpoint.memory_entries_ = std::move(tensors);
  for (const TensorEntry& entry : checkpoint.memory_entries_)
    checkpoint.tensors_.emplace(entry.name, Tensor{nullptr, &entry, nullptr});
  return checkpoint;
}

std::vector<TensorEntry> Checkpoint::described_tensors() const {
  std::vector<TensorEntry> entries;
  for (const auto& [name, tensor] : tensors_) {
    const TensorEntry& entry = *tensor.entry;
    entries.push_back({entry.name, entry.dtype, entry.shape, 0, 0});
  }
  std::ranges::sort(entries, {}, &TensorEntry::name);
  return entries;
}

bool Checkpoint::is_at(const std::string& directory) {
  std::error_code error;
  return fs::exists(fs::path(directory) / "model.safetensors", error) ||
         fs::exists(fs::path(directory) / "model.safetensors.index.json", error);
}

void Checkpoint::open_safetensors(const std::string& directory) {
  const fs::path root(directory);
  const fs::path single = root / "model.safetensors";
  const fs::path index = root / "model.safetensors.index.json";
  if (is_present(single.string())) {
    add_file(std::make_shared<const SafetensorsFile>(single.string()));
  } else if (is_present(index.string())) {
    const HfConfig file = HfConfig::load(index.string(), kMaxIndexBytes);
    const auto weight_map = file.get_object("weight_map");
    if (!weight_map) file.fail("key 'weight_map' is missing");
    std::map<std::string, std::string> shard_of;
    for (const std::string& name : weight_map->keys()) shard_of[name] = weight_map->get_string(name);
    std::set<std::string> shards;
    for (const auto& [name, shard] : shard_of) {
      // A shard lies beside the index: a path could point anywhere.
      const bool is_name = fs::path(shard).filename() == shard && shard.find('\0') == shard.npos;
      if (!is_name || shard.empty() || shard == "." || shard == "..")
        file.fail(str("weight_map of '", name, "' must be a file name, got '", shard, "'"));
      if (!shards.insert(shard).second) continue;
      if (const std::string target = target_outside(root, shard); !target.empty())
        file.fail(str("weight_map of '", name, "' is '", shard, "', a link out of the directory, to ", target,
                      "; put the file itself there"));
    }
    for (const std::string& shard : shards)
      add_file(std::make_shared<const SafetensorsFile>((root / shard).string()));
    for (const auto& [name, shard] : shard_of) {
      const auto found = tensors_.find(name);
      if (found == tensors_.end() || fs::path(found->second.file->path()).filename() != shard)
        file.fail(str("'", name, "' is not in ", shard));
    }
  } else {
    std::string advice;
    std::error_code error;
    if (fs::exists(root / "pytorch_model.bin", error) ||
        fs::exists(root / "pytorch_model.bin.index.json", error)) {
      advice =
          "; pytorch_model.bin is a pickle, which may hold code: 'quire export' reads it, and writes a "
          "directory for the engine";
    }
    throw InvalidArgument(
        str(directory, ": has neither model.safetensors nor model.safetensors.index.json", advice));
  }
}

Checkpoint Checkpoint::open(const std::string& model) {
  Checkpoint checkpoint;
  checkpoint.directory_ = model;
  if (is_gguf_path(model)) {
    for (auto& file : open_gguf_weights(model)) checkpoint.add_file(std::move(file));
  } else {
    checkpoint.open_safetensors(model);
  }
  checkpoint.find_main_dtype();
  return checkpoint;
}

Checkpoint Checkpoint::open_file(const std::string& path) {
  Checkpoint checkpoint;
  checkpoint.directory_ = path;
  checkpoint.add_file(std::make_shared<const SafetensorsFile>(path));
  checkpoint.find_main_dtype();
  return checkpoint;
}

void Checkpoint::find_main_dtype() {
  std::map<std::string, uint64_t> bytes_by_dtype;
  for (const auto& [name, tensor] : tensors_) {
    const std::optional<DType> dtype = parse_dtype(tensor.entry->dtype);
    if (dtype && !is_float(*dtype)) continue;  // quantized: computed in another
    bytes_by_dtype[tensor.file->compute_dtype(*tensor.entry)] += tensor.entry->end - tensor.entry->begin;
  }
  uint64_t most = 0;
  for (const auto& [dtype, bytes] : bytes_by_dtype) {
    if (bytes > most) {
      most = bytes;
      main_dtype_ = dtype;
    }
  }
}

void Checkpoint::add_file(std::shared_ptr<const TensorFile> opened) {
  const auto& file = files_.emplace_back(std::move(opened));
  for (const TensorEntry& entry : file->entries()) {
    if (!tensors_.emplace(entry.name, Tensor{file, &entry, file->bytes(entry).data()}).second) {
      throw InvalidArgument(str(file->path(), ": tensor '", entry.name, "' is in another shard too"));
    }
  }
}

void Checkpoint::decode_mxfp4() {
  constexpr std::string_view kBlocks = "_blocks";
  std::vector<Mxfp4Tensor> found;
  for (const auto& [name, blocks] : tensors_) {
    if (!name.ends_with(kBlocks) || blocks.entry->dtype != "U8") continue;
    const std::string other = name.substr(0, name.size() - kBlocks.size()) + "_scales";
    const auto scales = tensors_.find(other);
    if (scales == tensors_.end())
      throw InvalidArgument(
          str(place_of(blocks), ": tensor '", other, "' is missing, the scales of '", name, "'"));
    found.push_back({.blocks = {blocks.file, blocks.entry, blocks.data},
                     .scales = {scales->second.file, scales->second.entry, scales->second.data}});
  }
  if (found.empty()) return;
  const auto weights = std::make_shared<const Mxfp4Weights>(directory_, found);
  for (const Mxfp4Tensor& each : found) {
    tensors_.erase(each.blocks.entry->name);
    tensors_.erase(each.scales.entry->name);
  }
  add_file(weights);
}

void Checkpoint::rename(const std::string& from, const std::string& to) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors_)
    if (name.starts_with(from)) names.push_back(name);
  for (const std::string& name : names) {
    auto node = tensors_.extract(name);
    node.key() = to + name.substr(from.size());
    if (!tensors_.insert(std::move(node)).inserted) {
      throw InvalidArgument(str(directory_, ": has both a tensor '", name, "' and one '",
                                to + name.substr(from.size()), "', which are the same"));
    }
  }
}

std::string Checkpoint::stamp() const {
  std::string stamp;
  for (const auto& file : files_) stamp += file->stamp();
  return stamp;
}

TensorView Checkpoint::take(const std::string& name, std::initializer_list<int64_t> shape,
                            std::initializer_list<DType> dtypes) {
  const auto is_wanted = [&](DType dtype) {
    return std::find(dtypes.begin(), dtypes.end(), dtype) != dtypes.end();
  };
  if (is_dummy_) {
    const DType main = *parse_dtype(main_dtype_);
    return view_of(nullptr, is_wanted(main) ? main : *dtypes.begin(), shape);
  }
  asked_.insert(name);
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    if (allows_missing_) return view_of(nullptr, *dtypes.begin(), shape);
    throw InvalidArgument(str(directory_, ": tensor '", name, "' is missing"));
  }
  Tensor& tensor = found->second;
  const TensorEntry& entry = *tensor.entry;
  if (!std::equal(shape.begin(), shape.end(), entry.shape.begin(), entry.shape.end())) {
    throw InvalidArgument(str(place_of(tensor), ": tensor '", name, "' has shape ", shape_text(entry.shape),
                              ", the config asks for ", shape_text(shape)));
  }
  const std::optional<DType> dtype = parse_dtype(entry.dtype);
  if (!dtype || !is_wanted(*dtype)) {
    throw InvalidArgument(
        str(place_of(tensor), ": tensor '", name, "' has dtype ", entry.dtype, "; ", supported_text(dtypes)));
  }
  tensor.taken = true;
  // A view has no const form; nobody writes.
  void* data = const_cast<std::byte*>(tensor.data);
  return view_of(data, *dtype, shape);
}

const TensorFile* Checkpoint::file_of(const std::byte* address) const {
  const auto file =
      std::find_if(files_.begin(), files_.end(), [&](const auto& f) { return f->contains(address); });
  QUIRE_CHECK(file != files_.end() || !memory_entries_.empty(), "an address in none of ", files_.size(),
              " files");
  return file != files_.end() ? file->get() : nullptr;
}

void Checkpoint::read(const std::byte* from, DType dtype, int64_t count, std::byte* out) const {
  if (count == 0) return;
  constexpr size_t kBytesAtOnce = 256 << 10;  // looked at while they are in a cache
  const TensorFile* file = file_of(from);
  const size_t size = dtype_bytes(dtype);
  const size_t bytes = static_cast<size_t>(count) * size;
  bytes_read_->fetch_add(static_cast<int64_t>(bytes), std::memory_order_relaxed);
  for (size_t done = 0; done < bytes; done += kBytesAtOnce) {
    const size_t num_bytes = std::min(kBytesAtOnce, bytes - done);
    if (file != nullptr) {
      file->read(from + done, {out + done, num_bytes});
    } else {
      std::memcpy(out + done, from + done, num_bytes);
    }
    if (!is_float(dtype) || all_finite(out + done, dtype, static_cast<int64_t>(num_bytes / size))) continue;
    size_t bad = done;
    while (all_finite(out + bad, dtype, 1)) bad += size;
    fail_at(from, from + bad, size);
  }
}

int64_t Checkpoint::total_bytes() const {
  int64_t total = 0;
  for (const auto& [name, tensor] : tensors_) total += static_cast<int64_t>(tensor.bytes());
  return total;
}

void Checkpoint::check_unchanged() const {
  for (const auto& file : files_) file->check_unchanged();
}

void Checkpoint::fail_at(const std::byte* from, const std::byte* bad, size_t value_bytes) const {
  const auto found = std::find_if(tensors_.begin(), tensors_.end(),
                                  [&](const auto& each) { return each.second.contains(from); });
  QUIRE_CHECK(found != tensors_.end());
  const Tensor& tensor = found->second;
  throw InvalidArgument(
      str(place_of(tensor), ": tensor '", found->first, "' holds NaN or an infinite value, at place ",
          static_cast<size_t>(bad - tensor.data) / value_bytes, " of ", tensor.bytes() / value_bytes, "; ",
          tensor.file ? "the file is damaged, or was written by a training run that had diverged"
                      : "has the training run diverged?"));
}

void Checkpoint::check_all_taken(const std::vector<std::string>& ignored_ends,
                                 const std::vector<std::string>& ignored_beginnings) const {
  std::vector<std::string> left;
  for (const auto& [name, tensor] : tensors_) {
    const auto ends_with = [&name = name](const std::string& end) { return name.ends_with(end); };
    const auto begins_with = [&name = name](const std::string& begin) { return name.starts_with(begin); };
    if (!tensor.taken && std::ranges::none_of(ignored_ends, ends_with) &&
        std::ranges::none_of(ignored_beginnings, begins_with))
      left.push_back(name);
  }
  if (left.empty()) return;
  std::sort(left.begin(), left.end());
  // What the model misses is likelier to be meant than what it has found.
  const std::vector<std::string> missing = missing_names();
  const std::string nearest =
      missing.empty() ? nearest_name(left[0], asked_) : nearest_name(left[0], missing);
  throw InvalidArgument(str(directory_, ": the model has no place for tensor '", left[0], "'",
                            left.size() > 1 ? str(" and ", left.size() - 1, " more") : "",
                            "; the weights do not match config.json",
                            nearest.empty() ? "" : str("; the nearest that it has is '", nearest, "'")));
}

std::vector<std::string> Checkpoint::missing_names() const {
  std::vector<std::string> missing;
  for (const std::string& name : asked_)
    if (!tensors_.contains(name)) missing.push_back(name);
  return missing;
}

void Checkpoint::check_none_missing() const {
  const std::vector<std::string> missing = missing_names();
  if (missing.empty()) return;
  throw InvalidArgument(str(directory_, ": tensor '", missing[0], "'",
                            missing.size() > 1 ? str(" and ", missing.size() - 1, " more are") : " is",
                            " missing; give them, or say that the update is partial"));
}

}  // namespace quire
