#include "layers/moe.h"

#include <algorithm>

#include "layers/lora.h"
#include "util/str.h"

namespace quire {

void MoEConfig::check(const HfConfig& config) const {
  if (num_experts > kMaxExperts)
    config.fail(str("there are ", num_experts, " experts; at most ", kMaxExperts, " are supported"));
  if (top_k > num_experts || top_k > kMaxExpertsPerToken) {
    config.fail(str("'num_experts_per_tok' ", top_k, " is more than ",
                    num_experts < kMaxExpertsPerToken ? "the number of experts, " : "is supported, ",
                    std::min(num_experts, kMaxExpertsPerToken)));
  }
  if (num_experts % num_groups != 0 || num_groups > kMaxExpertGroups) {
    config.fail(str("'n_group' ", num_groups, " must divide the number of experts, ", num_experts,
                    ", and be at most ", kMaxExpertGroups));
  }
  if (num_top_groups > num_groups || top_k > num_experts / num_groups * num_top_groups)
    config.fail(str("'topk_group' ", num_top_groups, " must be at most 'n_group', ", num_groups,
                    ", and leave 'num_experts_per_tok', ", top_k, ", experts to choose from"));
}

MoE::MoE(BuildContext& build, const std::string& name, const MoEConfig& config)
    : config_(config), first_count_(build.add_expert_counts(name, config.num_experts)) {
  if (build.lora_targets != nullptr) {
    for (const auto& [from, to] : config.aliases) build.lora_targets->add_alias(from, to);
  }
  const Shard mine = exact_shard(build, config.intermediate_size, "the intermediate size of experts,");
  router_ = Linear::replicated(build, name + "." + config.router, config.num_experts, config.hidden_size,
                               config.router_bias);
  if (!config.correction.empty()) {
    const TensorView values = build.checkpoint.take(name + "." + config.correction, {config.num_experts});
    auto* to = reinterpret_cast<float*>(
        build.arena.allocate(static_cast<size_t>(config.num_experts) * sizeof(float)));
    build.loader.load(to, DType::kFloat32, values);
    correction_ = to;
  }
  experts_ = make_experts_method(build, {.name = name,
                                         .num_experts = config.num_experts,
                                         .top_k = config.top_k,
                                         .hidden_size = config.hidden_size,
                                         .intermediate_size = config.intermediate_size,
                                         .bias = config.expert_bias,
                                         .mine = mine,
                                         .activation = config.activation,
                                         .source = config.experts,
                                         .names = config.expert_names,
                                         .source_knows_mxfp4 = config.knows_mxfp4,
                                         .max_rows = build.max_num_tokens});
  if (config.shared.empty()) return;
  shared_.emplace(build, name + "." + config.shared,
                  GatedMLPConfig{config.hidden_size, config.shared_intermediate_size, config.activation});
  if (!config.shared_gate.empty()) {
    shared_gate_ =
        Linear::replicated(build, name + "." + config.shared_gate, 1, config.hidden_size, /*bias=*/false);
  }
}

void MoE::forward(const ForwardContext& ctx, TensorView out, TensorView x) const {
  const size_t mark = ctx.arena.mark();
  const int64_t T = x.shape[0];
  const TensorView logits = ctx.arena.take(DType::kFloat32, T, config_.num_experts);
  const TensorView expert_ids = ctx.arena.take(DType::kInt32, T, config_.top_k);
  const TensorView weights = ctx.arena.take(DType::kFloat32, T, config_.top_k);
  router_.forward(ctx, logits, x);
  uint64_t* counts = ctx.expert_counts != nullptr ? ctx.expert_counts + first_count_ : nullptr;
  experts_->apply(ctx, out, x,
                  {.logits = logits,
                   .correction = correction_,
                   .scoring = config_.scoring,
                   .top_k = config_.top_k,
                   .num_groups = config_.num_groups,
                   .num_top_groups = config_.num_top_groups,
                   .renormalize = config_.renormalize,
                   .scale = config_.routed_scale,
                   .num_tokens = ctx.num_tokens.as<int32_t>(),
                   .expert_ids = expert_ids.as<int32_t>(),
                   .weights = weights.as<float>(),
                   .counts = counts});
  if (shared_) {
    const TensorView shared = ctx.arena.take(x.dtype, T, config_.hidden_size);
    shared_->forward_part(ctx, shared, x);
    if (!config_.shared_gate.empty()) {
      const TensorView gate = ctx.arena.take(DType::kFloat32, T, 1);
      shared_gate_.forward(ctx, gate, x);
      ctx.ops.gate_rows(ctx.launch, shared, gate);
    }
    ctx.ops.add(ctx.launch, out, shared);
  }
  ctx.communicator.all_reduce_sum(ctx.launch, out);
  ctx.arena.release(mark);
}

}  // namespace quire
