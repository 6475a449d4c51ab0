// Where low-rank adapters (Hu et al., "LoRA", 2021) add to a model, and what they add in a step.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "layers/context.h"
#include "layers/linear_method.h"
#include "quire/export.h"

namespace quire QUIRE_MODEL_API {

struct ExpertsShard;

// A linear of the checkpoint, as far as it is this rank's.
struct LoraTargetModule {
  std::string name;  // as LoraTargets::known_name has it; of an expert with '*' for its number
  int64_t total_rows = 0;
  struct Rows {
    int64_t begin = 0, count = 0, step = 1;
  };
  std::vector<Rows> rows;  // in the order of the outputs
  bool is_of_all = false;  // of a mixture: a parameter that has all experts' instead of one's
};

// A linear of the model, which has one or more of them stacked; or one of the two of each expert of a
// mixture: an adapter has those of single experts, or the parameter of all, which is the last module.
struct LoraTarget {
  std::vector<LoraTargetModule> modules;
  std::vector<LoraModule> outputs;  // of each module
  int64_t n = 0;
  int64_t total_k = 0, k_begin = 0, k = 0;
  int32_t num_experts = 0;  // 0: a linear

  // As many as one adapter has.
  int32_t max_modules() const { return static_cast<int32_t>(modules.size()) - (num_experts > 0 ? 1 : 0); }
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
  LoraTargets(const KernelTable& ops, int32_t max_loras, int32_t max_rank, bool have_experts = true)
      : ops_(ops), max_loras_(max_loras), max_rank_(max_rank), have_experts_(have_experts) {}

  // Returns its place among them; grows build.workspace_bytes by what `add_lora` needs.
  int32_t add(BuildContext& build, const LinearShard& shard);
  // Of gate_up; that of down is the next one. -1 where adapters may not change experts.
  int32_t add_experts(const ExpertsShard& shard);
  // Adapters may have `from` in a name where `to` is meant.
  void add_alias(const std::string& from, const std::string& to);
  // The name with what is meant.
  std::string known_name(std::string name) const;

  const std::vector<LoraTarget>& all() const { return targets_; }
  int32_t max_loras() const { return max_loras_; }
  int32_t max_rank() const { return max_rank_; }
  // Whether adapters may change those of mixtures, should there be any.
  bool have_experts() const { return have_experts_; }
  // Whether the model has some that they may.
  bool has_mixtures() const {
    return std::ranges::any_of(targets_, [](const LoraTarget& target) { return target.num_experts > 0; });
  }
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
  int32_t max_total_rank(const LoraTarget& target) const { return target.max_modules() * padded(max_rank_); }

  friend struct LoraStep;
  const KernelTable& ops_;
  std::vector<LoraTarget> targets_;
  std::vector<std::pair<std::string, std::string>> aliases_;
  int32_t max_loras_, max_rank_;
  bool have_experts_;
};

// Rows of a step, on the host, as LoraBatch has them.
struct LoraRows {
  std::span<const int32_t> rows;
  std::span<const LoraSegment> segments;
  int32_t num_with_adapter = 0;        // segments
  std::span<const int32_t> row_slots;  // empty: no adapter of them changes experts
};

// What the adapters of a step change.
enum class LoraUse : uint8_t { kNone, kLinears, kExperts };
inline LoraUse lora_use_of(const LoraRows& rows) {
  if (rows.segments.empty()) return LoraUse::kNone;
  return rows.row_slots.empty() ? LoraUse::kLinears : LoraUse::kExperts;
}

// A step in which some rows have an adapter.
struct LoraStep {
  const LoraTargets* targets = nullptr;
  const LoraSlot* slots = nullptr;  // [max_loras, targets] in the backend's memory
  LoraBatch batch;
  bool changes_experts = false;  // else mixtures are as without adapters

  // What adapters add to the target with this place.
  //   out [T, n], x [T, k]
  LoraArgs args_of(int32_t target, TensorView out, TensorView x) const;
  // What adapters add to experts, at the target of gate_up with this place. Lives no longer than the step.
  ExpertLoraArgs of_experts(int32_t target) const;
};

}  // namespace quire
