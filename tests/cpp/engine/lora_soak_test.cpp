// Adapters come and go by the thousand while requests that have them do.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <mutex>
#include <set>

#include "engine/engine_impl.h"
#include "engine/lora_engine_rig.h"
#include "engine/tiny_lora_model.h"
#include "util/sanitized.h"

namespace quire {
namespace {

class EngineWithInsight : public Engine {
 public:
  using Engine::Engine;
  // Slots whose adapters requests of the scheduler have.
  int32_t num_slots_in_use() const {
    int32_t count = 0;
    impl_->core().call([&](EngineCore& core) { count = core.scheduler().lora_manager().num_running(); });
    return count;
  }
};

class LoraSoak {
 public:
  // QUIRE_LORA_OPERATIONS makes it a long run.
  static int num_operations() {
    const char* wanted = std::getenv("QUIRE_LORA_OPERATIONS");
    return wanted != nullptr ? std::atoi(wanted) : kSanitized ? 300 : 10'000;
  }

  LoraSoak(bool async_scheduling, int num_operations) : model_(8), num_operations_(num_operations) {
    config_ = model_.config(kMaxLoras, kMaxCpuLoras);
    config_.async_scheduling = async_scheduling;
    config_.max_num_seqs = 8;
    config_.num_gpu_blocks_override = 12;  // fewer than eight requests come to need: some are preempted
    for (size_t adapter = 0; adapter < model_.num_adapters(); ++adapter) learn(adapter);
    learn(kWithout);
    std::set<std::vector<int32_t>> different;
    for (const auto& [asked, answer] : answers_) different.insert(answer);
    EXPECT_EQ(different.size(), (model_.num_adapters() + 1) * kNumFamilies);
  }

  void run() {
    EngineWithInsight engine(config_);
    for (int i = 0; i < num_operations_; ++i) {
      const std::string name = str("n", rng_() % kNumNames);
      const size_t adapter = rng_() % model_.num_adapters();
      try {
        switch (rng_() % 16) {
          case 0:
          case 1: add(engine, name, adapter, /*load_inplace=*/false); break;
          case 2: add(engine, name, adapter, /*load_inplace=*/true); break;
          case 3: remove(engine, name); break;
          case 4:
            if (pinned_.empty() && engine.pin_lora(name)) pinned_ = name;
            break;
          case 5:
            if (!pinned_.empty()) remove(engine, pinned_);
            break;
          case 6:
          case 7:
          case 8: abort(engine); break;
          default: ask(engine, name);
        }
      } catch (const InvalidArgument&) {  // nobody has the name, or another one
        ++num_refused_;
      } catch (const ResourceExhausted&) {  // requests have all that may be in memory
        ++num_without_room_;
      }
    }
    wait_until_at_most(0);
    expect_all_free(engine);
  }

 private:
  static constexpr int32_t kMaxLoras = 2, kMaxCpuLoras = 4, kMaxTokens = 20;
  static constexpr size_t kNumNames = 6, kNumFamilies = 4, kMaxUnfinished = 24;
  static constexpr size_t kWithout = ~size_t{0};  // what computes: no adapter

  // One on its way.
  struct Sent {
    size_t computes = kWithout;
    size_t family = 0;
    int32_t num_tokens = 0;
    bool is_aborted = false;
  };

  // What each prompt is answered with; an engine of this one alone computes it.
  void learn(size_t adapter) {
    Engine engine(config_);
    const std::string name = adapter == kWithout ? "" : "it";
    if (adapter != kWithout) engine.add_lora({name, 0, model_.adapter(adapter).path()});
    for (size_t family = 0; family < kNumFamilies; ++family) {
      const EngineRequest request = TinyLoraModel::request(name, static_cast<int32_t>(family), kMaxTokens);
      answers_[{adapter, family}] = engine.generate({request}).at(0).outputs.at(0).token_ids;
    }
  }

  void add(Engine& engine, const std::string& name, size_t adapter, bool load_inplace) {
    if (engine.add_lora({name, 0, model_.adapter(adapter).path(), load_inplace})) named_[name] = adapter;
  }

  void remove(Engine& engine, const std::string name) {
    engine.remove_lora(name);
    named_.erase(name);
    if (pinned_ == name) pinned_.clear();
  }

  void ask(Engine& engine, const std::string& name) {
    wait_until_at_most(kMaxUnfinished - 1);
    Sent sent;
    sent.family = rng_() % kNumFamilies;
    sent.num_tokens = 1 + static_cast<int32_t>(rng_() % kMaxTokens);
    const bool has_lora = rng_() % 8 != 0;
    if (has_lora && named_.contains(name)) {
      sent.computes = named_.at(name);
      for (const LoraInfo& info : engine.list_loras())
        num_read_again_ += info.lora_name == name && !info.is_loaded;
    }
    EngineRequest request =
        TinyLoraModel::request(has_lora ? name : "", static_cast<int32_t>(sent.family), sent.num_tokens);
    request.sampling_params.n = rng_() % 6 == 0 ? 2 : 1;
    request.request_id = str("r", ++num_sent_);
    {
      const std::lock_guard lock(mutex_);
      sent_[request.request_id] = sent;
    }
    try {
      engine.add_request(request, [this](RequestOutput&& output) {
        if (output.finished) take(output);
      });
    } catch (...) {
      const std::lock_guard lock(mutex_);
      sent_.erase(request.request_id);
      throw;
    }
  }

