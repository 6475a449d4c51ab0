// Mixtures of experts: tokens are sorted by expert, and each expert multiplies its own.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>

#include "convert.h"
#include "grouped_linear.h"
#include "lora_products.h"
#include "ops.h"
#include "parallel.h"

namespace quire::cpu {
namespace {

// ---- routing --------------------------------------------------------------------------------------

struct Scores {
  float score[kMaxExperts];   // what weights are made of
  float choice[kMaxExperts];  // what decides
};

void score_experts(const ExpertRoutingArgs& args, const float* logits, int32_t num_experts, Scores& out) {
  if (args.scoring == ExpertScoring::kSigmoid) {
    for (int32_t e = 0; e < num_experts; ++e) out.score[e] = 1.0F / (1.0F + std::exp(-logits[e]));
  } else {
    const float highest = *std::max_element(logits, logits + num_experts);
    float sum = 0.0F;
    for (int32_t e = 0; e < num_experts; ++e) sum += out.score[e] = std::exp(logits[e] - highest);
    for (int32_t e = 0; e < num_experts; ++e) out.score[e] /= sum;
  }
  for (int32_t e = 0; e < num_experts; ++e)
    out.choice[e] = out.score[e] + (args.correction != nullptr ? args.correction[e] : 0.0F);
}

// Experts outside of the best groups are out of the choice.
void keep_best_groups(const ExpertRoutingArgs& args, int32_t num_experts, Scores& scores) {
  constexpr float kOut = -std::numeric_limits<float>::infinity();
  const int32_t size = num_experts / args.num_groups;
  float group_score[kMaxExperts];
  for (int32_t g = 0; g < args.num_groups; ++g) {
    float first = kOut, second = kOut;
    for (int32_t e = g * size; e < (g + 1) * size; ++e) {
      const float value = scores.choice[e];
      second = std::max(second, std::min(first, value));
      first = std::max(first, value);
    }
    group_score[g] = args.correction != nullptr && size > 1 ? first + second : first;
  }
  bool keeps[kMaxExperts] = {};
  for (int32_t i = 0; i < args.num_top_groups; ++i) {
    const auto best =
        static_cast<int32_t>(std::max_element(group_score, group_score + args.num_groups) - group_score);
    keeps[best] = true;
    group_score[best] = kOut;
  }
  for (int32_t e = 0; e < num_experts; ++e) {
    if (!keeps[e / size]) scores.choice[e] = kOut;
  }
}

void route_token(const ExpertRoutingArgs& args, int64_t t, Scores& scores) {
  const auto num_experts = static_cast<int32_t>(args.logits.shape[1]);
  int32_t* ids = args.expert_ids + t * args.top_k;
  float* weights = args.weights + t * args.top_k;
  score_experts(args, reinterpret_cast<const float*>(args.logits.at(t)), num_experts, scores);
  if (args.num_top_groups < args.num_groups) keep_best_groups(args, num_experts, scores);
  float sum = 0.0F;
  for (int32_t j = 0; j < args.top_k; ++j) {
    int32_t best = -1;
    for (int32_t e = 0; e < num_experts; ++e) {
      const bool taken = std::find(ids, ids + j, e) != ids + j;
      if (!taken && (best < 0 || scores.choice[e] > scores.choice[best])) best = e;
    }
    ids[j] = best;
    sum += weights[j] = scores.score[best];
  }
  const float factor = args.renormalize ? args.scale / sum : args.scale;
  for (int32_t j = 0; j < args.top_k; ++j) weights[j] *= factor;
  if (args.counts == nullptr) return;
  for (int32_t j = 0; j < args.top_k; ++j)
    std::atomic_ref(args.counts[ids[j]]).fetch_add(1, std::memory_order_relaxed);
}

// ---- experts --------------------------------------------------------------------------------------

// Tokens computed at once: what is kept of each is its top_k intermediate rows.
constexpr int64_t kMaxSlots = 8192;

int64_t tokens_at_once(int64_t max_tokens, int32_t top_k) {
  return std::min(max_tokens, std::max<int64_t>(1, kMaxSlots / top_k));
}

// A slot is a token at one of its experts; slots of one expert lie together.
struct Places {
  int32_t* token;              // [slots] of each slot
  int32_t* slot;               // [T, top_k] of each choice; -1: none
  int32_t* begin;              // [E + 1] first slot of each expert
  LinearArgs *gate_up, *down;  // of the experts that have slots
  std::byte* gathered;         // [slots, max(H, I)] inputs of the product that comes next
  std::byte* staged;           // as `stage` rewrote them
  std::byte* intermediate;     // [slots, 2 I]
  float* out;                  // [slots, H]
  // Where there are adapters:
  int32_t* choice = nullptr;  // [slots] of each slot; then its own place
  Workspace loras{nullptr};   // for either product's
};

// Rows of the staged inputs: every expert's begin a block of their own.
int64_t max_blocks(int64_t slots, int32_t num_experts) {
  return slots / kStagedBlock + std::min<int64_t>(num_experts, slots);
}

LoraBounds lora_bounds_of(const ExpertLoraArgs::Product& product, const LinearWeight& weight, int64_t slots,
                          const ExpertLoraArgs& loras, int32_t num_experts) {
  return lora_bounds(slots, int64_t{loras.max_loras} * num_experts, weight.k, product.max_total_rank,
                     weight.dtype);
}

Places place(const Isa& isa, Workspace& memory, int64_t tokens, int32_t top_k, const ExpertWeights& experts,
             const ExpertLoraArgs* loras) {
  const LinearWeight &gate_up = *experts.gate_up, &down = *experts.down;
  const LinearKernels& kernels = isa.matmul.linear[type_index(gate_up.dtype)];
  const int64_t slots = tokens * top_k, width = std::max(gate_up.k, down.k);
  const int64_t rows = max_blocks(slots, experts.num_experts) * kStagedBlock;
  const auto size = static_cast<int64_t>(dtype_bytes(gate_up.dtype));
  Places p;
  p.token = memory.take<int32_t>(slots);
  p.slot = memory.take<int32_t>(slots);
  p.begin = memory.take<int32_t>(experts.num_experts + 1);
  p.gate_up = memory.take<LinearArgs>(std::min<int64_t>(experts.num_experts, slots));
  p.down = memory.take<LinearArgs>(std::min<int64_t>(experts.num_experts, slots));
  p.gathered = memory.take_bytes(static_cast<size_t>(slots * width * size));
  p.staged = memory.take_bytes(kernels.staged_bytes(rows, width));
  p.intermediate = memory.take_bytes(static_cast<size_t>(slots * gate_up.n * size));
  p.out = memory.take<float>(slots * down.n);
  if (loras == nullptr) return p;
  p.choice = memory.take<int32_t>(slots);
  p.loras = memory;
  Workspace for_down = memory;
  const LoraProducts first(isa, memory,
                           lora_bounds_of(loras->gate_up, gate_up, slots, *loras, experts.num_experts));
  const LoraProducts second(isa, for_down,
                            lora_bounds_of(loras->down, down, slots, *loras, experts.num_experts));
  if (for_down.used() > memory.used()) memory = for_down;
  return p;
}

// Counts, then places each choice behind those of its expert that came before. Returns how many slots there
// are.
int64_t sort_by_expert(const FusedExpertsArgs& args, int64_t first_token, int64_t tokens, const Places& p) {
  const int32_t num_experts = args.experts.num_experts;
  const int32_t* ids = args.expert_ids + first_token * args.top_k;
  const int64_t choices = tokens * args.top_k;
  std::fill_n(p.begin, num_experts + 1, 0);
  for (int64_t i = 0; i < choices; ++i) {
    if (ids[i] >= 0) ++p.begin[ids[i] + 1];
  }
  for (int32_t e = 0; e < num_experts; ++e) p.begin[e + 1] += p.begin[e];
  for (int64_t i = 0; i < choices; ++i) {
    p.slot[i] = -1;
    if (ids[i] < 0) continue;
    p.slot[i] = p.begin[ids[i]]++;
    p.token[p.slot[i]] = static_cast<int32_t>(i / args.top_k);
  }
  for (int32_t e = num_experts; e > 0; --e) p.begin[e] = p.begin[e - 1];
  p.begin[0] = 0;
  return p.begin[num_experts];
}

// Each expert's slots by adapter.
void sort_by_adapter(const FusedExpertsArgs& args, int64_t first_token, int64_t tokens, const Places& p) {
  const int32_t* row_slots = args.loras->row_slots + first_token;
  for (int64_t i = 0; i < tokens * args.top_k; ++i) {
    if (p.slot[i] >= 0) p.choice[p.slot[i]] = static_cast<int32_t>(i);
  }
  const auto is_before = [&](int32_t a, int32_t b) {
    const int32_t of_a = row_slots[a / args.top_k], of_b = row_slots[b / args.top_k];
    return of_a != of_b ? of_a < of_b : a < b;
  };
  for (int32_t e = 0; e < args.experts.num_experts; ++e)
    if (!std::is_sorted(p.choice + p.begin[e], p.choice + p.begin[e + 1], is_before))
      std::sort(p.choice + p.begin[e], p.choice + p.begin[e + 1], is_before);
  for (int32_t s = 0; s < p.begin[args.experts.num_experts]; ++s) {
    p.slot[p.choice[s]] = s;
    p.token[s] = p.choice[s] / args.top_k;
    p.choice[s] = s;
  }
}

// out += what adapters make of x, of rows that are slots.
void add_loras(const Isa& isa, const LaunchContext& ctx, const FusedExpertsArgs& args, bool is_gate_up,
               TensorView out, TensorView x, int64_t first_token, const Places& p) {
  const ExpertLoraArgs& loras = *args.loras;
  const ExpertLoraArgs::Product& which = is_gate_up ? loras.gate_up : loras.down;
  const ExpertWeights& experts = args.experts;
  Workspace memory = p.loras;
  LoraProducts products(isa, memory,
                        lora_bounds_of(which, is_gate_up ? *experts.gate_up : *experts.down, x.shape[0],
                                       loras, experts.num_experts));
  const LoraProduct product = {out, x, which.modules, which.num_modules};
  const int32_t* row_slots = loras.row_slots + first_token;
  for (int32_t e = 0; e < experts.num_experts; ++e) {
    for (int32_t first = p.begin[e], end = first; first < p.begin[e + 1]; first = end) {
      const int32_t adapter = row_slots[p.token[first]];
      while (end < p.begin[e + 1] && row_slots[p.token[end]] == adapter) ++end;
      if (adapter < 0) continue;
      const LoraSlot& slot = which.slots[adapter * loras.slot_stride];
      if (slot.a != nullptr)
        products.add(ctx, product, {&slot, e * slot.expert_stride_bytes, p.choice + first, end - first});
    }
  }
  products.multiply(ctx, product);
}

// The products of experts with slots, [out of each] = [x of each] * weight^T. Returns how many there are.
int64_t list_products(const FusedExpertsArgs& args, const Places& p, bool is_gate_up, LinearArgs* products) {
  const ExpertWeights& experts = args.experts;
  const LinearWeight& weight = is_gate_up ? *experts.gate_up : *experts.down;
  const int64_t stride = is_gate_up ? experts.gate_up_stride_bytes : experts.down_stride_bytes;
  const float* bias = is_gate_up ? experts.gate_up_bias : experts.down_bias;
  const auto size = static_cast<int64_t>(dtype_bytes(weight.dtype));
  int64_t count = 0;
  for (int32_t e = 0; e < experts.num_experts; ++e) {
    const int64_t first = p.begin[e], rows = p.begin[e + 1] - first;
    if (rows == 0) continue;
    std::byte* out = is_gate_up ? p.intermediate + first * weight.n * size
                                : reinterpret_cast<std::byte*>(p.out + first * weight.n);
    products[count++] = {.x = p.gathered + first * weight.k * size,
                         .x_stride = weight.k,
                         .m = rows,
                         .n = weight.n,
                         .k = weight.k,
                         .weight = static_cast<const std::byte*>(weight.data) + e * stride,
                         .out = out,
                         .out_stride = weight.n,
                         .out_is_bf16 = is_gate_up && weight.dtype == DType::kBFloat16,
                         .bias = bias != nullptr ? bias + e * weight.n : nullptr,
                         .staged = nullptr,
                         .scales = nullptr,
                         .zero_points = nullptr,
                         .row_sums = nullptr};
  }
  return count;
}

template <typename T>
void combine(const LaunchContext& ctx, const FusedExpertsArgs& args, int64_t first_token, int64_t tokens,
             const Places& p) {
  const int64_t n = args.out.shape[1];
  parallel_ranges(ctx, tokens, std::max<int64_t>(1, 16384 / (n * args.top_k)),
                  [&](int64_t begin, int64_t end) {
                    auto* sums = static_cast<float*>(thread_scratch(static_cast<size_t>(n) * sizeof(float)));
                    for (int64_t t = begin; t < end; ++t) {
                      std::fill_n(sums, n, 0.0F);
                      for (int64_t i = t * args.top_k; i < (t + 1) * args.top_k; ++i) {
                        if (p.slot[i] < 0) continue;
                        const float weight = args.weights[first_token * args.top_k + i];
                        const float* row = p.out + p.slot[i] * n;
                        for (int64_t c = 0; c < n; ++c) sums[c] += weight * row[c];
                      }
                      auto* out = reinterpret_cast<T*>(args.out.at(first_token + t));
                      for (int64_t c = 0; c < n; ++c) {
                        if constexpr (sizeof(T) == 2) {
                          out[c] = float_to_bf16(sums[c]);
                        } else {
                          out[c] = sums[c];
                        }
                      }
                    }
                  });
}

void compute_tokens(const Isa& isa, const LaunchContext& ctx, const FusedExpertsArgs& args,
                    int64_t first_token, int64_t tokens, const Places& p) {
  const LinearWeight &gate_up = *args.experts.gate_up, &down = *args.experts.down;
  const DType dtype = gate_up.dtype;
  const int64_t slots = sort_by_expert(args, first_token, tokens, p);
  if (args.loras != nullptr) sort_by_adapter(args, first_token, tokens, p);
  const size_t row_bytes = static_cast<size_t>(gate_up.k) * dtype_bytes(dtype);
  parallel_ranges(ctx, slots, std::max<int64_t>(1, 32768 / gate_up.k), [&](int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; ++s)
      std::memcpy(p.gathered + static_cast<size_t>(s) * row_bytes, args.x.at(first_token + p.token[s]),
                  row_bytes);
  });
  int64_t count = list_products(args, p, /*is_gate_up=*/true, p.gate_up);
  multiply_each(isa, ctx, dtype, p.gate_up, count, p.staged);
  const TensorView both(p.intermediate, dtype, slots, gate_up.n);
  if (args.loras != nullptr) {
    add_loras(isa, ctx, args, /*is_gate_up=*/true, both, TensorView(p.gathered, dtype, slots, gate_up.k),
              first_token, p);
  }
  activate_and_mul(isa, ctx, TensorView(p.gathered, dtype, slots, down.k), both, args.activation);
  count = list_products(args, p, /*is_gate_up=*/false, p.down);
  multiply_each(isa, ctx, dtype, p.down, count, p.staged);
  if (args.loras != nullptr) {
    add_loras(isa, ctx, args, /*is_gate_up=*/false, TensorView(p.out, DType::kFloat32, slots, down.n),
              TensorView(p.gathered, dtype, slots, down.k), first_token, p);
  }
  if (dtype == DType::kBFloat16) {
    combine<uint16_t>(ctx, args, first_token, tokens, p);
  } else {
    combine<float>(ctx, args, first_token, tokens, p);
  }
}

}  // namespace

