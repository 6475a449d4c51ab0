// An adapter's two files: adapter_config.json, the header of adapter_model.safetensors and its data, with a
// NUL between them. It is refused, or all that it says of its modules is so and their values can be read, or
// are refused because one is not finite; a model with a linear and a mixture takes it or refuses it. The
// header's length is the target's: it would tear with what is inserted.
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
#include "worker/lora_rig.h"
#include "worker/lora_store.h"

namespace {

// What mutations must have reached, or they no longer test what they should.
bool has_taken_linears = false, has_taken_experts = false, was_not_the_models = false;
bool has_accepted = false, has_experts = false, was_not_finite = false;
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
    const int64_t ranks = int64_t{module.rank} * std::max(1, module.num_experts);
    if (module.num_experts < 0 || module.a.shape[0] != ranks || module.b.shape[1] != ranks) __builtin_trap();
    has_experts |= module.num_experts > 1;
    if (!(module.scale > 0) || !std::isfinite(module.scale)) __builtin_trap();
    if (module.a.numel() < 1 || module.b.numel() < 1) __builtin_trap();
    max_rank = std::max(max_rank, module.rank);
    read(adapter, module.a);
    read(adapter, module.b);
  }
  if (max_rank == 0 || adapter.max_rank() != max_rank) __builtin_trap();
}

// A linear, a mixture of two experts and its router.
struct Model {
  Model() {
    rig.add_target({{"l.0.q", 1, 0, 1}}, 2);
    quire::ExpertsShard shard;
    shard.name = "l.0.mlp";
    shard.num_experts = shard.hidden_size = 2;
    shard.intermediate_size = shard.mine.count = 1;
    rig.targets.add_experts(shard);
    rig.add_target({{"l.0.mlp.gate", 2, 0, 2}}, 2);
  }
  quire::LoraRig rig;
};

void give_to_model(const quire::LoraAdapter& adapter) {
  static const Model model;
  const quire::LoraRig& rig = model.rig;
  try {
    const quire::LoraWeights weights(adapter, rig.targets, rig.ops, nullptr, rig.dtype);
    if (weights.bytes() > rig.targets.max_adapter_bytes(rig.dtype)) __builtin_trap();
    has_taken_linears |= weights.at(0).a != nullptr;
    has_taken_experts |= weights.at(1).a != nullptr;
  } catch (const quire::InvalidArgument&) {
    was_not_the_models = true;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  write_files({reinterpret_cast<const char*>(data), size});
  try {
    const quire::LoraAdapter adapter = quire::LoraAdapter::open(directory());
    check(adapter);
    give_to_model(adapter);
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
         : !has_experts            ? "a parameter of experts"
         : !has_taken_linears      ? "an adapter of the model's linear"
         : !has_taken_experts      ? "an adapter of the model's experts"
         : !was_not_the_models     ? "an adapter of another model"
         : !was_not_finite         ? "a value that is not finite"
         : !was_wrong_about_config ? "a config that is refused"
         : !was_wrong_about_tensor ? "a tensor that is refused"
         : !was_wrong_about_module ? "a module that is refused"
                                   : nullptr;
}
