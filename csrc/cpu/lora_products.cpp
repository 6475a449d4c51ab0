#include "lora_products.h"

namespace quire::cpu {
namespace {

constexpr int64_t kMaxBlocksAtOnce = 128;
// Rows of one product, or most threads would have nothing to do while a few panels are multiplied with many
// rows: of `a`, which has a panel or two, and of `b`, whose panels should be read for more rows than that.
constexpr int64_t kRowsOfA = 3 * kStagedBlock, kRowsOfB = 15 * kStagedBlock;

int64_t blocks_of(int64_t rows) { return (rows + kStagedBlock - 1) / kStagedBlock; }

// Calls f(first, count) for parts of up to `most` of a run's rows.
template <typename F>
void for_each_part(const LoraRun& run, int64_t most, const F& f) {
  for (int64_t first = 0; first < run.num_rows; first += most) f(first, std::min(most, run.num_rows - first));
}

const std::byte* matrix_of(const LoraRun& run, const void* first) {
  return static_cast<const std::byte*>(first) + run.offset_bytes;
}

}  // namespace

LoraBounds lora_bounds(int64_t rows, int64_t runs, int64_t k, int32_t total_rank, DType dtype) {
  return {.blocks = std::min(rows / kStagedBlock + std::min(runs, rows), kMaxBlocksAtOnce),
          .k = k,
          .total_rank = total_rank,
          .dtype = dtype};
}

LoraProducts::LoraProducts(const Isa& isa, Workspace& memory, const LoraBounds& bounds)
    : isa_(isa), bounds_(bounds), blocks_left_(bounds.blocks) {
  const LinearKernels& kernels = isa.matmul.linear[type_index(bounds.dtype)];
  const int64_t rows = bounds.blocks * kStagedBlock;
  pieces_ = memory.take<Piece>(bounds.blocks);
  products_ = memory.take<LinearArgs>(bounds.blocks * kMaxLoraModules);
  h_ = memory.take_bytes(static_cast<size_t>(rows * bounds.total_rank) * dtype_bytes(bounds.dtype));
  // A module has at most the rank of all together.
  staged_ = memory.take_bytes(std::max(kernels.staged_bytes(rows, bounds.k),
                                       kMaxLoraModules * kernels.staged_bytes(rows, bounds.total_rank)));
  next_h_ = h_;
}

void LoraProducts::add(const LaunchContext& ctx, const LoraProduct& product, LoraRun run) {
  const auto size = static_cast<int64_t>(dtype_bytes(bounds_.dtype));
  while (run.num_rows > 0) {
    const int64_t num_rows = std::min(run.num_rows, blocks_left_ * kStagedBlock);
    LoraRun first = run;
    first.num_rows = num_rows;
    pieces_[num_pieces_++] = {first, next_h_};
    next_h_ += num_rows * run.slot->total_rank() * size;
    blocks_left_ -= blocks_of(num_rows);
    run.rows += num_rows;
    run.num_rows -= num_rows;
    if (blocks_left_ == 0) multiply(ctx, product);
  }
}

void LoraProducts::multiply(const LaunchContext& ctx, const LoraProduct& product) {
  multiply_each(isa_, ctx, bounds_.dtype, products_, list_shrinking(product), staged_);
  multiply_each(isa_, ctx, bounds_.dtype, products_, list_expanding(product), staged_);
  num_pieces_ = 0;
  blocks_left_ = bounds_.blocks;
  next_h_ = h_;
}

// h = a x. Returns how many products that is.
int64_t LoraProducts::list_shrinking(const LoraProduct& product) const {
  const TensorView& x = product.x;
  const auto size = static_cast<int64_t>(dtype_bytes(x.dtype));
  int64_t count = 0;
  for (int64_t i = 0; i < num_pieces_; ++i) {
    const LoraRun& run = pieces_[i].run;
    const int64_t rank = run.slot->total_rank();
    for_each_part(run, kRowsOfA, [&](int64_t first, int64_t rows) {
      products_[count++] = {.x = x.data,
                            .x_stride = x.stride[0],
                            .m = rows,
                            .n = rank,
                            .k = x.shape[1],
                            .weight = matrix_of(run, run.slot->a),
                            .out = pieces_[i].h + first * rank * size,
                            .out_stride = rank,
                            .out_is_bf16 = x.dtype == DType::kBFloat16,
                            .bias = nullptr,
                            .staged = nullptr,
                            .scales = nullptr,
                            .zero_points = nullptr,
                            .row_sums = nullptr,
                            .x_rows = run.rows + first};
    });
  }
  return count;
}

// out += b h, of each module. Returns how many products that is.
int64_t LoraProducts::list_expanding(const LoraProduct& product) const {
  const TensorView& out = product.out;
  const auto size = static_cast<int64_t>(dtype_bytes(product.x.dtype));
  int64_t count = 0;
  for (int64_t i = 0; i < num_pieces_; ++i) {
    const LoraRun& run = pieces_[i].run;
    const int64_t total_rank = run.slot->total_rank();
    int64_t rank_before = 0;
    for (int32_t m = 0; m < product.num_modules; ++m) {
      const LoraModule& module = product.modules[m];
      const int64_t rank = run.slot->ranks[m];
      if (rank > 0 && module.num_outputs > 0) {
        for_each_part(run, kRowsOfB, [&](int64_t first, int64_t rows) {
          products_[count++] = {.x = pieces_[i].h + (first * total_rank + rank_before) * size,
                                .x_stride = total_rank,
                                .m = rows,
                                .n = module.num_outputs,
                                .k = rank,
                                .weight = matrix_of(run, run.slot->b[m]),
                                .out = out.columns(module.first_output, module.num_outputs).data,
                                .out_stride = out.stride[0],
                                .out_is_bf16 = out.dtype == DType::kBFloat16,
                                .bias = nullptr,
                                .staged = nullptr,
                                .scales = nullptr,
                                .zero_points = nullptr,
                                .row_sums = nullptr,
                                .add_to = run.rows + first};
        });
      }
      rank_before += rank;
    }
  }
  return count;
}

}  // namespace quire::cpu
