// Adapters: which kernels add them to a linear's outputs.
#include <algorithm>
#include <limits>
#include <type_traits>

#include "linear/one_row.h"
#include "linear/wgmma.h"
#include "lora/any_rows.cuh"
#include "lora/expand.cuh"
#include "lora/expand_beside.cuh"
#include "lora/lora.h"
#include "lora/one_row.h"
#include "lora/shrink.cuh"
#include "lora/shrink_beside.cuh"

namespace quire::cuda {
namespace {

// Up to so many rows, how many segments there are decides who has what.
constexpr int64_t kFewRows = 256;
// Their blocks: one wave. Idle ones are not for nothing, and nobody here knows how many segments there are.
constexpr unsigned kBlocksPerSm = 2;
bool lies_in_vectors(const LoraArgs& args) {
  return reinterpret_cast<uintptr_t>(args.x.data) % 16 == 0 && args.x.stride[0] % 8 == 0 &&
         args.x.shape[1] % 8 == 0 && args.out.dtype == args.x.dtype && args.x.dtype != DType::kFloat32;
}

bool has_few_rows(const LoraArgs& args, int64_t most = kFewRows) {
  return args.x.shape[0] <= most && has_clusters() && args.x.shape[1] % kShrinkDepth == 0;
}

int expand_units(const LoraModule& module) {
  return static_cast<int>(ceil_div<int64_t>(module.num_outputs, kExpandOutputs));
}

// Not where the linear's own scratch is, which may come between.
void* products_of_a(const LaunchContext& ctx) {
  return static_cast<std::byte*>(ctx.workspace) + kLinearWorkspaceBytes;
}

LoraParams params_of(const LoraArgs& args, void* h) {
  LoraParams p{};
  p.out = args.out.data;
  p.x = args.x.data;
  p.rows = args.batch.rows;
  p.segments = args.batch.segments;
  p.num_segments = args.batch.num_segments;
  p.slots = args.slots;
  p.h = h;
  p.out_stride = args.out.stride[0];
  p.x_stride = args.x.stride[0];
  p.slot_stride = args.slot_stride;
  p.h_stride = args.max_total_rank;
  p.k = static_cast<int>(args.x.shape[1]);
  p.num_modules = args.num_modules;
  p.max_segments = args.max_segments;
  std::copy_n(args.modules, args.num_modules, p.modules);
  std::fill_n(p.first_unit, kMaxLoraModules + 1, std::numeric_limits<int>::max());
  for (int m = 0, units = 0; m < args.num_modules; units += expand_units(args.modules[m++]))
    p.first_unit[m] = units;
  return p;
}

// Of `a`, in vectors.
template <typename T>
void launch_shrink(const LaunchContext& ctx, const LoraArgs& args, const LoraParams& p, int64_t few_rows) {
  const auto segments = static_cast<unsigned>(args.max_segments);
  if (args.x.shape[0] == 1) {
    launch_dependent(ctx, lora_shrink_one_row_kernel<T>, static_cast<unsigned>(args.max_total_rank),
                     one_row_threads(p.k), 0, p);
    return;
  }
  if (has_few_rows(args, few_rows)) {
    const unsigned tiles =
        std::min(ceil_div(static_cast<unsigned>(args.max_total_rank), unsigned{kShrinkRanks}),
                 unsigned{kMaxShrinkTiles});
    const unsigned most = kBlocksPerSm * static_cast<unsigned>(device_limits().num_sms) / kShrinkSplits;
    launch_dependent(ctx, lora_shrink_few_rows_kernel<T>,
                     Grid(std::min(tiles * segments, most) * kShrinkSplits, kShrinkSplits), kLoraThreads, 0,
                     p, static_cast<int>(tiles), Divisor(static_cast<int>(tiles)));
    return;
  }
  const auto launch = [&]<int kRing>() {
    static std::atomic<uint64_t> prepared{0};
    constexpr auto kernel = lora_shrink_many_rows_kernel<T, kRing>;
    if (allow_shared_bytes(prepared, reinterpret_cast<const void*>(kernel), kRing) != cudaSuccess) return;
    launch_dependent(ctx, kernel, ceil_div(segments, unsigned{kShrinkSegments<kRing>}), kLoraThreads, kRing,
                     p);
  };
  if (device_limits().max_shared_bytes_per_block >= kLargeRing) {
    launch.template operator()<kLargeRing>();
  } else {
    launch.template operator()<kSmallRing>();
  }
}

// Whether modules are whole units, and their outputs lie in vectors.
bool has_whole_units(const LoraArgs& args) {
  const auto is_whole = [](const LoraModule& m) {
    return m.first_output % 8 == 0 && m.num_outputs % kExpandOutputs == 0;
  };
  return reinterpret_cast<uintptr_t>(args.out.data) % 16 == 0 && args.out.stride[0] % 8 == 0 &&
         std::all_of(args.modules, args.modules + args.num_modules, is_whole);
}

int expand_units(const LoraArgs& args) {
  int units = 0;
  for (int m = 0; m < args.num_modules; ++m) units += expand_units(args.modules[m]);
  return units;
}

// Of `b`, of few rows.
template <typename T>
void launch_expand_few_rows(const LaunchContext& ctx, const LoraArgs& args, const LoraParams& p) {
  const auto units = static_cast<unsigned>(expand_units(args));
  const unsigned most = kBlocksPerSm * static_cast<unsigned>(device_limits().num_sms);
  const unsigned blocks =
      std::min(ceil_div(units * static_cast<unsigned>(args.max_segments), unsigned{kExpandWarps}), most);
  launch_dependent(ctx, lora_expand_few_rows_kernel<T>, blocks, kExpandThreads, 0, p,
                   static_cast<int>(units));
}

// Of the depth, where `a` is multiplied beside the linear.
int beside_splits(const LoraParams& p) {
  constexpr int kLeast = 8 * kBesideWarps * kShrinkDepth;  // a warp's reads at once
  return std::clamp(p.k / kLeast, 1, kMaxBesideSplits);
}
int beside_split_stride(const LoraArgs& args) {
  return static_cast<int>(args.x.shape[0]) * args.max_total_rank;
}

// Behind a linear, of its inputs and outputs.
template <typename T>
void launch_shrink_beside(const LaunchContext& ctx, const LoraArgs& args, const LoraParams& p) {
  const auto segments = static_cast<unsigned>(args.max_segments);
  const unsigned tiles =
      std::min(ceil_div(static_cast<unsigned>(args.max_total_rank), unsigned{kShrinkRanks}),
               unsigned{kMaxShrinkTiles});
  const int splits = beside_splits(p);
  launch_dependent(ctx, lora_shrink_beside_kernel<T>,
                   std::min(tiles * segments * static_cast<unsigned>(splits),
                            static_cast<unsigned>(device_limits().num_sms)),
                   kBesideThreads, 0, p, static_cast<int>(tiles), Divisor(static_cast<int>(tiles)), splits,
                   beside_split_stride(args));
}

template <typename T, typename Gate>
void launch_expand_beside(const LaunchContext& ctx, const LoraArgs& args, const LoraParams& p) {
  const auto units =
      static_cast<unsigned>(std::is_same_v<Gate, NotGated> ? expand_units(args) : expand_units(args) / 2);
  const auto num_sms = static_cast<unsigned>(device_limits().num_sms);
  const unsigned most = unsigned{kExpandBesideBlocks<Gate>} * num_sms;
  launch_dependent(
      ctx, lora_expand_beside_kernel<T, Gate>,
      std::min(ceil_div(units * static_cast<unsigned>(args.max_segments), unsigned{kBesideWarps}), most),
      kBesideThreads, 0, p, static_cast<int>(units), Divisor(static_cast<int>(units)), beside_splits(p),
      beside_split_stride(args), /*early_blocks=*/static_cast<int>(2 * num_sms));
}

// Of many.
template <typename T, typename Gate>
void launch_expand_many_rows(const LaunchContext& ctx, const LoraArgs& args, const LoraParams& p) {
  const int units = std::is_same_v<Gate, NotGated> ? expand_units(args) : expand_units(args) / 2;
  const unsigned blocks = ceil_div(static_cast<unsigned>(units), unsigned{kExpandWarps});
  launch_dependent(
      ctx, lora_expand_many_rows_kernel<T, Gate>,
      dim3(blocks, ceil_div(static_cast<unsigned>(args.max_segments), unsigned{kExpandSegments})),
      kExpandThreads, 0, p, units);
}

template <typename T>
void launch_any_rows(const LaunchContext& ctx, const LoraArgs& args, const LoraParams& p) {
  const auto segments = static_cast<unsigned>(args.max_segments);
  launch_dependent(ctx, lora_shrink_any_kernel<T>,
                   dim3(segments, static_cast<unsigned>(ceil_div(args.max_total_rank, kLoraAnyWarps))),
                   kLoraAnyThreads, 0, p);
  int64_t outputs = 0;
  for (int m = 0; m < args.num_modules; ++m) outputs += args.modules[m].num_outputs;
  const dim3 grid(segments, static_cast<unsigned>(ceil_div<int64_t>(outputs, kLoraAnyThreads)));
  if (args.out.dtype == DType::kFloat32) {
    launch_dependent(ctx, lora_expand_any_kernel<T, float>, grid, kLoraAnyThreads, 0, p);
  } else {
    launch_dependent(ctx, lora_expand_any_kernel<T, T>, grid, kLoraAnyThreads, 0, p);
  }
}

// Calls f with a value of the 16-bit type.
template <typename F>
void dispatch_16_bit(DType dtype, F f) {
  if (dtype == DType::kFloat16) return f(fp16{});
  f(bf16{});
}

void shrink(const LaunchContext& ctx, const LoraArgs& args, const LoraParams& p,
            int64_t few_rows = kFewRows) {
  dispatch_16_bit(args.x.dtype, [&](auto type) { launch_shrink<decltype(type)>(ctx, args, p, few_rows); });
}

void expand(const LaunchContext& ctx, const LoraArgs& args, const LoraParams& p,
            int64_t few_rows = kFewRows) {
  dispatch_16_bit(args.x.dtype, [&](auto type) {
    using T = decltype(type);
    if (has_few_rows(args, few_rows) && has_whole_units(args)) return launch_expand_few_rows<T>(ctx, args, p);
    launch_expand_many_rows<T, NotGated>(ctx, args, p);
  });
}

// Whether `a` is multiplied beside the linear of that weight.
bool goes_beside(const LinearWeight& weight, const LoraArgs& args) {
  return args.x.shape[0] <= kMaxBesideRows && has_wgmma_linear(args.out, args.x, weight) &&
         has_few_rows(args) && has_whole_units(args);
}

// linear_wgmma has been launched. With the activation if p.gated.
template <typename Gate>
void add_beside(const LaunchContext& ctx, const LoraArgs& args, const LoraParams& p) {
  dispatch_16_bit(args.x.dtype, [&](auto type) {
    launch_shrink_beside<decltype(type)>(ctx, args, p);
    launch_expand_beside<decltype(type), Gate>(ctx, args, p);
  });
}

template <typename Gate>
void expand_gated(const LaunchContext& ctx, const LoraArgs& args, const LoraParams& p) {
  dispatch_16_bit(args.x.dtype,
                  [&](auto type) { launch_expand_many_rows<decltype(type), Gate>(ctx, args, p); });
}

// What follows a linear with adapters and an activation.
using GatedExpand = void (*)(const LaunchContext&, const LoraArgs&, const LoraParams&);

template <Activation kActivation>
GatedExpand gated_expand(bool beside) {
  using Gate = std::integral_constant<Activation, kActivation>;
  return beside ? add_beside<Gate> : expand_gated<Gate>;
}

// With the activations that gated models have; null: this is none of them.
GatedExpand gated_expand(Activation activation, bool beside) {
  switch (activation) {
    case Activation::kSilu: return gated_expand<Activation::kSilu>(beside);
    case Activation::kGelu: return gated_expand<Activation::kGelu>(beside);
    case Activation::kGeluTanh: return gated_expand<Activation::kGeluTanh>(beside);
    default: return nullptr;
  }
}

// Whether the outputs are a gate's and then those of what it is a gate of, in whole units.
bool are_gated(const LoraArgs& args, TensorView gated) {
  const int64_t n = gated.shape[1];
  const LoraModule* m = args.modules;
  const bool are_halves = args.num_modules == 1
                              ? m[0].first_output == 0 && m[0].num_outputs == 2 * n
                              : args.num_modules == 2 && m[0].first_output == 0 && m[0].num_outputs == n &&
                                    m[1].first_output == n && m[1].num_outputs == n;
  const auto is_aligned = [](TensorView view) {
    return reinterpret_cast<uintptr_t>(view.data) % 16 == 0 && view.stride[0] % 8 == 0;
  };
  return are_halves && n % kExpandOutputs == 0 && is_aligned(args.out) && is_aligned(gated) &&
         gated.dtype == args.out.dtype;
}

bool is_empty(const LoraArgs& args) { return args.max_segments == 0 || args.max_total_rank == 0; }

// Whether `a` may be multiplied before the linear, whose weights are read meanwhile. Of an int8 weight the
// linear's own scratch may lie where what comes of it does.
bool goes_first(const LinearWeight& weight, const LoraArgs& args) {
  return !is_empty(args) && weight.scales == nullptr && lies_in_vectors(args);
}

}  // namespace

size_t lora_workspace_bytes(const LoraShape& shape) {
  const size_t beside =
      std::min<int64_t>(shape.max_tokens, kMaxBesideRows) * kMaxBesideSplits * sizeof(float);
  return kLinearWorkspaceBytes +
         static_cast<size_t>(shape.max_total_rank) *
             std::max(static_cast<size_t>(shape.max_tokens) * dtype_bytes(shape.dtype), beside);
}

void add_lora(const LaunchContext& ctx, const LoraArgs& args, void* h, int64_t few_rows) {
  if (is_empty(args)) return;
  const LoraParams p = params_of(args, h);
  if (lies_in_vectors(args)) {
    shrink(ctx, args, p, few_rows);
    expand(ctx, args, p, few_rows);
  } else {
    dispatch_float(args.x.dtype, [&](auto type) { launch_any_rows<decltype(type)>(ctx, args, p); });
  }
  check_launch(ctx, "add_lora", args.out);
}

void add_lora(const LaunchContext& ctx, const LoraArgs& args) {
  add_lora(ctx, args, products_of_a(ctx), kFewRows);
}

void linear_add_lora(const LaunchContext& ctx, const LinearWeight& weight, const float* bias,
                     const LoraArgs& args) {
  if (!goes_first(weight, args)) {
    linear(ctx, args.out, args.x, weight, bias);
    return add_lora(ctx, args);
  }
  const LoraParams p = params_of(args, products_of_a(ctx));
  if (goes_beside(weight, args)) {
    linear_wgmma(ctx, args.out, args.x, weight, bias);
    add_beside<NotGated>(ctx, args, p);
    return check_launch(ctx, "linear_add_lora", args.out);
  }
  shrink(ctx, args, p);
  if (has_one_row_kernel(args.out, args.x, weight)) {
    linear_one_row_lora(ctx, args.out, args.x, weight, bias, p);
  } else {
    linear(ctx, args.out, args.x, weight, bias);
    expand(ctx, args, p);
  }
  check_launch(ctx, "linear_add_lora", args.out);
}

void linear_add_lora_activate_and_mul(const LaunchContext& ctx, TensorView out, const LinearWeight& weight,
                                      const float* bias, const LoraArgs& args, Activation activation) {
  const bool first = goes_first(weight, args);
  LoraParams p = params_of(args, products_of_a(ctx));
  if (first && has_one_row_kernel(out, args.x, weight)) {
    shrink(ctx, args, p);
    return linear_one_row_gated_lora(ctx, out, args.x, weight, bias, activation, p);
  }
  const bool beside = first && goes_beside(weight, args);
  const GatedExpand fused = gated_expand(activation, beside);
  // Of few rows two short kernels are quicker than a long one.
  if (!first || (has_few_rows(args) && !beside) || fused == nullptr || !are_gated(args, out)) {
    linear_add_lora(ctx, weight, bias, args);
    return activate_and_mul(ctx, out, args.out, activation);
  }
  p.gated = out.data;
  p.gated_stride = out.stride[0];
  if (!beside) shrink(ctx, args, p);
  linear(ctx, args.out, args.x, weight, bias);
  fused(ctx, args, p);
  check_launch(ctx, "linear_add_lora_activate_and_mul", out);
}

}  // namespace quire::cuda
