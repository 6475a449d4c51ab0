// Mixtures of experts: which experts a token goes to, and what they compute of it.
#pragma once

#include <cstdint>

#include "quire/kernels/lora_ops.h"
#include "quire/kernels/tensor_view.h"

namespace quire {

struct LinearWeight;
enum class Activation : uint8_t;

// Experts and choices that ops hold in registers or on a stack.
inline constexpr int32_t kMaxExperts = 1024;
inline constexpr int32_t kMaxExpertsPerToken = 32;
inline constexpr int32_t kMaxExpertGroups = 32;

enum class ExpertScoring : uint8_t {
  kSoftmax,  // over all experts (Shazeer et al., 2017)
  kSigmoid,  // each by itself (DeepSeek-V3, 2024)
};

// The top_k experts of each token, the likeliest first, ties by lowest id.
struct ExpertRoutingArgs {
  TensorView logits = {};             // [T, E] fp32
  const float* correction = nullptr;  // [E] added to the scores for the choice alone; null: none
  ExpertScoring scoring = ExpertScoring::kSoftmax;
  int32_t top_k = 1;
  // Experts are in so many groups of equal size, of which those with the best scores have the choice: by the
  // sum of their two highest with a correction (DeepSeek-V3), else by their highest (DeepSeek-V2).
  int32_t num_groups = 1, num_top_groups = 1;
  bool renormalize = false;  // weights are divided by their sum
  float scale = 1.0F;        // and then multiplied by this
  // [1] tokens from there on are padding and go nowhere; null: none are.
  const int32_t* num_tokens = nullptr;
  int32_t* expert_ids = nullptr;  // [T, top_k] out; -1 of padding
  float* weights = nullptr;       // [T, top_k] out
  uint64_t* counts = nullptr;     // [E] each grows by the tokens that chose it; null: nobody counts
};

// The weights of E experts, each as the backend's products read it, equal distances apart.
struct ExpertWeights {
  const LinearWeight* gate_up = nullptr;  // of the first expert: [2 I, H], the gate's rows, then up's
  const LinearWeight* down = nullptr;     // of the first expert: [H, I]
  int64_t gate_up_stride_bytes = 0, down_stride_bytes = 0;
  const float* gate_up_bias = nullptr;  // [E, 2 I]; null: none
  const float* down_bias = nullptr;     // [E, H]; null: none
  int32_t num_experts = 0;
};

// What adapters add to both products of each expert, as LoraArgs has it of a linear: to gate_up's before the
// activation, to down's before the sum over experts.
struct ExpertLoraArgs {
  struct Product {
    const LoraSlot* slots = nullptr;  // that of slot s: slots[s * slot_stride]
    const LoraModule* modules =
        nullptr;  // [num_modules] on the host; those that one adapter has are disjoint
    int32_t num_modules = 0;
    int32_t max_total_rank = 0;  // of any slot
  };
  Product gate_up, down;
  int64_t slot_stride = 1;
  int32_t max_loras = 0;               // in a batch
  const int32_t* row_slots = nullptr;  // [T] as LoraBatch has them
};

// out[t] = sum over j of weights[t, j] * down(activation(gate(x[t])) * up(x[t])) of expert expert_ids[t, j],
// where that is not negative. Sums over j are in fp32, in the order of j.
struct FusedExpertsArgs {
  TensorView out, x;          // [T, H] fp32 | 16-bit, alike; they do not overlap
  const int32_t* expert_ids;  // [T, top_k]
  const float* weights;       // [T, top_k]
  int32_t top_k = 0;
  ExpertWeights experts;
  Activation activation;
  const ExpertLoraArgs* loras = nullptr;  // null: no row has an adapter
};

}  // namespace quire
