// The experts of one token: matrices times vectors, each weight read once. No plan is needed, and the second
// product adds the experts up. T is 16-bit, rows begin at multiples of 16 bytes.
//
// The choice can be a part of the first product: each of its blocks makes it by itself, so that no kernel
// stands between the router's product and this one.
#pragma once

#include "common/row_stream.cuh"
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
  Activation activation;
};

// What the rows of either product have to know of the choices, in shared memory.
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
    __syncthreads();
  }
};

// A group has two outputs of a choice: the gate's row and up's of each.
template <typename T>
struct GateUpRows {
  const OneToken<T>& p;
  Choices& choices;
  int choice_groups, groups, depth;
  static constexpr int segments = 1, kOutputs = row_stream::kRows / 2;

  __device__ GateUpRows(const OneToken<T>& token, Choices& shared)
      : p(token),
        choices(shared),
        choice_groups(groups_of(token)),
        groups(choice_groups * token.top_k),
        depth(token.hidden) {}
  static __host__ __device__ int groups_of(const OneToken<T>& token) {
    return (token.intermediate + kOutputs - 1) / kOutputs;
  }

  __device__ int output(int group, int i) const { return group % choice_groups * kOutputs + i; }
  __device__ void wait_for_weights() const {
    wait_for_inputs();
    // Not earlier: the next kernel reads the choices at once, which are there by now.
    let_next_start();
    choices.load(p);
  }
  __device__ const T* weight(int group, int /*segment*/, int r) const {
    const int expert = choices.expert[group / choice_groups];
    if (expert < 0) return nullptr;
    const int row = min(output(group, r / 2), p.intermediate - 1) + r % 2 * p.intermediate;
    return p.gate_up + expert * p.gate_up_stride + static_cast<int64_t>(row) * p.hidden;
  }
  __device__ const T* values(int /*group*/, int /*segment*/) const { return p.x; }
  __device__ float scale(int /*segment*/) const { return 1.0F; }
  __device__ void finish(int group, const float (&sums)[row_stream::kRows]) const {
    const int choice = group / choice_groups, expert = choices.expert[choice];
    const float* bias = p.gate_up_bias != nullptr && expert >= 0
                            ? p.gate_up_bias + static_cast<int64_t>(expert) * 2 * p.intermediate
                            : nullptr;
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) {
      const int at = output(group, i);
      if (at >= p.intermediate) return;
      float gate = sums[2 * i], up = sums[2 * i + 1];
      if (bias != nullptr) {
        gate += bias[at];
        up += bias[p.intermediate + at];
      }
      p.inner[static_cast<int64_t>(choice) * p.intermediate + at] =
          from_float<T>(expert >= 0 ? activate_gated(gate, up, p.activation) : 0.0F);
    }
  }
};

// The same of experts that are not chosen yet: each block chooses, the first writes it down for all who come
// later.
template <typename T, int kChoosingWarps>
struct ChoosingGateUpRows : GateUpRows<T> {
  using Choice = ExpertChoice<kChoosingWarps>;
  const ExpertRoutingArgs& routing;
  typename Choice::Memory& memory;

  __device__ ChoosingGateUpRows(const OneToken<T>& token, Choices& shared, const ExpertRoutingArgs& args,
                                typename Choice::Memory& choice_memory)
      : GateUpRows<T>(token, shared), routing(args), memory(choice_memory) {}

  __device__ void wait_for_weights() const {
    static_assert(kChoosingWarps == 1 || kChoosingWarps == row_stream::kWarps);
    const int i = static_cast<int>(threadIdx.x);
    int* chosen = this->choices.expert;
    if (i < 32 * kChoosingWarps) {
      const Choice choice(routing);
      wait_for_inputs();
      choice.choose(routing, 0, memory, chosen);
    }
    __syncthreads();
    // The second product reads the choices ahead, when all blocks of this kernel have let it start. The first
    // block does so when what it wrote has come to where every multiprocessor looks (Choices::load passes by
    // the L1 cache), and in the warp that wrote it: of a block's threads the first that does it counts. That
    // block has the time: its stretch of rows is no longer than any other's.
    if (blockIdx.x > 0) return let_next_start();
    if (i >= 32) return;
    Choice::write(routing, 0, memory, chosen);
    __threadfence();
    __syncwarp();
    let_next_start();
    if (i < routing.top_k) count_choice(routing, chosen[i]);
  }
};

// A group's segments are the choices, weighed.
template <typename T>
struct DownRows {
  const OneToken<T>& p;
  Choices& choices;
  int groups, segments, depth;

  __device__ DownRows(const OneToken<T>& token, Choices& shared)
      : p(token),
        choices(shared),
        groups(groups_of(token)),
        segments(token.top_k),
        depth(token.intermediate) {}
  static __host__ __device__ int groups_of(const OneToken<T>& token) {
    return (token.hidden + row_stream::kRows - 1) / row_stream::kRows;
  }

  __device__ void wait_for_weights() const { choices.load(p); }
  __device__ const T* weight(int group, int segment, int r) const {
    const int expert = choices.expert[segment];
    if (expert < 0) return nullptr;
    const int row = min(group * row_stream::kRows + r, p.hidden - 1);
    return p.down + expert * p.down_stride + static_cast<int64_t>(row) * p.intermediate;
  }
  __device__ const T* values(int /*group*/, int segment) const {
    return p.inner + static_cast<int64_t>(segment) * p.intermediate;
  }
  __device__ float scale(int segment) const { return choices.weight[segment]; }
  __device__ void finish(int group, const float (&sums)[row_stream::kRows]) const {
#pragma unroll
    for (int r = 0; r < row_stream::kRows; ++r) {
      const int output = group * row_stream::kRows + r;
      if (output >= p.hidden) return;
      float sum = sums[r];
      for (int i = 0; p.down_bias != nullptr && i < p.top_k; ++i) {
        const int expert = choices.expert[i];
        if (expert >= 0)
          sum = fmaf(choices.weight[i], p.down_bias[static_cast<int64_t>(expert) * p.hidden + output], sum);
      }
      p.out[output] = from_float<T>(sum);
    }
  }
};

template <typename T>
__global__ void __launch_bounds__(row_stream::kThreads, row_stream::kBlocksPerSm)
    one_token_gate_up_kernel(const __grid_constant__ OneToken<T> p) {
  __shared__ Choices choices;
  stream_rows<T>(GateUpRows<T>(p, choices));
}

template <typename T, int kChoosingWarps>
__global__ void __launch_bounds__(row_stream::kThreads, row_stream::kBlocksPerSm)
    one_token_choose_gate_up_kernel(const __grid_constant__ OneToken<T> p,
                                    const __grid_constant__ ExpertRoutingArgs routing) {
  __shared__ Choices choices;
  __shared__ typename ExpertChoice<kChoosingWarps>::Memory memory;
  stream_rows<T>(ChoosingGateUpRows<T, kChoosingWarps>(p, choices, routing, memory));
}

template <typename T>
__global__ void __launch_bounds__(row_stream::kThreads, row_stream::kBlocksPerSm)
    one_token_down_kernel(const __grid_constant__ OneToken<T> p) {
  __shared__ Choices choices;
  let_next_start();
  stream_rows<T>(DownRows<T>(p, choices));
}

}  // namespace quire::cuda
