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
  shape.max_total_rank = num_modules * max_rank_;
  shape.max_segments = static_cast<int32_t>(std::min<int64_t>(max_loras_, shard.max_rows));
  shape.dtype = build.dtype;
  build.workspace_bytes = std::max(build.workspace_bytes, build.ops.lora_workspace_bytes(shape));
  targets_.push_back(std::move(target));
  return static_cast<int32_t>(targets_.size()) - 1;
}

void LoraStep::add(const ForwardContext& ctx, int32_t target, TensorView out, TensorView x) const {
  const LoraTarget& what = targets->all()[static_cast<size_t>(target)];
  QUIRE_CHECK(out.shape[1] >= what.n && x.shape[1] == what.k && x.shape[0] == out.shape[0]);
  LoraArgs args;
  args.out = out;
  args.x = x;
  args.slots = slots + static_cast<ptrdiff_t>(target) * targets->max_loras();
  args.modules = what.outputs.data();
  args.num_modules = static_cast<int32_t>(what.outputs.size());
  args.batch = batch;
  ctx.ops.add_lora(ctx.launch, args);
}

}  // namespace quire
