#include "layers/lora.h"

#include <algorithm>

#include "layers/experts_method.h"
#include "util/check.h"

namespace quire {

int32_t LoraTargets::add(BuildContext& build, const LinearShard& shard) {
  LoraTarget target;
  target.total_k = shard.total_k;
  target.k_begin = shard.k_begin;
  target.k = shard.k;
  for (const LinearPart& part : shard.parts) {
    // Parts of one tensor follow each other.
    const std::string name = known_name(part.name);
    if (target.modules.empty() || target.modules.back().name != name) {
      target.modules.push_back({name, part.total_rows, {}});
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

int32_t LoraTargets::add_experts(const ExpertsShard& shard) {
  if (!have_experts_) return -1;
  const int64_t begin = shard.mine.begin, mine = shard.mine.count;
  const int64_t inter = shard.intermediate_size, hidden = shard.hidden_size;
  const std::string all = shard.name + ".experts.", each = all + "*.";
  const ExpertNames& names = shard.names;
  const int64_t step = names.take_turns ? 2 : 1, up = names.take_turns ? 1 : inter;
  const auto name = [&](const std::string& text) { return known_name(text); };
  LoraTarget gate_up;
  gate_up.modules = {{name(each + names.gate), inter, {{begin, mine}}},
                     {name(each + names.up), inter, {{begin, mine}}},
                     {name(all + "gate_up_proj"),
                      2 * inter,
                      {{step * begin, mine, step}, {up + step * begin, mine, step}},
                      /*is_of_all=*/true}};
  gate_up.outputs = {{0, mine}, {mine, mine}, {0, 2 * mine}};
  gate_up.n = 2 * mine;
  gate_up.total_k = gate_up.k = hidden;
  LoraTarget down;
  down.modules = {{name(each + names.down), hidden, {{0, hidden}}},
                  {name(all + "down_proj"), hidden, {{0, hidden}}, /*is_of_all=*/true}};
  down.outputs = {{0, hidden}, {0, hidden}};
  down.n = hidden;
  down.total_k = inter;
  down.k_begin = begin;
  down.k = mine;
  gate_up.num_experts = down.num_experts = shard.num_experts;
  targets_.push_back(std::move(gate_up));
  targets_.push_back(std::move(down));
  return static_cast<int32_t>(targets_.size()) - 2;
}

void LoraTargets::add_alias(const std::string& from, const std::string& to) {
  const std::pair alias(from, to);
  if (std::ranges::find(aliases_, alias) == aliases_.end()) aliases_.push_back(alias);
}

std::string LoraTargets::known_name(std::string name) const {
  for (const auto& [from, to] : aliases_) {
    const size_t at = name.find(from);
    if (at != name.npos) name.replace(at, from.size(), to);
  }
  return name;
}

size_t LoraTargets::matrix_bytes(int64_t n, int64_t k, DType dtype) const {
  constexpr size_t kAlignment = 64;
  const size_t bytes = ops_.linear_weight_bytes(n, k, dtype);
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

size_t LoraTargets::max_adapter_bytes(DType dtype) const {
  size_t bytes = 0;
  for (const LoraTarget& target : targets_) {
    size_t b = 0, of_all = 0;
    for (size_t m = 0; m < target.modules.size(); ++m) {
      const size_t one = matrix_bytes(target.outputs[m].num_outputs, padded(max_rank_), dtype);
      (target.modules[m].is_of_all ? of_all : b) += one;
    }
    const size_t each = matrix_bytes(max_total_rank(target), target.k, dtype) + std::max(b, of_all);
    bytes += each * static_cast<size_t>(std::max(1, target.num_experts));
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

ExpertLoraArgs LoraStep::of_experts(int32_t target) const {
  const auto product = [&](int32_t which) {
    const LoraTarget& what = targets->all()[static_cast<size_t>(which)];
    return ExpertLoraArgs::Product{slots + which, what.outputs.data(),
                                   static_cast<int32_t>(what.outputs.size()), targets->max_total_rank(what)};
  };
  return {.gate_up = product(target),
          .down = product(target + 1),
          .slot_stride = static_cast<int64_t>(targets->all().size()),
          .max_loras = targets->max_loras(),
          .row_slots = batch.row_slots};
}

}  // namespace quire
