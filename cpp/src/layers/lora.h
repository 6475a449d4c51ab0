// Where low-rank adapters (Hu et al., "LoRA", 2021) add to a model, and what they add in a step.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
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

// How many segments rows of up to so many adapters come to.
inline int32_t max_lora_segments(const KernelTable& ops, int32_t max_loras, int64_t num_rows) {
  const int64_t slots = int64_t{max_loras} + 1;  // and rows that have none
  return static_cast<int32_t>(num_rows / ops.lora_segment_rows + std::min(slots, num_rows));
}

// While a model with adapters is built: the linears say what they are. Afterwards it does not change.
class LoraTargets {
 public:
  // What adapters may be: they take so much of every target. `ops` lives longer.
  LoraTargets(const KernelTable& ops, int32_t max_loras, int32_t max_rank)
      : ops_(ops), max_loras_(max_loras), max_rank_(max_rank) {}

  // Returns its place among them; grows build.workspace_bytes by what `add_lora` needs.
  int32_t add(BuildContext& build, const LinearShard& shard);

  const std::vector<LoraTarget>& all() const { return targets_; }
  int32_t max_loras() const { return max_loras_; }
  int32_t max_rank() const { return max_rank_; }
  // As a LoraSlot has it.
  int32_t padded(int32_t rank) const {
    return (rank + ops_.lora_rank_multiple - 1) / ops_.lora_rank_multiple * ops_.lora_rank_multiple;
  }
  // Of a batch with so many rows.
  int32_t max_segments(int64_t num_rows) const { return max_lora_segments(ops_, max_loras_, num_rows); }
  int32_t segment_rows() const { return ops_.lora_segment_rows; }
  // Whether batches have rows without an adapter, too.
  bool lists_all_rows() const { return ops_.linear_add_lora != nullptr; }

  // Bytes of a matrix of an adapter, and what all of them take of the largest.
  size_t matrix_bytes(int64_t n, int64_t k, DType dtype) const;
  size_t max_adapter_bytes(DType dtype) const;

 private:
  int32_t max_total_rank(const LoraTarget& target) const {
    return static_cast<int32_t>(target.modules.size()) * padded(max_rank_);
  }

  friend struct LoraStep;
  const KernelTable& ops_;
  std::vector<LoraTarget> targets_;
  int32_t max_loras_, max_rank_;
};

// Rows of a step, on the host, as LoraBatch has them.
struct LoraRows {
  std::span<const int32_t> rows;
  std::span<const LoraSegment> segments;
  int32_t num_with_adapter = 0;  // segments
};

// A step in which some rows have an adapter.
struct LoraStep {
  const LoraTargets* targets = nullptr;
  const LoraSlot* slots = nullptr;  // [max_loras, targets] in the backend's memory
  LoraBatch batch;

  // What adapters add to the target with this place.
  //   out [T, n], x [T, k]
  LoraArgs args_of(int32_t target, TensorView out, TensorView x) const;
};

}  // namespace quire
