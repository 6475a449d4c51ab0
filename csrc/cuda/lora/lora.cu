// Adapters: which kernels add them to a linear's outputs.
#include <algorithm>
#include <type_traits>

#include "lora/any_rows.cuh"
#include "lora/expand.cuh"
#include "lora/shrink.cuh"

namespace quire::cuda {
namespace {

// Up to so many rows, blocks share the depth of `a`.
constexpr int64_t kFewRows = 256;
// Blocks for each segment, of rows that are so few that there is little else to do, and of more.
constexpr int64_t kTinyRows = 8;
constexpr unsigned kTinyBlocks = 32, kFewBlocks = 8;
// Segments that a grid has beside each other, of few rows: idle blocks are not for nothing either.
constexpr unsigned kMostSegments = 32;
// Of many rows, what a warp has under way.
constexpr int kBatch = 2;
// What shared_memory_fits leaves.
constexpr int kStaticBytes = 256;

bool lies_in_vectors(const LoraArgs& args) {
  return reinterpret_cast<uintptr_t>(args.x.data) % 16 == 0 && args.x.stride[0] % 8 == 0 &&
         args.x.shape[1] % 8 == 0 && args.out.dtype == args.x.dtype && args.x.dtype != DType::kFloat32;
}

LoraParams params_of(const LaunchContext& ctx, const LoraArgs& args) {
  LoraParams p{};
  p.out = args.out.data;
  p.x = args.x.data;
  p.rows = args.batch.rows;
  p.segments = args.batch.segments;
  p.num_segments = args.batch.num_segments;
  p.slots = args.slots;
  p.h = ctx.workspace;
  p.out_stride = args.out.stride[0];
  p.x_stride = args.x.stride[0];
  p.slot_stride = args.slot_stride;
  p.h_stride = args.max_total_rank;
  p.k = static_cast<int>(args.x.shape[1]);
  p.num_modules = args.num_modules;
  std::copy_n(args.modules, args.num_modules, p.modules);
  return p;
}

// Lets it have as much shared memory as the ranks of any linear may take.
bool allow_most_shared_bytes(std::atomic<uint64_t>& prepared, const void* kernel) {
  const int most = device_limits().max_shared_bytes_per_block - kStaticBytes;
  return allow_shared_bytes(prepared, kernel, most) == cudaSuccess;
}

// Of `a` and `b`, in vectors.
template <typename T, typename Gate>
void launch_products(const LaunchContext& ctx, const LoraArgs& args, const LoraParams& p) {
  const auto segments = static_cast<unsigned>(args.max_segments);
  const bool is_few = args.x.shape[0] <= kFewRows;
  if (is_few && has_clusters()) {
    const unsigned tiles = ceil_div(static_cast<unsigned>(args.max_total_rank), 8U);
    const bool is_tiny = args.x.shape[0] <= kTinyRows;
    unsigned splits = 1;
    while (splits < kMaxShrinkSplits && splits * tiles < (is_tiny ? kTinyBlocks : kFewBlocks)) splits *= 2;
    const unsigned threads = is_tiny ? kLoraThreads / 2 : kLoraThreads;
    Grid grid(tiles * splits, splits);
    grid.blocks.y = std::min(segments, kMostSegments);
    launch_dependent(ctx, lora_shrink_few_rows_kernel<T>, grid, threads,
                     shrink_few_rows_shared_bytes(threads), p, static_cast<int>(splits));
  } else {
    static std::atomic<uint64_t> prepared{0};
    constexpr auto shrink = lora_shrink_many_rows_kernel<T>;
    if (!allow_most_shared_bytes(prepared, reinterpret_cast<const void*>(shrink))) return;
    launch_dependent(ctx, shrink, ceil_div(segments, unsigned{kShrinkSegments}), kLoraThreads,
                     static_cast<size_t>(shrink_shared_bytes(args.max_total_rank)), p);
  }
  const unsigned blocks = ceil_div(static_cast<unsigned>(expand_units(p)), unsigned{kExpandWarps});
  constexpr int kAtOnce = std::is_same_v<Gate, NotGated> ? kBatch : 1;  // a gate's are twice as many
  if (is_few) {
    launch_dependent(ctx, lora_expand_kernel<T, Gate, 1, false>,
                     dim3(blocks, std::min(segments, kMostSegments)), kExpandThreads, 0, p);
  } else {
    launch_dependent(ctx, lora_expand_kernel<T, Gate, kAtOnce, true>,
                     dim3(blocks, ceil_div(segments, unsigned{kExpandSegments})), kExpandThreads, 0, p);
  }
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

}  // namespace

size_t lora_workspace_bytes(const LoraShape& shape) {
  return static_cast<size_t>(shape.max_tokens * shape.max_total_rank) * dtype_bytes(shape.dtype);
}

namespace {

template <typename Gate>
void launch(const LaunchContext& ctx, const LoraArgs& args, const LoraParams& p) {
  dispatch_float(args.x.dtype, [&](auto type) {
    using T = decltype(type);
    if constexpr (!std::is_same_v<T, float>) launch_products<T, Gate>(ctx, args, p);
  });
}

// With the activations that gated models have; null: this is none of them.
auto launch_gated(Activation activation)
    -> void (*)(const LaunchContext&, const LoraArgs&, const LoraParams&) {
  switch (activation) {
    case Activation::kSilu: return launch<std::integral_constant<Activation, Activation::kSilu>>;
    case Activation::kGelu: return launch<std::integral_constant<Activation, Activation::kGelu>>;
    case Activation::kGeluTanh: return launch<std::integral_constant<Activation, Activation::kGeluTanh>>;
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

}  // namespace

void add_lora(const LaunchContext& ctx, const LoraArgs& args) {
  if (args.max_segments == 0 || args.max_total_rank == 0) return;
  const LoraParams p = params_of(ctx, args);
  if (lies_in_vectors(args)) {
    launch<NotGated>(ctx, args, p);
  } else {
    dispatch_float(args.x.dtype, [&](auto type) { launch_any_rows<decltype(type)>(ctx, args, p); });
  }
  check_launch(ctx, "add_lora", args.out);
}

void add_lora_activate_and_mul(const LaunchContext& ctx, TensorView out, const LoraArgs& args,
                               Activation activation) {
  const auto fused = launch_gated(activation);
  if (fused == nullptr || !lies_in_vectors(args) || !are_gated(args, out)) {
    add_lora(ctx, args);
    activate_and_mul(ctx, out, args.out, activation);
    return;
  }
  LoraParams p = params_of(ctx, args);
  p.gated = out.data;
  p.gated_stride = out.stride[0];
  fused(ctx, args, p);
  check_launch(ctx, "add_lora_activate_and_mul", out);
}

}  // namespace quire::cuda
