// Adapters: the rows of each are multiplied with its `a`, what that makes with its `b`, which adds to the
// output as it leaves the kernel. Each of the two is one go over all adapters of the batch.
#include <algorithm>
#include <span>

#include "grouped_linear.h"
#include "ops.h"

namespace quire::cpu {
namespace {

// Rows computed at once, in blocks of staged rows. A batch is cut anywhere: no row knows of others.
constexpr int64_t kMaxBlocksAtOnce = 128;
// Rows of one product, or most threads would have nothing to do while a few panels are multiplied with many
// rows: of `a`, which has a panel or two, and of `b`, whose panels should be read for more rows than that.
constexpr int64_t kRowsOfA = 3 * kStagedBlock, kRowsOfB = 15 * kStagedBlock;

int64_t blocks_of(int64_t rows) { return (rows + kStagedBlock - 1) / kStagedBlock; }

// What bounds the memory of rows that are computed at once.
struct LoraBounds {
  int64_t blocks;
  int64_t k;
  int32_t total_rank;
  DType dtype;
};

// Rows of one adapter.
struct LoraPiece {
  const LoraSlot* slot;
  const int32_t* rows;  // [num_rows] of x and of the output
  int64_t num_rows;
  std::byte* h;  // [num_rows, total rank] what `a` made of them
};

struct LoraPlaces {
  LoraPiece* pieces;     // [blocks]
  LinearArgs* products;  // [blocks * kMaxLoraModules]
  std::byte* h;          // of all pieces
  std::byte* staged;     // inputs of the products with `a`, then of those with `b`
};

LoraPlaces place(const Isa& isa, Workspace& memory, const LoraBounds& bounds) {
  const LinearKernels& kernels = isa.matmul.linear[type_index(bounds.dtype)];
  const int64_t rows = bounds.blocks * kStagedBlock;
  LoraPlaces p;
  p.pieces = memory.take<LoraPiece>(bounds.blocks);
  p.products = memory.take<LinearArgs>(bounds.blocks * kMaxLoraModules);
  p.h = memory.take_bytes(static_cast<size_t>(rows * bounds.total_rank) * dtype_bytes(bounds.dtype));
  // A module has at most the rank of all together.
  p.staged = memory.take_bytes(std::max(kernels.staged_bytes(rows, bounds.k),
                                        kMaxLoraModules * kernels.staged_bytes(rows, bounds.total_rank)));
  return p;
}

std::span<const LoraSegment> segments_of(const LoraArgs& args) {
  const LoraBatch& batch = args.batch;
  return {batch.segments, batch.num_segments != nullptr ? static_cast<size_t>(*batch.num_segments) : 0};
}

const LoraSlot& slot_of(const LoraArgs& args, const LoraSegment& segment) {
  return args.slots[segment.slot * args.slot_stride];
}

LoraBounds bounds_of(const LoraArgs& args) {
  LoraBounds bounds = {.blocks = 0, .k = args.x.shape[1], .total_rank = 0, .dtype = args.x.dtype};
  for (const LoraSegment& segment : segments_of(args)) {
    bounds.blocks += blocks_of(segment.end - segment.begin);
    const LoraSlot& slot = slot_of(args, segment);
    if (slot.a != nullptr) bounds.total_rank = std::max(bounds.total_rank, slot.total_rank());
  }
  bounds.blocks = std::min(bounds.blocks, kMaxBlocksAtOnce);
  return bounds;
}

// Where in a batch the next piece begins.
struct LoraCursor {
  size_t segment = 0;
  int32_t taken = 0;  // of its rows
};

// Takes what fits, of adapters that have something for the linear.
int64_t take_pieces(const LoraArgs& args, const LoraBounds& bounds, const LoraPlaces& p, LoraCursor& at) {
  const auto size = static_cast<int64_t>(dtype_bytes(bounds.dtype));
  const auto segments = segments_of(args);
  std::byte* h = p.h;
  int64_t count = 0;
  for (int64_t blocks = bounds.blocks; blocks > 0 && at.segment < segments.size();) {
    const LoraSegment& segment = segments[at.segment];
    const LoraSlot& slot = slot_of(args, segment);
    const int32_t begin = segment.begin + at.taken;
    if (slot.a != nullptr) {
      const int64_t num_rows = std::min<int64_t>(segment.end - begin, blocks * kStagedBlock);
      p.pieces[count++] = {&slot, args.batch.rows + begin, num_rows, h};
      h += num_rows * slot.total_rank() * size;
      blocks -= blocks_of(num_rows);
      at.taken += static_cast<int32_t>(num_rows);
    }
    if (slot.a == nullptr || segment.begin + at.taken == segment.end) at = {at.segment + 1, 0};
  }
  return count;
}

// Calls f(first, count) for runs of up to `most` of a piece's rows.
template <typename F>
void for_each_run(const LoraPiece& piece, int64_t most, const F& f) {
  for (int64_t first = 0; first < piece.num_rows; first += most)
    f(first, std::min(most, piece.num_rows - first));
}

// h = a x. Returns how many products that is.
int64_t list_shrinking(const LoraArgs& args, const LoraPlaces& p, int64_t num_pieces) {
  const auto size = static_cast<int64_t>(dtype_bytes(args.x.dtype));
  int64_t count = 0;
  for (int64_t i = 0; i < num_pieces; ++i) {
    const LoraPiece& piece = p.pieces[i];
    const int64_t rank = piece.slot->total_rank();
    for_each_run(piece, kRowsOfA, [&](int64_t first, int64_t rows) {
      p.products[count++] = {.x = args.x.data,
                             .x_stride = args.x.stride[0],
                             .m = rows,
                             .n = rank,
                             .k = args.x.shape[1],
                             .weight = piece.slot->a,
                             .out = piece.h + first * rank * size,
                             .out_stride = rank,
                             .out_is_bf16 = args.x.dtype == DType::kBFloat16,
                             .bias = nullptr,
                             .staged = nullptr,
                             .scales = nullptr,
                             .zero_points = nullptr,
                             .row_sums = nullptr,
                             .x_rows = piece.rows + first};
    });
  }
  return count;
}

// out += b h, of each module. Returns how many products that is.
int64_t list_expanding(const LoraArgs& args, const LoraPlaces& p, int64_t num_pieces) {
  const auto size = static_cast<int64_t>(dtype_bytes(args.x.dtype));
  int64_t count = 0;
  for (int64_t i = 0; i < num_pieces; ++i) {
    const LoraPiece& piece = p.pieces[i];
    const int64_t total_rank = piece.slot->total_rank();
    int64_t rank_before = 0;
    for (int32_t m = 0; m < args.num_modules; ++m) {
      const LoraModule& module = args.modules[m];
      const int64_t rank = piece.slot->ranks[m];
      if (rank > 0 && module.num_outputs > 0) {
        for_each_run(piece, kRowsOfB, [&](int64_t first, int64_t rows) {
          p.products[count++] = {.x = piece.h + (first * total_rank + rank_before) * size,
                                 .x_stride = total_rank,
                                 .m = rows,
                                 .n = module.num_outputs,
                                 .k = rank,
                                 .weight = piece.slot->b[m],
                                 .out = args.out.columns(module.first_output, module.num_outputs).data,
                                 .out_stride = args.out.stride[0],
                                 .out_is_bf16 = args.out.dtype == DType::kBFloat16,
                                 .bias = nullptr,
                                 .staged = nullptr,
                                 .scales = nullptr,
                                 .zero_points = nullptr,
                                 .row_sums = nullptr,
                                 .add_to = piece.rows + first};
        });
      }
      rank_before += rank;
    }
  }
  return count;
}

}  // namespace

size_t lora_workspace_bytes(const Isa& isa, const LoraShape& shape) {
  // Each segment's rows begin a block of their own.
  const int64_t blocks =
      shape.max_tokens / kStagedBlock + std::min<int64_t>(shape.max_loras, shape.max_tokens);
  Workspace memory(nullptr);
  place(isa, memory,
        {.blocks = std::min(blocks, kMaxBlocksAtOnce),
         .k = shape.k,
         .total_rank = shape.max_total_rank,
         .dtype = shape.dtype});
  return memory.used();
}

void add_lora(const Isa& isa, const LaunchContext& ctx, const LoraArgs& args) {
  const LoraBounds bounds = bounds_of(args);
  Workspace memory(ctx.workspace);
  const LoraPlaces p = place(isa, memory, bounds);
  for (LoraCursor at; at.segment < segments_of(args).size();) {
    const int64_t num_pieces = take_pieces(args, bounds, p, at);
    multiply_each(isa, ctx, bounds.dtype, p.products, list_shrinking(args, p, num_pieces), p.staged);
    multiply_each(isa, ctx, bounds.dtype, p.products, list_expanding(args, p, num_pieces), p.staged);
  }
}

}  // namespace quire::cpu
