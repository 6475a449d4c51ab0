// The cache's promises, with a compiler that does as it is told.
#include "grammar/grammar_cache.h"

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <set>

#include "grammar/parallel_for.h"
#include "quire/error.h"

namespace quire {
namespace {

struct FakeGrammar final : CompiledGrammar {
  std::unique_ptr<GrammarMatcher> make_matcher() const override { return nullptr; }
  size_t memory_bytes() const override { return 1000; }
};

// Compiles while the gate is open; "bad" is no grammar.
class FakeCompiler final : public GrammarCompiler {
 public:
  struct Gate {
    std::mutex mutex;
    std::condition_variable changed;
    bool open = true;
    std::vector<std::string> compiled;
  };
  explicit FakeCompiler(Gate& gate) : gate_(gate) {}
  void check(const GrammarKey&, std::span<const JsonSchemaPattern>) override {}
  void cancel() override {}
  std::shared_ptr<const CompiledGrammar> compile(const GrammarKey& key) override {
    std::unique_lock lock(gate_.mutex);
    gate_.changed.wait(lock, [&] { return gate_.open || key.text == "quick"; });
    gate_.compiled.push_back(key.text);
    if (key.text == "bad") throw InvalidArgument("it is bad");
    if (key.text == "large") throw std::bad_alloc();
    return std::make_shared<FakeGrammar>();
  }

 private:
  Gate& gate_;
};

class GrammarCacheTest : public testing::Test {
 protected:
  static GrammarKey key(const std::string& text) { return {GrammarKind::kRegex, true, text}; }
  std::unique_ptr<GrammarCache> make_cache(int32_t num_threads, int64_t max_bytes) {
    return std::make_unique<GrammarCache>(std::make_unique<FakeCompiler>(gate_), num_threads, max_bytes);
  }
  void set_gate(bool open) {
    const std::lock_guard lock(gate_.mutex);
    gate_.open = open;
    gate_.changed.notify_all();
  }
  static GrammarEntry::State wait(const GrammarEntry& entry) {
    while (entry.state.load() == GrammarEntry::State::kCompiling)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return entry.state.load();
  }
  size_t num_compiled() {
    const std::lock_guard lock(gate_.mutex);
    return gate_.compiled.size();
  }

  FakeCompiler::Gate gate_;
};

TEST_F(GrammarCacheTest, EqualGrammarsAreCompiledOnce) {
  set_gate(false);
  const auto cache = make_cache(2, 1 << 20);
  const auto first = cache->find_or_compile(key("a")), second = cache->find_or_compile(key("a"));
  EXPECT_EQ(first, second);
  GrammarKey other = key("a");
  other.any_whitespace = false;
  EXPECT_NE(cache->find_or_compile(other), first);
  set_gate(true);
  EXPECT_EQ(wait(*first), GrammarEntry::State::kReady);
  EXPECT_EQ(cache->find_or_compile(key("a")), first);
}

TEST_F(GrammarCacheTest, WhatIsNoGrammarIsRememberedToo) {
  const auto cache = make_cache(1, 1 << 20);
  EXPECT_EQ(wait(*cache->find_or_compile(key("bad"))), GrammarEntry::State::kFailed);
  const auto again = cache->find_or_compile(key("bad"));
  EXPECT_EQ(again->state.load(), GrammarEntry::State::kFailed);
  EXPECT_EQ(again->error, "it is bad");
  EXPECT_EQ(num_compiled(), 1U);
}

TEST_F(GrammarCacheTest, WhereThereIsNoMemoryForOneTheOthersAreCompiled) {
  const auto cache = make_cache(1, 1 << 20);
  const auto large = cache->find_or_compile(key("large")), other = cache->find_or_compile(key("a"));
  EXPECT_EQ(wait(*large), GrammarEntry::State::kFailed);
  EXPECT_NE(large->error, "");
  EXPECT_EQ(wait(*other), GrammarEntry::State::kReady);
}

TEST_F(GrammarCacheTest, TheOneUsedLongestAgoGoesWhenThereIsNoRoom) {
  const auto cache = make_cache(1, 2100);  // two, and their texts
  wait(*cache->find_or_compile(key("a")));
  wait(*cache->find_or_compile(key("b")));
  cache->find_or_compile(key("a"));
  wait(*cache->find_or_compile(key("c")));
  while (cache->bytes() > 2100) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  wait(*cache->find_or_compile(key("a")));
  EXPECT_EQ(num_compiled(), 3U);
  wait(*cache->find_or_compile(key("b")));
  EXPECT_EQ(num_compiled(), 4U);
}

TEST_F(GrammarCacheTest, OneInUseStays) {
  const auto cache = make_cache(1, 100);
  const auto used = cache->find_or_compile(key("a"));
  wait(*used);
  for (const char* other : {"b", "c", "d"}) wait(*cache->find_or_compile(key(other)));
  EXPECT_EQ(cache->find_or_compile(key("a")), used);
}

TEST_F(GrammarCacheTest, OneThatTakesLongHoldsUpNoOther) {
  set_gate(false);
  const auto cache = make_cache(2, 1 << 20);
  const auto slow = cache->find_or_compile(key("slow"));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // a thread has it
  EXPECT_EQ(wait(*cache->find_or_compile(key("quick"))), GrammarEntry::State::kReady);
  EXPECT_EQ(slow->state.load(), GrammarEntry::State::kCompiling);
  set_gate(true);
}

TEST_F(GrammarCacheTest, OneThatNobodyWaitsForIsNotCompiled) {
  set_gate(false);
  const auto cache = make_cache(1, 1 << 20);
  const auto first = cache->find_or_compile(key("a"));
  cache->find_or_compile(key("b"));  // let go of at once
  const auto third = cache->find_or_compile(key("c"));
  set_gate(true);
  wait(*third);
  EXPECT_EQ(gate_.compiled, (std::vector<std::string>{"a", "c"}));
}

TEST(ParallelForTest, EachPieceIsDoneOnce) {
  for (const int32_t num_threads : {0, 1, 3}) {
    ParallelFor threads(num_threads);
    for (const size_t count : {size_t{0}, size_t{1}, size_t{15}, size_t{16}, size_t{1000}}) {
      std::vector<std::atomic<int>> times(count);
      threads.run(count, [&](size_t i) { ++times[i]; });
      for (const auto& n : times) EXPECT_EQ(n.load(), 1);
    }
  }
}

}  // namespace
}  // namespace quire