  void abort(Engine& engine) {
    std::string id;
    {
      const std::lock_guard lock(mutex_);
      if (sent_.empty()) return;
      auto chosen = sent_.begin();
      std::advance(chosen, static_cast<std::ptrdiff_t>(rng_() % sent_.size()));
      chosen->second.is_aborted = true;
      id = chosen->first;
    }
    num_aborted_ += engine.abort_request(id);
  }

  void take(const RequestOutput& output) {
    const std::lock_guard lock(mutex_);
    const auto found = sent_.find(output.request_id);
    ASSERT_NE(found, sent_.end());
    const Sent& sent = found->second;
    std::vector<int32_t> expected = answers_.at({sent.computes, sent.family});
    expected.resize(static_cast<size_t>(sent.num_tokens));
    for (const CompletionOutput& completion : output.outputs) {
      EXPECT_EQ(completion.error, "");
      if (sent.is_aborted && completion.finish_reason == FinishReason::kAbort)
        expected.resize(std::min(expected.size(), completion.token_ids.size()));
      EXPECT_EQ(completion.token_ids, expected) << "adapter " << sent.computes << ", family " << sent.family;
      ++num_answers_;
    }
    sent_.erase(found);
  }

  void wait_until_at_most(size_t count) {
    EXPECT_TRUE(comes_true([&] {
      const std::lock_guard lock(mutex_);
      return sent_.size() <= count;
    }));
  }

  void expect_all_free(EngineWithInsight& engine) {
    while (!named_.empty()) remove(engine, std::string(named_.begin()->first));
    EXPECT_TRUE(engine.list_loras().empty());
    EXPECT_TRUE(comes_true([&] {
      const EngineStats stats = engine.stats();
      return stats.num_running_reqs == 0 && stats.num_waiting_reqs == 0 && engine.num_slots_in_use() == 0;
    }));
    EXPECT_EQ(engine.stats().num_waiting_tokens, 0);
    EXPECT_EQ(engine.stats().num_free_blocks, engine.stats().num_total_blocks);
    EXPECT_EQ(engine.dead_error(), "");
    // All places in memory can be taken, each slot be computed with, and every block be held.
    for (int32_t i = 0; i < kMaxCpuLoras; ++i) {
      EXPECT_TRUE(engine.add_lora({str("last", i), 0, model_.adapter(static_cast<size_t>(i)).path()}));
      EXPECT_TRUE(engine.pin_lora(str("last", i)));
    }
    for (int32_t i = 0; i < kMaxCpuLoras; ++i) {
      const auto output = engine.generate({TinyLoraModel::request(str("last", i), 0, kMaxTokens)}).at(0);
      EXPECT_EQ(output.outputs.at(0).token_ids, (answers_.at({static_cast<size_t>(i), 0})));
    }
    // Eight at once come to need more blocks than there are.
    std::vector<EngineRequest> together;
    for (int32_t i = 0; i < 8; ++i)
      together.push_back(TinyLoraModel::request(str("last", i % kMaxLoras), 0, kMaxTokens));
    const std::vector<RequestOutput> outputs = engine.generate(std::move(together));
    for (size_t i = 0; i < outputs.size(); ++i)
      EXPECT_EQ(outputs[i].outputs.at(0).token_ids, (answers_.at({i % kMaxLoras, 0})));
    EXPECT_GT(engine.stats().num_preemptions, 0U);
    // The run was one of everything.
    EXPECT_GT(num_answers_, num_operations_ / 6);
    EXPECT_GT(num_aborted_, 0);
    EXPECT_GT(num_refused_, 0);
    EXPECT_GT(num_read_again_, 0);
    if (num_operations_ >= 1000) {
      EXPECT_GT(num_without_room_, 0);
    }
  }

  const TinyLoraModel model_;
  const int num_operations_;
  EngineConfig config_;
  std::map<std::pair<size_t, size_t>, std::vector<int32_t>> answers_;
  std::mt19937 rng_{11};
  std::map<std::string, size_t> named_;  // which adapter each name stands for
  std::string pinned_;                   // at most one
  int num_sent_ = 0, num_refused_ = 0, num_without_room_ = 0, num_aborted_ = 0, num_read_again_ = 0;

  std::mutex mutex_;  // guards what follows
  std::map<std::string, Sent> sent_;
  int num_answers_ = 0;
};

class LoraSoakTest : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Scheduling, LoraSoakTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "async" : "sync"; });

TEST_P(LoraSoakTest, EveryAnswerIsItsAdaptersAndEveryBlockAndSlotComesBack) {
  LoraSoak(GetParam(), LoraSoak::num_operations()).run();
}

}  // namespace
}  // namespace quire
