#include "engine/kv_cache_demand.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

TEST(SeqsAtOnceTest, LeftOpenTheyAreNoMoreThanBlocks) {
  EngineConfig config;
  ModelInfo model;
  model.max_num_seqs = 64;
  EXPECT_EQ(seqs_at_once(config, model, 1000), 64);
  EXPECT_EQ(seqs_at_once(config, model, 20), 20);
  config.max_num_seqs = 8;
  EXPECT_EQ(seqs_at_once(config, model, 1000), 8);
}

}  // namespace
}  // namespace quire
