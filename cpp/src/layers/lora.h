// Where low-rank adapters (Hu et al., "LoRA", 2021) add to a model, and what they add in a step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "layers/context.h"
#include "layers/linear_method.h"
#include "quire/export.h"

namespace quire QUIRE_MODEL_API {

// A linear of the checkpoint, as far as it is this rank's.
struct LoraTargetModule {
  std::string name;
  int64_t total_rows = 0;
  struct Rows {
    int64_t begin = 0, count = 0;
  };
  std::vector<Rows> rows;  // in the order of the outputs
};

// A linear of the model, which has one or more of them stacked.
struct LoraTarget {
  std::vector<LoraTargetModule> modules;
  std::vector<LoraModule> outputs;  // of each module
  int64_t n = 0;
  int64_t total_k = 0, k_begin = 0, k = 0;
};

// While a model with adapters is built: the linears say what they are. Afterwards it does not change.
class LoraTargets {
 public:
  // What adapters may be: they take so much of every target.
  LoraTargets(int32_t max_loras, int32_t max_rank) : max_loras_(max_loras), max_rank_(max_rank) {}

  // Returns its place among them; grows build.workspace_bytes by what `add_lora` needs.
  int32_t add(BuildContext& build, const LinearShard& shard);

  const std::vector<LoraTarget>& all() const { return targets_; }
  int32_t max_loras() const { return max_loras_; }
  int32_t max_rank() const { return max_rank_; }

 private:
  std::vector<LoraTarget> targets_;
  int32_t max_loras_, max_rank_;
};

// A step in which some rows have an adapter.
struct LoraStep {
  const LoraTargets* targets = nullptr;
  const LoraSlot* slots = nullptr;  // [targets, max_loras] in the backend's memory
  LoraBatch batch;

  // out[t, :] += what t's adapter makes of x[t, :], at the target with this place.
  //   out [T, n], x [T, k]
  void add(const ForwardContext& ctx, int32_t target, TensorView out, TensorView x) const;
};

}  // namespace quire
