// Linears with adapters, without a model.
#pragma once

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "device/buffer.h"
#include "device/device_arena.h"
#include "distributed/communicator.h"
#include "layers/experts_method.h"
#include "layers/linear_method.h"
#include "layers/lora.h"
#include "quire/kernels/backend_registry.h"
#include "util/error_of.h"
#include "util/replace_all.h"
#include "util/str.h"
#include "weights/lora_adapter.h"
#include "weights/model_directory.h"
#include "weights/weight_loader.h"
#include "worker/lora_store.h"

namespace quire {

// A module of an adapter: its values, and what it is of.
struct LoraValues {
  std::string name;
  int64_t inputs = 0, outputs = 0;
  int64_t rank = 0;
  std::vector<float> a, b;  // [rank, inputs], [outputs, rank]
  int64_t num_experts = 0;  // of a parameter, that many times as many ranks
  std::string name_in_file = name;

  int64_t total_rank() const { return rank * std::max<int64_t>(1, num_experts); }
};

// In [-1, 1), in steps of 1/8: exact in every dtype.
inline std::vector<float> eighths(int64_t count, uint32_t seed) {
  std::mt19937 rng(seed);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = static_cast<float>(static_cast<int32_t>(rng() % 16) - 8) / 8;
  return values;
}

inline LoraValues random_lora(const std::string& name, int64_t inputs, int64_t outputs, int64_t rank,
                              uint32_t seed = 1) {
  return {name, inputs, outputs, rank, eighths(rank * inputs, seed), eighths(outputs * rank, seed + 1)};
}

// Of a parameter of all experts.
inline LoraValues random_lora_of_all(const std::string& name, const std::string& name_in_file,
                                     int64_t num_experts, int64_t inputs, int64_t outputs, int64_t rank,
                                     uint32_t seed = 1) {
  const int64_t ranks = num_experts * rank;
  return {name,
          inputs,
          outputs,
          rank,
          eighths(ranks * inputs, seed),
          eighths(outputs * ranks, seed + 1),
          num_experts,
          name_in_file};
}

// Of rank r and alpha 2 r: what it adds is taken twice. Without patterns all are of rank 1.
inline LoraAdapter make_adapter(const ModelDirectory& directory, const std::vector<LoraValues>& modules,
                                bool has_patterns = true) {
  constexpr float kScale = 2;
  std::vector<NamedTensor> tensors;
  std::string ranks, alphas, parameters;
  const auto tensor = [](const std::string& name, int64_t rows, int64_t columns,
                         const std::vector<float>& values) {
    return NamedTensor{
        name,
        "F32",
        {rows, columns},
        std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float))};
  };
  for (const LoraValues& module : modules) {
    const std::string name = "base_model.model." + module.name_in_file;
    tensors.push_back(tensor(name + ".lora_A.weight", module.total_rank(), module.inputs, module.a));
    tensors.push_back(tensor(name + ".lora_B.weight", module.outputs, module.total_rank(), module.b));
    if (module.num_experts > 0) parameters += str(parameters.empty() ? "" : ", ", '"', module.name, '"');
    const char* comma = ranks.empty() ? "" : ", ";
    ranks += str(comma, '"', module.name, "\": ", module.rank);
    alphas += str(comma, '"', module.name, "\": ", static_cast<float>(module.rank) * kScale);
  }
  directory.write("adapter_config.json",
                  str(R"({"peft_type": "LORA", "r": 1, "lora_alpha": 1, )", R"("rank_pattern": {)", ranks,
                      R"(}, "alpha_pattern": {)", alphas, R"(}, "target_parameters": [)", parameters, "]}"));
  if (!has_patterns)
    directory.write("adapter_config.json", R"({"peft_type": "LORA", "r": 1, "lora_alpha": 2})");
  write_safetensors(directory, tensors, "adapter_model.safetensors");
  return LoraAdapter::open(directory.path());
}

struct LoraRig {
  explicit LoraRig(int32_t max_loras = 1, int32_t max_rank = 8, DType type = DType::kFloat32,
                   bool have_experts = true, const KernelTable& table = *find_kernel_table("cpu"))
      : dtype(type), ops(table), targets(ops, max_loras, max_rank, have_experts) {
    model.write("config.json", "{}");
  }

  // A linear; its rows' names are those of the checkpoint.
  int32_t add_target(std::vector<LinearPart> parts, int64_t total_k, int64_t k_begin = 0, int64_t k = 0) {
    Checkpoint checkpoint = Checkpoint::dummy(model.path());
    const auto loader = make_host_loader();
    BuildContext build{ops, launch, checkpoint, *arena, *loader, dtype};
    LinearShard shard;
    shard.parts = std::move(parts);
    shard.total_k = total_k;
    shard.k_begin = k_begin;
    shard.k = k > 0 ? k : total_k;
    shard.max_rows = kMaxRows;
    const int32_t place = targets.add(build, shard);
    workspace_bytes = std::max(workspace_bytes, build.workspace_bytes);
    return place;
  }

  static constexpr int64_t kMaxRows = 1;
  DType dtype;
  const KernelTable& ops;
  ModelDirectory model;
  LaunchContext launch;
  std::unique_ptr<DeviceArena> arena = make_host_arena();
  size_t workspace_bytes = 0;
  LoraTargets targets;
};

// What of such an adapter lies in a slot.
inline LoraWeights load(const LoraRig& rig, const std::vector<LoraValues>& modules) {
  const ModelDirectory directory;
  return LoraWeights(make_adapter(directory, modules), rig.targets, rig.ops, nullptr, rig.dtype);
}
// How it is refused, with its directory as "D".
inline std::string refusal(const LoraRig& rig, const std::vector<LoraValues>& modules) {
  const ModelDirectory directory;
  const std::string error = error_of(
      [&] { LoraWeights(make_adapter(directory, modules), rig.targets, rig.ops, nullptr, rig.dtype); });
  return replace_all(error, directory.path(), "D");
}

}  // namespace quire
