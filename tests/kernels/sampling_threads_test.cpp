// Draws whose rows threads share.
#include <cstring>

#include "sampling_fixture.h"

namespace quire {
namespace {

class SamplingThreadsTest : public SamplingTestBase {};

TEST_P(SamplingThreadsTest, ADrawDependsOnSeedAndPositionOnly) {
  ThreadPool pool(3);
  constexpr int64_t kRows = 9, kVocab = 32003;
  reserve(kRows, kVocab);
  const auto logits = [] { return std::move(Tensor(DType::kFloat32, kRows, kVocab).randomize(7)); };
  const auto draw = [&](const LaunchContext& ctx, uint64_t seed, int64_t position) {
    const Tensor rows = logits();
    Batch batch(rows);
    batch.seed.assign(kRows, seed);
    batch.position.assign(kRows, position);
    for (size_t r = 0; r < kRows; r += 2) batch.top_p[r] = 0.9F;
    return batch.sample(kernels(), ctx);
  };
  const auto first = draw(context(&pool), 1, 1);
  EXPECT_EQ(draw(context(), 1, 1), first);
  EXPECT_NE(draw(context(), 2, 1), first);
  EXPECT_NE(draw(context(), 1, 2), first);
  const Tensor rows = logits();
  Tensor one(DType::kFloat32, 1, kVocab);
  std::memcpy(one.view().data, rows.view().at(5), kVocab * sizeof(float));
  Batch alone(one);
  alone.seed[0] = 1;
  alone.position[0] = 1;
  EXPECT_EQ(alone.sample(kernels(), context())[0], first[5]);
}

QUIRE_FOR_EVERY_TABLE(SamplingThreadsTest);

}  // namespace
}  // namespace quire
