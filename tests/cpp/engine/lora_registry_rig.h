// A registry over a loader that reads nothing.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "engine/lora_registry.h"
#include "quire/error.h"
#include "util/error_of.h"

namespace quire {

// Files are stamps by directory; what is loaded is counted.
class FakeLoraLoader final : public LoraLoader {
 public:
  LoadedLora load(LoraId id, const std::string& directory, bool with_fingerprint) override {
    if (before_load) before_load();
    const std::lock_guard lock(mutex_);
    ++num_loads;
    EXPECT_FALSE(is_gone);
    if (!failure.empty()) throw InvalidArgument(failure);
    EXPECT_TRUE(loaded_.insert(id).second) << "adapter " << id << " is loaded twice";
    most = std::max(most, loaded_.size());
    const auto stamp = stamps.find(directory);
    LoadedLora loaded{8, stamp == stamps.end() ? "of " + directory : stamp->second, ""};
    num_fingerprints += with_fingerprint;
    if (with_fingerprint) loaded.fingerprint = "print of " + loaded.stamp;
    return loaded;
  }
  void unload(LoraId id) override {
    const std::lock_guard lock(mutex_);
    EXPECT_FALSE(is_gone);
    EXPECT_EQ(loaded_.erase(id), 1U) << "adapter " << id << " is not loaded";
  }
  std::set<LoraId> loaded() const {
    const std::lock_guard lock(mutex_);
    return loaded_;
  }

  std::function<void()> before_load;  // on the thread that reads
  std::map<std::string, std::string> stamps;
  std::string failure;
  std::atomic<bool> is_gone = false;
  int num_loads = 0, num_fingerprints = 0;
  size_t most = 0;  // at a time

 private:
  mutable std::mutex mutex_;
  std::set<LoraId> loaded_;
};

// What a caller of is_loaded waits for, and the use that it holds meanwhile.
class LoraWaiter {
 public:
  LoraWaiter(LoraRegistry& registry, const std::string& name,
             LoraRegistry::Clock::time_point until = LoraRegistry::Clock::time_point::max())
      : use(registry.use(name)) {
    const auto told = told_;
    was_there = registry.is_loaded(
        *use, [told, held = use](const std::string& error) { told->set_value(error); }, until);
  }
  // What went wrong.
  std::string wait() { return answer_.get(); }
  bool is_told() const { return answer_.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }

  std::shared_ptr<const LoraRegistry::Use> use;
  bool was_there = false;

 private:
  std::shared_ptr<std::promise<std::string>> told_ = std::make_shared<std::promise<std::string>>();
  std::future<std::string> answer_ = told_->get_future();
};

class LoraRegistryTest : public testing::Test {
 protected:
  bool add(const std::string& name, int32_t number = 0) {
    return registry.add({name, number, "/adapters/" + name});
  }
  LoraInfo info(const std::string& name) const {
    for (const LoraInfo& each : registry.list())
      if (each.lora_name == name) return each;
    return {};
  }
  // Until those that were told have let go.
  void settle() const {
    const auto is_used = [](const LoraInfo& each) { return each.num_requests > 0; };
    while (std::ranges::any_of(registry.list(), is_used)) std::this_thread::yield();
  }
  std::string names() const {
    std::string text;
    for (const LoraInfo& each : registry.list()) text += each.lora_name + (each.is_loaded ? "+" : "-");
    return text;
  }
  std::string add_error(const LoraRequest& request) {
    return error_of([&] { registry.add(request); });
  }

  FakeLoraLoader loader;
  LoraRegistry registry{loader, /*max_cpu_loras=*/2};
};

inline constexpr const char* kAllLorasInUse =
    "all 2 adapters in memory are pinned, or unfinished requests have them: raise max_cpu_loras, or wait";

}  // namespace quire
