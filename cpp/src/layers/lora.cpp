#include "layers/lora.h"

#include <algorithm>

#include "util/check.h"

namespace quire {

int32_t LoraTargets::add(BuildContext& build, const LinearShard& shard) {
  LoraTarget target;
  target.total_k = shard.total_k;
  target.k_begin = shard.k_begin;
  target.k = shard.k;
  for (const LinearPart& part : shard.parts) {
    // Parts of one tensor follow each other.
    if (target.modules.empty() || target.modules.back().name != part.name) {
      target.modules.push_back({part.name, part.total_rows, {}});
      target.outputs.push_back({target.n, 0});
    }
    target.modules.back().rows.push_back({part.row_begin, part.num_rows});
    target.outputs.back().num_outputs += part.num_rows;
    target.n += part.num_rows;
  }
  const auto num_modules = static_cast<int32_t>(target.modules.size());
  QUIRE_CHECK(num_modules <= kMaxLoraModules, "a linear of ", num_modules, " modules");
  LoraShape shape;
  shape.max_tokens = shard.max_rows;
  shape.n = target.n;
  shape.k = target.k;
  shape.max_total_rank = max_total_rank(target);
  shape.max_loras = max_loras_;
  shape.dtype = build.dtype;
  build.workspace_bytes = std::max(build.workspace_bytes, build.ops.lora_workspace_bytes(shape));
  targets_.push_back(std::move(target));
  return static_cast<int32_t>(targets_.size()) - 1;
}

size_t LoraTargets::matrix_bytes(int64_t n, int64_t k, DType dtype) const {
  constexpr size_t kAlignment = 64;
  const size_t bytes = ops_.linear_weight_bytes(n, k, dtype);
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

size_t LoraTargets::max_adapter_bytes(DType dtype) const {
  size_t bytes = 0;
  for (const LoraTarget& target : targets_) {
    bytes += matrix_bytes(max_total_rank(target), target.k, dtype);
    for (const LoraModule& module : target.outputs)
      bytes += matrix_bytes(module.num_outputs, padded(max_rank_), dtype);
  }
  return bytes;
}

LoraArgs LoraStep::args_of(int32_t target, TensorView out, TensorView x) const {
  const LoraTarget& what = targets->all()[static_cast<size_t>(target)];
  QUIRE_CHECK(out.shape[1] >= what.n && x.shape[1] == what.k && x.shape[0] == out.shape[0]);
  LoraArgs args;
  args.out = out;
  args.x = x;
  args.slots = slots + target;
  args.slot_stride = static_cast<int64_t>(targets->all().size());
  args.modules = what.outputs.data();
  args.num_modules = static_cast<int32_t>(what.outputs.size());
  args.max_total_rank = targets->max_total_rank(what);
  args.max_segments = targets->max_segments(x.shape[0]);
  args.batch = batch;
  return args;
}

}  // namespace quire
