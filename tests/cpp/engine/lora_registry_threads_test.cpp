// The end of a registry, and many threads.
#include <random>
#include <thread>

#include "engine/lora_registry_rig.h"
#include "util/sanitized.h"
#include "util/str.h"

namespace quire {
namespace {

TEST(LoraRegistryCloseTest, NobodyIsCalledAndWhatTheyHoldGoes) {
  FakeLoraLoader loader;
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
  FakeLoraLoader loader;
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
    FakeLoraLoader loader;
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
    std::unique_ptr<LoraWaiter> waiter;
    if (awaited) {
      waiter = std::make_unique<LoraWaiter>(registry, "a");
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
  FakeLoraLoader loader;
  LoraRegistry registry(loader, 1);
  registry.add({"a", 0, "/a"});
  registry.add({"b", 0, "/b"});
  std::promise<void> begun, go_on;
  loader.before_load = [&] {
    begun.set_value();
    go_on.get_future().wait();
  };
  const LoraWaiter waiter(registry, "a");
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
  FakeLoraLoader loader;
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
