// `a` has been multiplied by a kernel in front, beside whose blocks this one's slots fill. `b` is read
// meanwhile, and what it makes is added as a bias is.
#include "lora/one_row.h"

#include "linear/one_row.cuh"

namespace quire::cuda {
namespace {

// Base: LinearRows or GatedLinearRows.
template <typename Base>
struct AdaptedRows : Base {
  using T = typename Base::Element;
  static constexpr int kOutputs = Base::kRowsOfOutput, kSize = Vec<T>::kSize;
  static constexpr int kEarly = 2;  // vectors of ranks that are read early

  // Of each of an output's rows, what the adapter has.
  struct Constants {
    typename Base::Constants added;
    const T* b[kOutputs];
    uint4 early[kOutputs][kEarly];
    int rank[kOutputs], rank_before[kOutputs];
  };

  LoraParams adapters;

  __device__ Constants constants(const typename Base::Shared& shared, int output) const {
    Constants c{};
    const LoraSegment segment = load_segment(adapters, 0);
    const int num_segments = __ldcg(adapters.num_segments);
    c.added = Base::constants(shared, output);
    if (num_segments == 0) return c;
    const LoraSlot* slot = slot_of(adapters, segment);
    const int4 ranks = load_ranks(slot);
#pragma unroll
    for (int r = 0; r < kOutputs; ++r) {
      const int row = output + r * Base::num_outputs();
      for (int m = 0; m < adapters.num_modules; ++m) {
        const auto of_module = static_cast<int>(row - adapters.modules[m].first_output);
        const int rank = m == 0 ? ranks.x : m == 1 ? ranks.y : m == 2 ? ranks.z : ranks.w;
        if (of_module >= 0 && of_module < adapters.modules[m].num_outputs) {
          c.rank[r] = rank;
          c.b[r] = static_cast<const T*>(load_pointer(slot->b + m)) + static_cast<int64_t>(of_module) * rank;
          break;
        }
        c.rank_before[r] += rank;
      }
#pragma unroll
      for (int i = 0; i < kEarly; ++i) {
        if (i * kSize < c.rank[r]) c.early[r][i] = load_weight(c.b[r] + i * kSize);
      }
    }
    return c;
  }

  __device__ void complete(const typename Base::Shared& /*shared*/, int /*output*/, Constants& c) const {
    wait_for_inputs();
    float sums[kOutputs] = {};
#pragma unroll
    for (int r = 0; r < kOutputs; ++r) {
      const T* h = static_cast<const T*>(adapters.h) + c.rank_before[r];
      const auto add = [&](const uint4& b, int at) { sums[r] = dot(sums[r], b, Vec<T>::load(h + at)); };
#pragma unroll
      for (int i = 0; i < kEarly; ++i) {
        if (i * kSize < c.rank[r]) add(c.early[r][i], i * kSize);
      }
#pragma unroll 1
      for (int at = kEarly * kSize; at < c.rank[r]; at += kSize) add(load_weight(c.b[r] + at), at);
    }
    if constexpr (kOutputs == 1) {
      c.added += sums[0];
    } else {
      c.added.x += sums[0];
      c.added.y += sums[1];
    }
  }

  __device__ void finish(const typename Base::Shared& shared, int output, const float (&sums)[kOutputs],
                         const Constants& c) const {
    Base::finish(shared, output, sums, c.added);
  }
};

}  // namespace

void linear_one_row_lora(const LaunchContext& ctx, TensorView out, TensorView x, const LinearWeight& weight,
                         const float* bias, const LoraParams& p) {
  if (x.dtype == DType::kBFloat16) {
    launch_rows(ctx, AdaptedRows<LinearRows<bf16>>{rows_of<bf16>(out, x, weight, bias), p});
  } else {
    launch_rows(ctx, AdaptedRows<LinearRows<fp16>>{rows_of<fp16>(out, x, weight, bias), p});
  }
  check_launch(ctx, "linear_one_row_lora", out);
}

void linear_one_row_gated_lora(const LaunchContext& ctx, TensorView out, TensorView x,
                               const LinearWeight& weight, const float* bias, Activation activation,
                               const LoraParams& p) {
  if (x.dtype == DType::kBFloat16) {
    launch_rows(ctx,
                AdaptedRows<GatedLinearRows<bf16>>{{rows_of<bf16>(out, x, weight, bias), activation}, p});
  } else {
    launch_rows(ctx,
                AdaptedRows<GatedLinearRows<fp16>>{{rows_of<fp16>(out, x, weight, bias), activation}, p});
  }
  check_launch(ctx, "linear_one_row_gated_lora", out);
}

}  // namespace quire::cuda
