#include "engine/lora_registry.h"

#include <optional>
#include <random>

#include "engine/lora_registry_rig.h"
#include "util/sanitized.h"
#include "util/str.h"

namespace quire {
namespace {

TEST_F(LoraRegistryTest, WhoseTimeIsOverIsToldAndTheOthersGoOn) {
  for (const char* name : {"a", "b", "c", "d"}) add(name);
  auto a = std::make_optional<Waiter>(registry, "a"), b = std::make_optional<Waiter>(registry, "b");
  EXPECT_EQ(a->wait(), "");
  EXPECT_EQ(b->wait(), "");
  const auto in_ms = [](int ms) { return LoraRegistry::Clock::now() + std::chrono::milliseconds(ms); };
  Waiter late(registry, "c", in_ms(30)), later(registry, "c", in_ms(60)), stays(registry, "c"),
      alone(registry, "d", in_ms(45)), passed(registry, "d", in_ms(-1));
  EXPECT_EQ(passed.wait(), LoraRegistry::kTimeIsOver);
  EXPECT_EQ(late.wait(), LoraRegistry::kTimeIsOver);
  EXPECT_EQ(alone.wait(), LoraRegistry::kTimeIsOver);
  EXPECT_EQ(later.wait(), LoraRegistry::kTimeIsOver);
  EXPECT_FALSE(stays.is_told());
  const int num_loads = loader.num_loads;
  a.reset();
  EXPECT_EQ(stays.wait(), "");
  EXPECT_EQ(loader.num_loads, num_loads + 1);  // nobody waits for d any more
  Waiter again(registry, "d", in_ms(60'000));
  b.reset();
  EXPECT_EQ(again.wait(), "");
}

TEST_F(LoraRegistryTest, WhatWasAddedIsThereUntilItIsRemoved) {
  EXPECT_TRUE(add("a", 5));
  EXPECT_TRUE(registry.has("a"));
  const LoraInfo a = info("a");
  EXPECT_EQ(a.lora_path, "/adapters/a");
  EXPECT_EQ(a.lora_int_id, 5);
  EXPECT_EQ(a.rank, 8);
  EXPECT_TRUE(a.is_loaded);
  EXPECT_FALSE(a.is_pinned);
  EXPECT_EQ(a.num_requests, 0);
  EXPECT_TRUE(registry.remove("a"));
  EXPECT_FALSE(registry.remove("a"));
  EXPECT_FALSE(registry.has("a"));
  EXPECT_EQ(names(), "");
  EXPECT_TRUE(loader.loaded().empty());
}

TEST_F(LoraRegistryTest, TheSameOnceMoreIsNotReadAgain) {
  EXPECT_TRUE(add("a", 5));
  EXPECT_FALSE(add("a", 5));
  EXPECT_FALSE(add("a"));  // whoever does not say a number means this one
  EXPECT_EQ(loader.num_loads, 1);
}

TEST_F(LoraRegistryTest, NamesAndNumbersOfOthersAreRefused) {
  add("a", 5);
  add("b");
  EXPECT_EQ(add_error({"a", 5, "/elsewhere"}),
            "lora_name 'a' is that of /adapters/a: remove that one first, choose another name, or set "
            "load_inplace");
  EXPECT_EQ(add_error({"a", 6, "/adapters/a"}),
            "lora_name 'a' is that of /adapters/a: remove that one first, choose another name, or set "
            "load_inplace");
  EXPECT_EQ(add_error({"c", 5, "/adapters/c"}),
            "lora_int_id 5 is that of 'a': choose another number, or 0 for none");
  EXPECT_EQ(loader.num_loads, 2);
  registry.remove("a");
  EXPECT_TRUE(add("c", 5));
}

TEST_F(LoraRegistryTest, WhatIsNoNameIsRefused) {
  EXPECT_EQ(add_error({"", 0, "/d"}), "lora_name must have 1 to 512 bytes, got 0");
  EXPECT_EQ(add_error({std::string(513, 'a'), 0, "/d"}), "lora_name must have 1 to 512 bytes, got 513");
  EXPECT_EQ(add_error({std::string("a\0b", 3), 0, "/d"}), "lora_name must not hold control characters");
  EXPECT_EQ(add_error({"a\x7F", 0, "/d"}), "lora_name must not hold control characters");
  EXPECT_EQ(add_error({"a", -1, "/d"}), "lora_int_id must be at least 1, or 0 for none, got -1");
  EXPECT_EQ(add_error({"a", 0, ""}), "lora_path is empty; give a directory with adapter_config.json");
  EXPECT_TRUE(registry.add({std::string(512, 'a'), 0, "/d"}));
  EXPECT_TRUE(registry.add({"é", 0, "/d"}));
}

TEST_F(LoraRegistryTest, ANameThatNobodyHasIsRefusedWithTheNearest) {
  EXPECT_EQ(error_of([&] { registry.use("a"); }), "lora_name 'a': no adapter was added; add_lora does");
  add("pirate");
  add("poet");
  EXPECT_EQ(error_of([&] { registry.use("pirates"); }),
            "lora_name 'pirates' is no adapter's; the nearest is 'pirate', and add_lora adds others");
}

TEST_F(LoraRegistryTest, TheOneUsedLeastRecentlyGoes) {
  add("a");
  add("b");
  registry.use("a");
  add("c");
  EXPECT_EQ(names(), "a+b-c+");
  EXPECT_EQ(loader.most, 2U);
  const auto held = registry.use("a");
  add("d");
  add("e");
  EXPECT_EQ(names(), "a+b-c-d-e+");
}

TEST_F(LoraRegistryTest, WhileAllAreInUseNoneCanBeAdded) {
  add("a");
  add("b");
  auto a = registry.use("a");
  const auto b = registry.use("b");
  EXPECT_EQ(error_of<ResourceExhausted>([&] { add("c"); }), kAllInUse);
  EXPECT_EQ(names(), "a+b+");
  a.reset();
  EXPECT_TRUE(add("c"));
  EXPECT_EQ(names(), "a-b+c+");
}

TEST_F(LoraRegistryTest, WhatIsPinnedStays) {
  EXPECT_FALSE(registry.pin("a"));
  for (const char* name : {"a", "b", "c"}) add(name);
  EXPECT_TRUE(registry.pin("a"));  // and is read first
  EXPECT_TRUE(info("a").is_pinned);
  EXPECT_EQ(info("a").num_requests, 0);
  add("d");
  add("e");
  EXPECT_EQ(names(), "a+b-c-d-e+");
  EXPECT_TRUE(registry.pin("e"));
  EXPECT_EQ(error_of<ResourceExhausted>([&] { registry.pin("b"); }), kAllInUse);
  // Nobody will make room: who waits is told.
  EXPECT_EQ(Waiter(registry, "b").wait(), kAllInUse);
  EXPECT_TRUE(registry.remove("a"));
  EXPECT_EQ(Waiter(registry, "b").wait(), "");
}

TEST_F(LoraRegistryTest, WhoWaitsForAPinnedOneThatWasRemovedGetsItsPlace) {
  for (const char* name : {"a", "b", "c"}) add(name);
  registry.pin("a");
  registry.pin("b");
  auto b = registry.use("b");
  registry.remove("b");
  Waiter c(registry, "c");
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(c.is_told());
  b.reset();
  EXPECT_EQ(c.wait(), "");
}

TEST_F(LoraRegistryTest, ARemovedOneGoesWithItsLastUseAndItsNameAtOnce) {
  add("a", 5);
  auto first = registry.use("a"), second = registry.use("a");
  EXPECT_EQ(info("a").num_requests, 2);
  EXPECT_TRUE(registry.remove("a"));
  EXPECT_FALSE(registry.has("a"));
  EXPECT_FALSE(registry.pin("a"));
  EXPECT_THROW(registry.use("a"), InvalidArgument);
  EXPECT_TRUE(add("a", 5));
  const auto third = registry.use("a");
  EXPECT_NE(first->id(), third->id());
  EXPECT_EQ(info("a").num_requests, 1);
  first.reset();
  EXPECT_EQ(loader.loaded(), (std::set{second->id(), third->id()}));
  const LoraId gone = second->id();
  second.reset();
  EXPECT_FALSE(loader.loaded().contains(gone));
  EXPECT_TRUE(add("b"));  // there is room again
}

TEST_F(LoraRegistryTest, ANameHasItsVersionAsLongAsItsFilesAreTheSame) {
  const auto version = [&](const std::string& path, const std::string& stamp) {
    registry.remove("a");
    loader.stamps[path] = stamp;
    registry.add({"a", 0, path});
    return registry.use("a")->fingerprint();
  };
  EXPECT_EQ(version("/d", "monday"), "");
  EXPECT_EQ(version("/d", "monday"), "");
  EXPECT_EQ(version("/d", "tuesday"), "1");
  EXPECT_EQ(version("/e", "tuesday"), "1");
  // Nobody remembers what was there before that.
  EXPECT_EQ(version("/d", "monday"), "2");
  add("b");
  EXPECT_EQ(registry.use("b")->fingerprint(), "");
  EXPECT_EQ(loader.num_fingerprints, 0);
}

TEST_F(LoraRegistryTest, WhereFingerprintsAreTakenTheyAreTheVersion) {
  LoraRegistry other(loader, 1, /*takes_fingerprints=*/true);
  const auto fingerprint = [&](const std::string& stamp) {
    other.remove("a");
    loader.stamps["/d"] = stamp;
    other.add({"a", 0, "/d"});
    return other.use("a")->fingerprint();
  };
  EXPECT_EQ(fingerprint("monday"), "print of monday");
  EXPECT_EQ(fingerprint("tuesday"), "print of tuesday");
  EXPECT_EQ(fingerprint("monday"), "print of monday");
  EXPECT_EQ(loader.num_fingerprints, 3);
  // One that is read again has the one that it had.
  other.add({"b", 0, "/e"});
  other.load_now(*other.use("a"));
  EXPECT_EQ(other.use("a")->fingerprint(), "print of monday");
  EXPECT_EQ(loader.num_fingerprints, 4);
}

TEST_F(LoraRegistryTest, FilesThatChangedSinceTheyWereAddedAreRefused) {
  for (const char* name : {"a", "b", "c"}) add(name);
  loader.stamps["/adapters/a"] = "another";
  const std::string expected =
      "lora_name 'a': the files of /adapters/a have changed since it was added: remove it, and add it anew";
  EXPECT_EQ(Waiter(registry, "a").wait(), expected);
  EXPECT_EQ(error_of([&] { registry.load_now(*registry.use("a")); }), expected);
  EXPECT_EQ(error_of([&] { registry.pin("a"); }), expected);
  EXPECT_FALSE(info("a").is_pinned);
  settle();
  registry.remove("a");
  EXPECT_TRUE(add("a"));
  EXPECT_EQ(registry.use("a")->fingerprint(), "1");
  EXPECT_EQ(loader.loaded().size(), 2U);
}

TEST_F(LoraRegistryTest, WhatFailsToLoadLeavesItsRoom) {
  add("a");
  loader.failure = "torn";
  for (int i = 0; i < 3; ++i) EXPECT_EQ(add_error({"b", 0, "/adapters/b"}), "torn");
  EXPECT_FALSE(registry.has("b"));
  loader.failure.clear();
  add("b");
  add("c");
  loader.failure = "torn";
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Waiter(registry, "a").wait(), "torn");
  loader.failure.clear();
  EXPECT_EQ(Waiter(registry, "a").wait(), "");
  const auto a = registry.use("a");
  EXPECT_EQ(Waiter(registry, "b").wait(), "");
  EXPECT_EQ(loader.loaded().size(), 2U);
}

TEST_F(LoraRegistryTest, WhatIsInMemoryIsNotWaitedFor) {
  add("a");
  const Waiter waiter(registry, "a");
  EXPECT_TRUE(waiter.was_there);
  EXPECT_FALSE(waiter.is_told());
  EXPECT_EQ(loader.num_loads, 1);
}

TEST_F(LoraRegistryTest, WhoWaitsForTheSameIsToldAtTheSameTimeInOrder) {
  for (const char* name : {"a", "b", "c"}) add(name);
  auto b = registry.use("b"), c = registry.use("c");
  std::vector<int> order;
  std::promise<void> last;
  const auto a = registry.use("a");
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(registry.is_loaded(*a, [&, i](const std::string& error) {
      EXPECT_EQ(error, "");
      order.push_back(i);
      if (i == 2) last.set_value();
    }));
  }
  b.reset();
  last.get_future().wait();
  EXPECT_EQ(order, (std::vector{0, 1, 2}));
  EXPECT_EQ(loader.num_loads, 4);
}

TEST_F(LoraRegistryTest, WhoWaitsForRoomGetsItsTurnWhenAnotherEnds) {
  for (const char* name : {"a", "b", "c", "d"}) add(name);
  auto c = registry.use("c"), d = registry.use("d");
  Waiter a(registry, "a"), b(registry, "b");
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(a.was_there || a.is_told());
  c.reset();
  EXPECT_EQ(a.wait(), "");
  EXPECT_FALSE(b.is_told());
  EXPECT_EQ(names(), "a+b-c-d+");
  d.reset();
  EXPECT_EQ(b.wait(), "");
  EXPECT_EQ(loader.most, 2U);
}

// The first waits for room that has who waits behind it.
TEST_F(LoraRegistryTest, WhoWaitsForWhatSomebodyElseHasReadIsToldAtOnce) {
  for (const char* name : {"z", "a", "b", "c"}) add(name);
  auto c = registry.use("c");
  std::promise<void> begun, go_on;
  loader.before_load = [&, is_first = std::make_shared<std::atomic<bool>>(true)] {
    if (!is_first->exchange(false)) return;
    begun.set_value();
    go_on.get_future().wait();
  };
  Waiter z(registry, "z");
  begun.get_future().wait();
  Waiter a(registry, "a");
  auto b = std::make_unique<Waiter>(registry, "b");
  c.reset();
  registry.load_now(*b->use);
  go_on.set_value();
  EXPECT_EQ(z.wait(), "");
  EXPECT_EQ(b->wait(), "");
  EXPECT_FALSE(a.is_told());
  b.reset();
  EXPECT_EQ(a.wait(), "");
}

TEST_F(LoraRegistryTest, OneThatIsRemovedWhileItIsAwaitedComesAndGoes) {
  for (const char* name : {"a", "b", "c"}) add(name);
  auto b = registry.use("b"), c = registry.use("c");
  {
    Waiter a(registry, "a");
    registry.remove("a");
    b.reset();
    EXPECT_EQ(a.wait(), "");
    EXPECT_TRUE(loader.loaded().contains(a.use->id()));
  }
  while (loader.loaded().size() > 1) std::this_thread::yield();
  EXPECT_EQ(loader.loaded(), std::set{c->id()});
}

TEST_F(LoraRegistryTest, OthersAreUsedWhileOneIsRead) {
  add("a");
  std::promise<void> begun, go_on;
  loader.before_load = [&] {
    begun.set_value();
    go_on.get_future().wait();
  };
  auto adding = std::async(std::launch::async, [&] { return add("b"); });
  begun.get_future().wait();
  EXPECT_FALSE(registry.has("b"));
  EXPECT_TRUE(Waiter(registry, "a").was_there);
  EXPECT_EQ(names(), "a+");
  go_on.set_value();
  EXPECT_TRUE(adding.get());
  loader.before_load = nullptr;
}

TEST_F(LoraRegistryTest, WhoLoadsNowWaitsForWhoReadsItAlready) {
  for (const char* name : {"a", "b", "c"}) add(name);
  std::promise<void> begun, go_on;
  loader.before_load = [&] {
    begun.set_value();
    go_on.get_future().wait();
  };
  Waiter waiter(registry, "a");
  begun.get_future().wait();
  auto loading = std::async(std::launch::async, [&] { registry.load_now(*registry.use("a")); });
  go_on.set_value();
  loading.get();
  EXPECT_EQ(waiter.wait(), "");
  EXPECT_EQ(loader.num_loads, 4);
  loader.before_load = nullptr;
}

// ---- the end
// -----------------------------------------------------------------------------------------------

TEST(LoraRegistryCloseTest, NobodyIsCalledAndWhatTheyHoldGoes) {
  FakeLoader loader;
  auto registry = std::make_unique<LoraRegistry>(loader, 1);
  registry->add({"a", 0, "/a"});
  registry->add({"b", 0, "/b"});
  const auto held = std::make_shared<int>();
  auto b = registry->use("b");
  for (int i = 0; i < 2; ++i) {
    const auto a = registry->use("a");
    registry->is_loaded(*a, [held, a](const std::string&) { FAIL(); });
  }
  EXPECT_EQ(held.use_count(), 3);
  registry->close();
  EXPECT_EQ(held.use_count(), 1);
  loader.is_gone = true;
  b.reset();
  registry->remove("a");
  registry->remove("b");
  registry->close();
  const std::string ended = "the engine has ended";
  EXPECT_EQ(error_of<ResourceExhausted>([&] { registry->add({"c", 0, "/c"}); }), ended);
  registry.reset();
}

TEST(LoraRegistryCloseTest, WhatIsNotThereIsRefusedAfterwards) {
  FakeLoader loader;
  LoraRegistry registry(loader, 1);
  registry.add({"a", 0, "/a"});
  registry.add({"b", 0, "/b"});
  const auto a = registry.use("a"), b = registry.use("b");
  registry.close();
  const auto never = [](const std::string&) { FAIL(); };
  EXPECT_TRUE(registry.is_loaded(*b, never));
  EXPECT_THROW(registry.is_loaded(*a, never), ResourceExhausted);
  EXPECT_THROW(registry.load_now(*a), ResourceExhausted);
  EXPECT_THROW(registry.pin("a"), ResourceExhausted);
}

TEST(LoraRegistryCloseTest, WhoReadsIsWaitedFor) {
  for (const bool awaited : {true, false}) {
    FakeLoader loader;
    LoraRegistry registry(loader, 1);
    registry.add({"a", 0, "/a"});
    registry.add({"b", 0, "/b"});
    std::promise<void> begun;
    std::atomic<bool> is_read = false;
    loader.before_load = [&] {
      begun.set_value();
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      is_read = true;
    };
    std::future<void> reading;
    std::unique_ptr<Waiter> waiter;
    if (awaited) {
      waiter = std::make_unique<Waiter>(registry, "a");
    } else {
      reading = std::async(std::launch::async, [&] { registry.add({"c", 0, "/c"}); });
    }
    begun.get_future().wait();
    std::vector<std::future<void>> closing;
    for (int i = 0; i < 4; ++i) {
      closing.push_back(std::async(std::launch::async, [&] {
        registry.close();
        EXPECT_TRUE(is_read);
      }));
    }
    for (auto& each : closing) each.get();
    loader.is_gone = true;
    if (reading.valid()) reading.get();
  }
}

TEST(LoraRegistryCloseTest, WhoLoadsNowBehindAnotherIsWokenUp) {
  FakeLoader loader;
  LoraRegistry registry(loader, 1);
  registry.add({"a", 0, "/a"});
  registry.add({"b", 0, "/b"});
  std::promise<void> begun, go_on;
  loader.before_load = [&] {
    begun.set_value();
    go_on.get_future().wait();
  };
  const Waiter waiter(registry, "a");
  begun.get_future().wait();
  auto loading = std::async(std::launch::async, [&] { registry.load_now(*waiter.use); });
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  auto closing = std::async(std::launch::async, [&] { registry.close(); });
  EXPECT_THROW(loading.get(), ResourceExhausted);
  go_on.set_value();
  closing.get();
}

// Four threads add, remove, name, await and pin: in the end there is what nobody has removed.
TEST(LoraRegistryThreadsTest, NothingIsLoadedThatShouldNotBe) {
  constexpr int kNumOperations = kSanitized ? 500 : 2500, kMaxLoras = 3;
  FakeLoader loader;
  LoraRegistry registry(loader, kMaxLoras);
  std::atomic<int> num_told = 0, num_awaited = 0;
  const auto work = [&](uint32_t seed) {
    std::mt19937 rng(seed);
    std::vector<std::shared_ptr<const LoraRegistry::Use>> held;
    for (int i = 0; i < kNumOperations; ++i) {
      const std::string name = str("adapter", rng() % 6);
      try {
        switch (rng() % 8) {
          case 0: registry.add({name, 0, "/" + name}); break;
          case 1: registry.remove(name); break;
          case 2:
            if (rng() % 50 == 0) registry.pin(name);
            break;
          case 3:
          case 4: {
            auto use = registry.use(name);
            const bool is_there = registry.is_loaded(*use, [&, use](const std::string& error) {
              EXPECT_TRUE(error.empty() || error.starts_with("all 3 adapters")) << error;
              ++num_told;
            });
            num_awaited += !is_there;
            if (is_there) held.push_back(std::move(use));
            break;
          }
          case 5: registry.load_now(*registry.use(name)); break;
          case 6: EXPECT_LE(registry.list().size(), 6U); break;
          default:
            if (!held.empty()) held.erase(held.begin() + static_cast<std::ptrdiff_t>(rng() % held.size()));
        }
      } catch (const InvalidArgument&) {  // it was not there
      } catch (const ResourceExhausted&) {
      }
      if (held.size() > 2) held.erase(held.begin());
    }
  };
  std::vector<std::thread> threads;
  for (uint32_t seed = 0; seed < 4; ++seed) threads.emplace_back(work, seed);
  for (auto& thread : threads) thread.join();
  for (const LoraInfo& each : registry.list()) {
    if (each.is_pinned) registry.remove(each.lora_name);
  }
  for (int i = 0; i < 20000 && num_told < num_awaited; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(num_told, num_awaited);
  EXPECT_GT(num_awaited, 0);
  EXPECT_LE(loader.most, static_cast<size_t>(kMaxLoras));
  registry.close();
  size_t num_loaded = 0;
  for (const LoraInfo& each : registry.list()) {
    EXPECT_EQ(each.num_requests, 0) << each.lora_name;
    num_loaded += each.is_loaded;
  }
  EXPECT_EQ(loader.loaded().size(), num_loaded);
}

}  // namespace
}  // namespace quire
