#include "models/dry_run.h"

#include <algorithm>
#include <vector>

namespace quire {
namespace {

template <typename... Args>
void silence(void (*&op)(Args...)) {
  if (op != nullptr) op = [](Args...) {};
}
template <typename... Args>
void silence(bool (*&op)(Args...)) {
  if (op != nullptr) op = [](Args...) { return false; };
}

// Whatever a forward pass may launch; a null op stays null, because layers ask.
KernelTable silent(KernelTable table) {
  silence(table.embedding);
  silence(table.rms_norm);
  silence(table.fused_add_rms_norm);
  silence(table.fused_norm_add_rms_norm);
  silence(table.layer_norm);
  silence(table.rotary_embedding);
  silence(table.rotary_embedding_and_write_kv);
  silence(table.activate);
  silence(table.activate_and_mul);
  silence(table.soft_cap);
  silence(table.scale);
  silence(table.add);
  silence(table.gate_rows);
  silence(table.gather_rows);
  silence(table.linear);
  silence(table.linear_add);
  silence(table.linear_activate_and_mul);
  silence(table.route_to_experts);
  silence(table.fused_experts);
  silence(table.routed_experts);
  silence(table.add_lora);
  silence(table.linear_add_lora);
  silence(table.linear_add_lora_activate_and_mul);
  silence(table.plan_attention);
  silence(table.write_kv_cache);
  silence(table.paged_attention);
  return table;
}

}  // namespace

size_t dry_run_bytes(const Model& model, const KernelTable& ops, const Communicator& communicator,
                     int64_t num_tokens, int64_t num_logits) {
  const KernelTable table = silent(ops);
  const LaunchContext launch;
  const auto nobody = make_planned_communicator(communicator.rank(), communicator.world_size(), 0);
  ActivationArena arena(ActivationArena::Measuring{});
  const size_t num_layers = model.kv_cache_specs().size();
  const std::vector<KVCacheView> kv_caches(num_layers);
  const std::vector<int32_t> groups(num_layers), planning_layers(1);
  const std::vector<AttentionMetadata> metadata(1);
  const ForwardContext ctx{table, launch, *nobody, arena, kv_caches, groups, metadata, planning_layers};
  ModelInput input;
  input.input_ids = input.positions = TensorView(nullptr, DType::kInt32, num_tokens);
  const TensorView hidden = model.forward(ctx, input);
  const TensorView rows = arena.take(hidden.dtype, num_logits, model.hidden_size());
  model.compute_logits(ctx, TensorView(nullptr, DType::kFloat32, num_logits, model.vocab_size()), rows);
  // What is made of some rows may come on top of what was made of all.
  arena.release(0);
  input.wanted_rows = TensorView(nullptr, DType::kInt32, std::min(num_logits, num_tokens / 2));
  model.forward(ctx, input);
  return arena.peak();
}

}  // namespace quire
