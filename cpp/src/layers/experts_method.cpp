#include "layers/experts_method.h"

#include <algorithm>
#include <vector>

#include "layers/dense_weight.h"
#include "layers/lora.h"
#include "layers/quantization.h"
#include "util/check.h"

namespace quire {
namespace {

class UnquantizedExpertsMethod final : public ExpertsMethod {
 public:
  UnquantizedExpertsMethod(BuildContext& build, const ExpertsShard& shard)
      : top_k_(shard.top_k), activation_(shard.activation) {
    const int64_t mine = shard.mine.count, hidden = shard.hidden_size;
    const auto gate_up = DenseWeight::stack(build, shard.num_experts, 2 * mine, hidden);
    const auto down = DenseWeight::stack(build, shard.num_experts, hidden, mine);
    gate_up_ = gate_up.front().view();
    down_ = down.front().view();
    experts_ = {.gate_up = &gate_up_,
                .down = &down_,
                .gate_up_stride_bytes = distance(gate_up),
                .down_stride_bytes = distance(down),
                .num_experts = shard.num_experts};
    float *gate_up_bias = nullptr, *down_bias = nullptr;
    if (shard.bias) {
      experts_.gate_up_bias = gate_up_bias = allocate_floats(build, shard.num_experts * 2 * mine);
      // Added once, by rank 0.
      if (build.rank == 0)
        experts_.down_bias = down_bias = allocate_floats(build, shard.num_experts * hidden);
    }
    ExpertLoraArgs loras;
    if (build.lora_targets != nullptr) lora_target_ = build.lora_targets->add_experts(shard);
    if (lora_target_ >= 0) loras = LoraStep{build.lora_targets, nullptr, {}}.of_experts(lora_target_);
    build.workspace_bytes = std::max(
        build.workspace_bytes, build.ops.fused_experts_workspace_bytes(shard.max_rows, top_k_, experts_,
                                                                       lora_target_ >= 0 ? &loras : nullptr));
    for (int32_t e = 0; e < shard.num_experts; ++e) {
      const ExpertTensors all = shard.source(build.checkpoint, shard.name, e);
      DenseWeight one = gate_up[static_cast<size_t>(e)];
      one.load_rows(build, 0, slice_rows(all.gate, shard.mine.begin, mine));
      one.load_rows(build, mine, slice_rows(all.up, shard.mine.begin, mine));
      one = down[static_cast<size_t>(e)];
      one.load_rows(build, 0, slice_columns(all.down, shard.mine.begin, mine));
      if (gate_up_bias != nullptr) {
        float* to = gate_up_bias + e * 2 * mine;
        build.loader.load(to, DType::kFloat32, slice_rows(all.gate_bias, shard.mine.begin, mine));
        build.loader.load(to + mine, DType::kFloat32, slice_rows(all.up_bias, shard.mine.begin, mine));
      }
      if (down_bias != nullptr) build.loader.load(down_bias + e * hidden, DType::kFloat32, all.down_bias);
    }
  }

  void apply(const ForwardContext& ctx, TensorView out, TensorView x,
             const ExpertRoutingArgs& routing) const override {
    QUIRE_CHECK(x.shape[1] == gate_up_.k && out.shape[1] == down_.n && x.shape[0] == out.shape[0] &&
                routing.top_k == top_k_);
    const bool has_loras = ctx.lora != nullptr && ctx.lora->changes_experts && lora_target_ >= 0;
    const ExpertLoraArgs loras = has_loras ? ctx.lora->of_experts(lora_target_) : ExpertLoraArgs{};
    const FusedExpertsArgs args = {.out = out,
                                   .x = x,
                                   .expert_ids = routing.expert_ids,
                                   .weights = routing.weights,
                                   .top_k = top_k_,
                                   .experts = experts_,
                                   .activation = activation_,
                                   .loras = has_loras ? &loras : nullptr};
    if (ctx.ops.routed_experts != nullptr) return ctx.ops.routed_experts(ctx.launch, routing, args);
    ctx.ops.route_to_experts(ctx.launch, routing);
    ctx.ops.fused_experts(ctx.launch, args);
  }

 private:
  static int64_t distance(const std::vector<DenseWeight>& weights) {
    if (weights.size() < 2) return 0;
    return static_cast<std::byte*>(weights[1].view().data) - static_cast<std::byte*>(weights[0].view().data);
  }
  static float* allocate_floats(BuildContext& build, int64_t count) {
    return reinterpret_cast<float*>(build.arena.allocate(static_cast<size_t>(count) * sizeof(float)));
  }

  int32_t top_k_;
  Activation activation_;
  LinearWeight gate_up_, down_;  // of the first expert
  ExpertWeights experts_;
  int32_t lora_target_ = -1;  // of gate_up; -1: none
};

}  // namespace

TensorView of_expert(TensorView all, int32_t expert) {
  TensorView out = slice_rows(all, expert, 1);
  out.rank = all.rank - 1;
  for (int i = 0; i < out.rank; ++i) {
    out.shape[i] = all.shape[i + 1];
    out.stride[i] = all.stride[i + 1];
  }
  out.shape[out.rank] = 1;
  return out;
}

std::unique_ptr<ExpertsMethod> make_experts_method(BuildContext& build, const ExpertsShard& shard) {
  if (build.ops.fused_experts == nullptr) {
    throw InvalidArgument(str("backend '", build.ops.backend, "' (", build.ops.variant,
                              ") has no kernels for mixtures of experts; device 'cpu' has"));
  }
  if (build.quantization != nullptr &&
      !(shard.source_knows_mxfp4 && build.quantization->has_mxfp4_experts())) {
    throw InvalidArgument(str(build.checkpoint.directory(),
                              ": weights of a mixture of experts that are quantized like this are not "
                              "supported; use the model that was quantized, in float32, float16 or bfloat16",
                              shard.source_knows_mxfp4 ? ", or one whose quant_method is mxfp4" : ""));
  }
  return std::make_unique<UnquantizedExpertsMethod>(build, shard);
}

ExpertSource experts_by_number(int64_t num_experts, int64_t hidden_size, int64_t intermediate_size,
                               const std::string& gate, const std::string& up, const std::string& down) {
  const ExpertSource in_memory = experts_in_one(num_experts, hidden_size, intermediate_size,
                                                "experts.gate_up_proj", "experts.down_proj");
  return [=](Checkpoint& checkpoint, const std::string& name, int32_t expert) {
    if (checkpoint.has(name + ".experts.gate_up_proj")) return in_memory(checkpoint, name, expert);
    const std::string each = str(name, ".experts.", expert, ".");
    ExpertTensors out;
    out.gate = checkpoint.take(each + gate + ".weight", {intermediate_size, hidden_size});
    out.up = checkpoint.take(each + up + ".weight", {intermediate_size, hidden_size});
    out.down = checkpoint.take(each + down + ".weight", {hidden_size, intermediate_size});
    return out;
  };
}

ExpertSource experts_in_one(int64_t num_experts, int64_t hidden_size, int64_t intermediate_size,
                            const std::string& gate_up, const std::string& down) {
  return [=](Checkpoint& checkpoint, const std::string& name, int32_t expert) {
    const TensorView both = of_expert(
        checkpoint.take(name + "." + gate_up, {num_experts, 2 * intermediate_size, hidden_size}), expert);
    ExpertTensors out;
    out.gate = slice_rows(both, 0, intermediate_size);
    out.up = slice_rows(both, intermediate_size, intermediate_size);
    out.down =
        of_expert(checkpoint.take(name + "." + down, {num_experts, hidden_size, intermediate_size}), expert);
    return out;
  };
}

}  // namespace quire
