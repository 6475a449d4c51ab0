// The experts of one token: matrices times vectors, each weight read once. No plan is needed, and the second
// product adds the experts up. T is 16-bit, rows begin at multiples of 16 bytes.
//
// The choice can be a part of the first product: each of its blocks makes it by itself, so that no kernel
// stands between the router's product and this one.
#pragma once

#include "common/divisor.h"
#include "common/rows.cuh"
#include "experts/expert_choice.cuh"
#include "experts/product.cuh"

namespace quire::cuda {

template <typename T>
struct OneToken {
  const int32_t* expert_ids;            // [top_k]; -1: none
  const float* weights;                 // [top_k]
  const T* x;                           // [H]
  const T* gate_up;                     // [E][2 I, H]
  const T* down;                        // [E][H, I]
  int64_t gate_up_stride, down_stride;  // elements between experts
  const float *gate_up_bias, *down_bias;
  T* inner;  // [top_k, I]
  T* out;    // [H]
  int top_k, hidden, intermediate;
  Divisor by_intermediate;
  Activation activation;
};

// What either product has to know of the choices, shared by a block.
struct Choices {
  int expert[kMaxExpertsPerToken];
  float weight[kMaxExpertsPerToken];

  template <typename T>
  __device__ void load(const OneToken<T>& p) {
    const int i = static_cast<int>(threadIdx.x);
    if (i < p.top_k) {
      expert[i] = __ldcg(p.expert_ids + i);
      weight[i] = __ldcg(p.weights + i);
    }
  }
};

// An output is one of a choice's: the gate's row and up's. Output i of choice j is the j * intermediate +
// i-th.
template <typename T>
struct GateUpRows {
  using Element = T;
  using Shared = Choices;
  using Constants = float2;
  static constexpr int kRowsOfOutput = 2;
  static constexpr bool kSegmented = false;

  OneToken<T> p;

  __host__ __device__ int num_outputs() const { return p.top_k * p.intermediate; }
  __host__ __device__ int segments() const { return 1; }
  __host__ __device__ int depth() const { return p.hidden; }
  __device__ void start(Choices& choices) const {
    wait_for_inputs();
    choices.load(p);
  }
  // Not earlier: the next kernel reads the choices at once, which are there by now.
  __device__ void started(Choices& /*choices*/) const { let_next_start(); }
  __device__ int run(int output) const { return p.intermediate - p.by_intermediate.rest(output); }
  __device__ const T* weight(const Choices& choices, int output, int /*segment*/, int row) const {
    const int expert = choices.expert[p.by_intermediate.quotient(output)];
    if (expert < 0) return nullptr;
    const int at = p.by_intermediate.rest(output) + row * p.intermediate;
    return p.gate_up + expert * p.gate_up_stride + static_cast<int64_t>(at) * p.hidden;
  }
  __device__ const T* values() const { return p.x; }
  __device__ float scale(const Choices& /*choices*/, int /*segment*/) const { return 1.0F; }
  __device__ float2 constants(const Choices& choices, int output) const {
    const int expert = choices.expert[p.by_intermediate.quotient(output)];
    if (p.gate_up_bias == nullptr || expert < 0) return {};
    const float* bias = p.gate_up_bias + static_cast<int64_t>(expert) * 2 * p.intermediate;
    const int at = p.by_intermediate.rest(output);
    return {bias[at], bias[at + p.intermediate]};
  }
  __device__ void finish(const Choices& choices, int output, const float (&sums)[2], float2 added) const {
    const bool is_choice = choices.expert[p.by_intermediate.quotient(output)] >= 0;
    p.inner[output] =
        from_float<T>(is_choice ? activate_gated(sums[0] + added.x, sums[1] + added.y, p.activation) : 0.0F);
  }
};

// What a block that chooses has beside the choices.
template <int kChoosingWarps>
struct ChoicesAndMemory : Choices {
  typename ExpertChoice<kChoosingWarps>::Memory memory;
};

// The same of experts that are not chosen yet: each block chooses, the first writes it down for all who come
// later.
template <typename T, int kChoosingWarps>
struct ChoosingGateUpRows : GateUpRows<T> {
  using Choice = ExpertChoice<kChoosingWarps>;
  using Shared = ChoicesAndMemory<kChoosingWarps>;

  ExpertRoutingArgs routing;

  __device__ void start(Shared& shared) const {
    if (static_cast<int>(threadIdx.x) >= 32 * kChoosingWarps) return;
    const Choice choice(routing);
    wait_for_inputs();
    choice.choose(routing, 0, shared.memory, shared.expert);
  }
  __device__ void started(Shared& shared) const {
    // The second product reads the choices ahead, when all blocks of this kernel have let it start. The first
    // block does so when what it wrote has come to where every multiprocessor looks (Choices::load passes by
    // the L1 cache), and in the warp that wrote it: of a block's threads the first that does it counts. That
    // block has the time: its stretch of rows is no longer than any other's.
    if (blockIdx.x > 0) return let_next_start();
    const int i = static_cast<int>(threadIdx.x);
    if (i >= 32) return;
    Choice::write(routing, 0, shared.memory, shared.expert);
    __threadfence();
    __syncwarp();
    let_next_start();
    if (i < routing.top_k) count_choice(routing, shared.expert[i]);
  }
};

// Segments are the choices, weighed.
template <typename T>
struct DownRows {
  using Element = T;
  using Shared = Choices;
  using Constants = float;
  static constexpr int kRowsOfOutput = 1;
  static constexpr bool kSegmented = true;

  OneToken<T> p;

  __host__ __device__ int num_outputs() const { return p.hidden; }
  __host__ __device__ int segments() const { return p.top_k; }
  __host__ __device__ int depth() const { return p.intermediate; }
  __device__ void start(Choices& choices) const {
    choices.load(p);
    let_next_start();
  }
  __device__ void started(Choices& /*choices*/) const {}
  __device__ int run(int output) const { return p.hidden - output; }
  __device__ const T* weight(const Choices& choices, int output, int segment, int /*row*/) const {
    const int expert = choices.expert[segment];
    if (expert < 0) return nullptr;
    return p.down + expert * p.down_stride + static_cast<int64_t>(output) * p.intermediate;
  }
  __device__ const T* values() const { return p.inner; }
  __device__ float scale(const Choices& choices, int segment) const { return choices.weight[segment]; }
  __device__ float constants(const Choices& choices, int output) const {
    float sum = 0.0F;
    for (int i = 0; p.down_bias != nullptr && i < p.top_k; ++i) {
      const int expert = choices.expert[i];
      if (expert >= 0)
        sum = fmaf(choices.weight[i], p.down_bias[static_cast<int64_t>(expert) * p.hidden + output], sum);
    }
    return sum;
  }
  __device__ void finish(const Choices& /*choices*/, int output, const float (&sums)[1], float added) const {
    p.out[output] = from_float<T>(sums[0] + added);
  }
};

}  // namespace quire::cuda