void route_to_experts(const LaunchContext& ctx, const ExpertRoutingArgs& args) {
  const int64_t rows = args.logits.shape[0];
  const int64_t real = args.num_tokens != nullptr ? std::min<int64_t>(*args.num_tokens, rows) : rows;
  parallel_ranges(ctx, rows, 8, [&](int64_t begin, int64_t end) {
    Scores scores;
    for (int64_t t = begin; t < end; ++t) {
      if (t < real) {
        route_token(args, t, scores);
      } else {
        std::fill_n(args.expert_ids + t * args.top_k, args.top_k, -1);
        std::fill_n(args.weights + t * args.top_k, args.top_k, 0.0F);
      }
    }
  });
}

size_t fused_experts_workspace_bytes(const Isa& isa, int64_t max_tokens, int32_t top_k,
                                     const ExpertWeights& experts, const ExpertLoraArgs* loras) {
  Workspace memory(nullptr);
  place(isa, memory, tokens_at_once(max_tokens, top_k), top_k, experts, loras);
  return memory.used();
}

void fused_experts(const Isa& isa, const LaunchContext& ctx, const FusedExpertsArgs& args) {
  const int64_t rows = args.x.shape[0], at_once = tokens_at_once(rows, args.top_k);
  for (int64_t first = 0; first < rows; first += at_once) {
    const int64_t tokens = std::min(at_once, rows - first);
    Workspace memory(ctx.workspace);
    compute_tokens(isa, ctx, args, first, tokens,
                   place(isa, memory, tokens, args.top_k, args.experts, args.loras));
  }
}

}  // namespace quire::cpu
