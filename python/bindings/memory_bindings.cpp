// Plans of memory, and packed weights.
#include "quire/memory_plan.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "quire/weights.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace quire::bindings {
namespace {

nb::dict plan_as_dict(const EngineConfig& config, const std::string& device_name, int64_t device_memory) {
  MemoryPlan plan;
  std::string text;
  {
    const ReleasedGil released;
    plan = plan_memory(config, find_planned_device(config, device_name, device_memory));
    text = plan_text(plan);
  }
  nb::dict device, all;
  device["name"] = plan.device.name;
  device["memory_bytes"] = plan.device.memory_bytes;
  device["compute_capability"] = plan.device.compute_capability;
  all["architecture"] = plan.architecture;
  all["dtype"] = plan.dtype;
  all["device"] = device;
  all["tensor_parallel_size"] = plan.tensor_parallel_size;
  all["max_model_len"] = plan.max_model_len;
  all["max_num_seqs"] = plan.max_num_seqs;
  all["max_num_batched_tokens"] = plan.max_num_batched_tokens;
  all["memory"] = memory_as_dict(plan.memory);
  all["total_bytes"] = plan.memory.total();
  all["peak_bytes"] = plan.peak_bytes();
  all["budget_bytes"] = plan.budget_bytes;
  all["kv_bytes_per_token"] = plan.kv_bytes_per_token;
  all["kv_bytes_per_block"] = plan.kv_bytes_per_block;
  all["block_size"] = plan.block_size;
  all["num_blocks"] = plan.num_blocks;
  all["kv_bytes_of_one"] = plan.kv_bytes_of_one;
  all["max_concurrency"] = plan.max_concurrency;
  all["fits"] = plan.fits();
  all["problem"] = plan.problem;
  nb::list suggestions;
  for (const PlanSuggestion& suggestion : plan.suggestions) {
    nb::dict one;
    one["field"] = suggestion.field;
    one["value"] = suggestion.value;
    suggestions.append(one);
  }
  all["suggestions"] = suggestions;
  all["text"] = text;
  return all;
}

}  // namespace

nb::dict memory_as_dict(const RankMemory& memory) {
  nb::dict items;
  items["weights"] = memory.weights;
  items["activations"] = memory.activations;
  items["workspace"] = memory.workspace;
  items["batch"] = memory.batch;
  items["adapters"] = memory.adapters;
  items["graphs"] = memory.graphs;
  items["exchange"] = memory.exchange;
  items["kv_cache"] = memory.kv_cache;
  return items;
}

void bind_memory(nb::module_& m) {
  m.def("plan_memory", plan_as_dict, "config"_a, "device_name"_a, "device_memory"_a,
        nb::sig("def plan_memory(config: EngineConfig, device_name: str, device_memory: int) -> "
                "dict[str, typing.Any]"),
        "What an engine would take; see quire/memory_plan.h.");
  m.def(
      "pack_weights",
      [](const EngineConfig& config, const std::string& directory) {
        const ReleasedGil released;
        return pack_weights(config, directory);
      },
      "config"_a, "directory"_a,
      "Writes packed weights to a directory, and returns the files' paths; see quire/weights.h.");
}

}  // namespace quire::bindings
