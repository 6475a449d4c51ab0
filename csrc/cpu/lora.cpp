// Adapters: the rows of each are multiplied with its `a`, what that makes with its `b`, which adds to the
// output as it leaves the kernel. Each of the two is one go over all adapters of the batch.
#include <algorithm>
#include <span>

#include "lora_products.h"

namespace quire::cpu {
namespace {

std::span<const LoraSegment> segments_of(const LoraArgs& args) {
  const LoraBatch& batch = args.batch;
  return {batch.segments, batch.num_segments != nullptr ? static_cast<size_t>(*batch.num_segments) : 0};
}

const LoraSlot& slot_of(const LoraArgs& args, const LoraSegment& segment) {
  return args.slots[segment.slot * args.slot_stride];
}

LoraBounds bounds_of(const LoraArgs& args) {
  int64_t rows = 0;
  int32_t total_rank = 0;
  for (const LoraSegment& segment : segments_of(args)) {
    rows += segment.end - segment.begin;
    const LoraSlot& slot = slot_of(args, segment);
    if (slot.a != nullptr) total_rank = std::max(total_rank, slot.total_rank());
  }
  const auto runs = static_cast<int64_t>(segments_of(args).size());
  return lora_bounds(rows, runs, args.x.shape[1], total_rank, args.x.dtype);
}

}  // namespace

size_t lora_workspace_bytes(const Isa& isa, const LoraShape& shape) {
  Workspace memory(nullptr);
  const LoraProducts products(
      isa, memory,
      lora_bounds(shape.max_tokens, shape.max_loras, shape.k, shape.max_total_rank, shape.dtype));
  return memory.used();
}

void add_lora(const Isa& isa, const LaunchContext& ctx, const LoraArgs& args) {
  Workspace memory(ctx.workspace);
  LoraProducts products(isa, memory, bounds_of(args));
  const LoraProduct product = {args.out, args.x, args.modules, args.num_modules};
  for (const LoraSegment& segment : segments_of(args)) {
    const LoraSlot& slot = slot_of(args, segment);
    if (slot.a == nullptr) continue;
    products.add(ctx, product, {&slot, 0, args.batch.rows + segment.begin, segment.end - segment.begin});
  }
  products.multiply(ctx, product);
}

}  // namespace quire::cpu
