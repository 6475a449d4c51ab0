// A mixture of experts: a router sends each token to a few of many feed-forward parts (Shazeer et al., 2017).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "formats/hf_config.h"
#include "layers/experts_method.h"
#include "layers/gated_mlp.h"
#include "quire/export.h"

namespace quire QUIRE_MODEL_API {

struct MoEConfig {
  int32_t hidden_size = 0;
  int32_t intermediate_size = 0;  // of each expert, of all ranks
  int32_t num_experts = 0;
  int32_t top_k = 0;
  Activation activation = Activation::kSilu;

  ExpertScoring scoring = ExpertScoring::kSoftmax;
  bool renormalize = true;
  float routed_scale = 1.0F;
  int32_t num_groups = 1, num_top_groups = 1;
  std::string router = "gate";  // "<name>.<router>.weight" [E, hidden_size]
  bool router_bias = false;
  std::string correction = {};  // "<name>.<correction>" [E]; empty: none

  ExpertSource experts;
  ExpertNames expert_names;  // of adapters
  // Parts of names that adapters have for the mixture's, and what is meant.
  std::vector<std::pair<std::string, std::string>> aliases;
  bool expert_bias = false;
  bool knows_mxfp4 = false;  // whether `experts` takes what QuantizationConfig::has_mxfp4_experts speaks of

  // An expert that every token goes to: "<name>.<shared>".
  std::string shared = {};  // empty: none
  int32_t shared_intermediate_size = 0;
  std::string shared_gate = {};  // "<name>.<shared_gate>.weight" [1, hidden_size], of a sigmoid; empty: none

  // Throws InvalidArgument, naming the key of `config`, for numbers that do not fit each other.
  void check(const HfConfig& config) const;
};

class MoE {
 public:
  using Config = MoEConfig;

  MoE(BuildContext& build, const std::string& name, const MoEConfig& config);

  //   x, out [T, hidden_size]; they do not overlap
  void forward(const ForwardContext& ctx, TensorView out, TensorView x) const;
  // The same, to `to.out`: false.
  [[nodiscard]] bool forward_add(const ForwardContext& ctx, const Addition& to, TensorView x) const {
    forward(ctx, to.out, x);
    return false;
  }

 private:
  MoEConfig config_;
  Linear router_;
  const float* correction_ = nullptr;  // [E], in the backend's memory; null: none
  size_t first_count_;                 // of ForwardContext::expert_counts
  std::unique_ptr<ExpertsMethod> experts_;
  std::optional<GatedMLP> shared_;
  Linear shared_gate_;
};

}  // namespace quire
