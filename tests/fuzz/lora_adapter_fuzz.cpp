// An adapter's two files: adapter_config.json, the header of adapter_model.safetensors and its data, with a
// NUL between them. It is refused, or all that it says of its modules is so and their values can be read, or
// are refused because one is not finite. The header's length is the target's: it would tear with what is
// inserted.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "quire/error.h"
#include "scratch_directory.h"
#include "weights/lora_adapter.h"

namespace {

// What mutations must have reached, or they no longer test what they should.
bool has_accepted = false, was_not_finite = false;
bool was_wrong_about_config = false, was_wrong_about_tensor = false, was_wrong_about_module = false;

const std::string& directory() {
  static const quire::ScratchDirectory scratch;
  static const std::string path = scratch.path().string();
  return path;
}

std::string_view take_part(std::string_view& bytes) {
  const size_t end = std::min(bytes.find('\0'), bytes.size());
  const std::string_view part = bytes.substr(0, end);
  bytes.remove_prefix(std::min(end + 1, bytes.size()));
  return part;
}

void write_files(std::string_view bytes) {
  std::ofstream(directory() + "/adapter_config.json", std::ios::binary) << take_part(bytes);
  const std::string_view header = take_part(bytes);
  const uint64_t size = header.size();
  std::ofstream(directory() + "/adapter_model.safetensors", std::ios::binary)
      << std::string_view(reinterpret_cast<const char*>(&size), sizeof size) << header << bytes;
}

void read(const quire::LoraAdapter& adapter, const quire::TensorView& view) {
  std::vector<std::byte> values(static_cast<size_t>(view.numel()) * quire::dtype_bytes(view.dtype));
  try {
    adapter.checkpoint().read(view.as<std::byte>(), view.dtype, view.numel(), values.data());
  } catch (const quire::InvalidArgument& refused) {
    if (std::string_view(refused.what()).find("holds NaN") == std::string_view::npos) __builtin_trap();
    was_not_finite = true;
  }
}

void check(const quire::LoraAdapter& adapter) {
  int32_t max_rank = 0;
  const std::string* before = nullptr;
  for (const quire::LoraAdapterModule& module : adapter.modules()) {
    if (module.name.empty() || (before != nullptr && *before >= module.name)) __builtin_trap();
    before = &module.name;
    if (module.rank < 1 || module.a.rank != 2 || module.b.rank != 2) __builtin_trap();
    if (module.a.shape[0] != module.rank || module.b.shape[1] != module.rank) __builtin_trap();
    if (!(module.scale > 0) || !std::isfinite(module.scale)) __builtin_trap();
    if (module.a.numel() < 1 || module.b.numel() < 1) __builtin_trap();
    max_rank = std::max(max_rank, module.rank);
    read(adapter, module.a);
    read(adapter, module.b);
  }
  if (max_rank == 0 || adapter.max_rank() != max_rank) __builtin_trap();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  write_files({reinterpret_cast<const char*>(data), size});
  try {
    check(quire::LoraAdapter::open(directory()));
    has_accepted = true;
  } catch (const quire::InvalidArgument& refused) {
    const std::string_view why = refused.what();
    was_wrong_about_config |= why.find("/adapter_config.json: '") != why.npos;
    was_wrong_about_tensor |= why.find("/adapter_model.safetensors: tensor '") != why.npos;
    was_wrong_about_module |= why.find("/adapter_model.safetensors: module '") != why.npos;
  }
  return 0;
}

extern "C" const char* fuzz_target_missed() {
  return !has_accepted             ? "an adapter that is accepted"
         : !was_not_finite         ? "a value that is not finite"
         : !was_wrong_about_config ? "a config that is refused"
         : !was_wrong_about_tensor ? "a tensor that is refused"
         : !was_wrong_about_module ? "a module that is refused"
                                   : nullptr;
}
