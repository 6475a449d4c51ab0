#include "worker/lora_slots.h"

#include <gtest/gtest.h>

#include <deque>

#include "util/error_of.h"
#include "worker/lora_rig.h"

namespace quire {
namespace {

constexpr const char* kNames[] = {"layers.0.q_proj", "layers.0.o_proj"};

// Adapters 1, 2 and 3 of ranks 1, 2 and 3, of which two may be in slots; a batch of requests that have them.
class LoraSlotsTest : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : kNames) rig.add_target({{name, 4, 0, 4}}, 3);
    for (const LoraId id : {1, 2, 3}) {
      const ModelDirectory directory;
      std::vector<LoraValues> modules = {random_lora(kNames[0], 3, 4, static_cast<int64_t>(id))};
      if (id == 2) modules.push_back(random_lora(kNames[1], 3, 4, 5));
      store.load(id, make_adapter(directory, modules));
    }
    slots = std::make_unique<LoraSlots>(rig.targets, store, make_host_lora_memory(rig.targets),
                                        /*max_num_batched_tokens=*/16);
  }
  void add(LoraId lora) {
    CachedRequestState& request = requests.emplace_back();
    request.request_id = requests.size();
    request.prompt_token_ids = {1};
    request.block_ids = {{1}};
    request.lora_id = lora;
    batch.add(request);
  }
  LoraRows prepare(const std::vector<int32_t>& num_scheduled) { return slots->prepare(batch, num_scheduled); }
  // "slot: rows ..." of each segment.
  static std::string text_of(const LoraRows& loras) {
    std::string text;
    for (const LoraSegment& segment : loras.segments) {
      text += str(text.empty() ? "" : "; ", segment.slot, ":");
      for (int32_t r = segment.begin; r < segment.end; ++r)
        text += str(" ", loras.rows[static_cast<size_t>(r)]);
    }
    return text.empty() ? "none" : text;
  }
  // What lies in a slot, as the ranks of the targets.
  std::string ranks_of(int32_t slot) const {
    const LoraSlot* targets = slots->step({}, LoraUse::kLinears).slots + slot * 2;
    return str(targets[0].ranks[0], " ", targets[1].ranks[0]);
  }

  LoraRig rig{/*max_loras=*/2};
  LoraStore store{rig.targets, rig.ops, nullptr, rig.dtype};
  std::unique_ptr<LoraSlots> slots;
  InputBatch batch{/*max_num_seqs=*/6, /*max_model_len=*/8, std::vector{16}};
  std::deque<CachedRequestState> requests;
};

TEST_F(LoraSlotsTest, RowsAreSideBySideBySlotAndThoseWithoutAnAdapterLeftOut) {
  slots->apply(std::vector<LoraLoad>{{2, 0}, {1, 1}});
  for (const LoraId id : {1, 0, 2, 1, 2}) add(id);
  EXPECT_EQ(text_of(prepare({2, 3, 1, 1, 2})), "0: 5 7 8; 1: 0 1 6");
  EXPECT_EQ(ranks_of(0), "2 5");
  EXPECT_EQ(ranks_of(1), "1 0");
  EXPECT_EQ(slots->step({}, LoraUse::kLinears).slots[0].a, store.find(2)->at(0).a);
  EXPECT_EQ(slots->step({}, LoraUse::kLinears).targets, &rig.targets);
}

TEST_F(LoraSlotsTest, ASlotThatNoRowHasIsNoSegment) {
  slots->apply(std::vector<LoraLoad>{{1, 0}, {2, 1}});
  add(2);
  add(1);
  EXPECT_EQ(text_of(prepare({2, 0})), "1: 0 1");
  EXPECT_EQ(text_of(prepare({0, 1})), "0: 0");
}

TEST_F(LoraSlotsTest, ABatchWithoutAdaptersHasNoSegments) {
  slots->apply(std::vector<LoraLoad>{{1, 0}});
  EXPECT_EQ(text_of(prepare({})), "none");
  add(0);
  EXPECT_EQ(text_of(prepare({3})), "none");
  add(1);
  EXPECT_EQ(text_of(prepare({3, 0})), "none");
  EXPECT_EQ(text_of(prepare({3, 1})), "0: 3");
}

TEST_F(LoraSlotsTest, AnAdapterComesInsteadOfAnother) {
  slots->apply(std::vector<LoraLoad>{{2, 0}, {1, 1}});
  slots->apply(std::vector<LoraLoad>{{3, 0}});
  add(3);
  add(1);
  EXPECT_EQ(text_of(prepare({1, 1})), "0: 0; 1: 1");
  EXPECT_EQ(ranks_of(0), "3 0");  // nothing of the other is left
  add(2);
  const std::string error = error_of<InternalError>([&] { prepare({1, 1, 1}); });
  EXPECT_NE(error.find("adapter 2 is in no slot"), std::string::npos) << error;
}

TEST_F(LoraSlotsTest, WhatLiesInASlotOutlivesTheStore) {
  slots->apply(std::vector<LoraLoad>{{1, 0}});
  const std::weak_ptr<const LoraWeights> weights = store.find(1);
  store.unload(1);
  add(1);
  EXPECT_EQ(text_of(prepare({1})), "0: 0");
  EXPECT_FALSE(weights.expired());
  slots->apply(std::vector<LoraLoad>{{2, 0}});
  EXPECT_TRUE(weights.expired());
}

TEST_F(LoraSlotsTest, WhatTheStoreHasNotAndSlotsThatThereAreNotAreBrokenPromises) {
  slots->apply(std::vector<LoraLoad>{{1, 0}});
  EXPECT_THROW(slots->apply(std::vector<LoraLoad>{{9, 0}}), InternalError);
  EXPECT_THROW(slots->apply(std::vector<LoraLoad>{{2, 2}}), InternalError);
  EXPECT_THROW(slots->apply(std::vector<LoraLoad>{{2, -1}}), InternalError);
  add(1);
  EXPECT_EQ(text_of(prepare({1})), "0: 0");  // what lay there lies there still
}

}  // namespace
}  // namespace quire
