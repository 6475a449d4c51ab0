#include "grouped_linear.h"

#include <algorithm>

#include "ops.h"
#include "parallel.h"

namespace quire::cpu {
namespace {

// Calls f(product, begin, end) for parts of the `units(product)` units that each product has, on all threads,
// and `finish` on each of them in the end.
template <typename Units, typename F, typename Finish>
void for_each_part(const LaunchContext& ctx, const LinearArgs* products, int64_t count, int64_t grain,
                   const Units& units, const F& f, const Finish& finish) {
  int64_t total = 0;
  for (int64_t i = 0; i < count; ++i) total += units(products[i]);
  const int64_t threads = ctx.host != nullptr ? ctx.host->num_threads : 1;
  WorkQueue queue(total, std::min(grain, std::max<int64_t>(1, total / (2 * threads))), threads);
  on_all_threads(ctx, [&](int32_t, int32_t) {
    int64_t product = 0, before = 0, begin, end;  // `before`: units of the products before this one
    while (queue.take(&begin, &end)) {
      while (begin < end) {
        while (begin >= before + units(products[product])) before += units(products[product++]);
        const int64_t last = std::min(end, before + units(products[product]));
        f(products[product], begin - before, last - before);
        begin = last;
      }
    }
    finish();
  });
}

}  // namespace

void multiply_each(const Isa& isa, const LaunchContext& ctx, DType dtype, LinearArgs* products, int64_t count,
                   std::byte* staged) {
  if (count == 0) return;
  const LinearKernels& kernels = isa.matmul.linear[type_index(dtype)];
  size_t scratch_bytes = 0;
  int64_t most_rows = 0, num_inputs = 0, work = 0;
  for (int64_t i = 0; i < count; ++i) {
    products[i].staged = staged;
    const int64_t blocks = (products[i].m + kStagedBlock - 1) / kStagedBlock;
    staged += kernels.staged_bytes(blocks * kStagedBlock, products[i].k);
    scratch_bytes = std::max(scratch_bytes, kernels.scratch_bytes(products[i].m, products[i].k));
    most_rows = std::max(most_rows, products[i].m);
    num_inputs += products[i].m * products[i].k;
    work += products[i].m * products[i].n * products[i].k;
  }
  // As linear.cpp has it: less is done before another thread has woken up.
  constexpr int64_t kGrainInputs = 262144, kGrainWork = 65536;
  const LaunchContext alone;
  for_each_part(
      num_inputs < kGrainInputs ? alone : ctx, products, count, /*grain=*/1,
      [](const LinearArgs& each) { return (each.m + kStagedBlock - 1) / kStagedBlock; },
      [&](const LinearArgs& each, int64_t begin, int64_t end) {
        kernels.stage(each, begin * kStagedBlock, std::min(each.m, end * kStagedBlock));
      },
      [] {});
  // How many panels a kernel likes to be given at once, as linear.cpp has it too.
  constexpr int64_t kManyRows = 32;
  const int64_t together = most_rows == 1 ? 2 : most_rows > kManyRows ? 8 : 1;
  const auto release = isa.matmul.release;
  for_each_part(
      work < kGrainWork ? alone : ctx, products, count, together,
      [](const LinearArgs& each) { return (each.n + kPanelColumns - 1) / kPanelColumns; },
      [&](const LinearArgs& each, int64_t begin, int64_t end) {
        kernels.multiply(each, begin, end, thread_scratch(scratch_bytes));
      },
      [release] {
        if (release != nullptr) release();
      });
}

}  // namespace quire::cpu
