// What becomes of an adapter's files while an engine has it: read again, they are not what they were.
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <optional>
#include <system_error>
#include <thread>

#include "engine/lora_engine_rig.h"
#include "engine/tiny_lora_model.h"
#include "util/working_directory.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

// Two of three adapters are in memory: "mine" is on the disk, and is read when a request wants it.
class LoraDiskTest : public testing::TestWithParam<bool> {
 protected:
  LoraDiskTest() {
    EngineConfig config = model.config(/*max_loras=*/2, /*max_cpu_loras=*/2);
    config.async_scheduling = GetParam();
    engine.emplace(config);
    for (size_t i = 0; i < 3; ++i) engine->add_lora({names[i], 0, model.adapter(i).path()});
    EXPECT_FALSE(is_loaded("mine"));
  }

  bool is_loaded(const std::string& name) const {
    for (const LoraInfo& info : engine->list_loras())
      if (info.lora_name == name) return info.is_loaded;
    return false;
  }
  static EngineRequest request(const std::string& name) { return TinyLoraModel::request(name, 0, 24); }
  CompletionOutput answer(const std::string& name) { return Asked(*engine, request(name)).wait(); }

  // Requests for "mine" fail, saying so, while others are answered as ever.
  void expect_that_mine_fails_alone(const std::string& said) {
    const auto other = answer("other").token_ids, plain = answer("").token_ids;
    for (int round = 0; round < 3; ++round) {
      Asked under_way(*engine, request("other"));
      Asked fails(*engine, request("mine")), fails_too(*engine, request("mine")),
          goes_on(*engine, request(""));
      for (Asked* each : {&fails, &fails_too}) {
        const CompletionOutput failed = each->wait();
        EXPECT_EQ(failed.finish_reason, FinishReason::kError);
        EXPECT_TRUE(failed.error.starts_with("lora_name 'mine' cannot be read again: ")) << failed.error;
        EXPECT_NE(failed.error.find(said), std::string::npos) << failed.error;
        EXPECT_EQ(failed.error.find(mine()), std::string::npos) << failed.error;
        EXPECT_TRUE(failed.token_ids.empty());
      }
      EXPECT_EQ(under_way.wait().token_ids, other);
      EXPECT_EQ(goes_on.wait().token_ids, plain);
    }
    EXPECT_FALSE(is_loaded("mine"));
    EXPECT_EQ(engine->dead_error(), "");
    EXPECT_TRUE(comes_true([&] {
      const EngineStats stats = engine->stats();
      return stats.num_running_reqs + stats.num_waiting_reqs == 0 &&
             stats.num_free_blocks == stats.num_total_blocks;
    }));
  }
  // From files that are whole again, and new.
  void expect_that_it_can_be_added_anew() {
    EXPECT_TRUE(engine->remove_lora("mine"));
    fs::remove_all(mine());
    fs::create_directory(mine());
    TinyLoraModel::write_adapter(model.adapter(0), 0);
    EXPECT_TRUE(engine->add_lora({"mine", 0, mine()}));
    EXPECT_EQ(answer("mine").token_ids, alone());
  }
  // What an engine says that has it from the start.
  std::vector<int32_t> alone() {
    Engine another(model.config(1, 1));
    another.add_lora({"mine", 0, mine()});
    return another.generate({request("mine")}).at(0).outputs.at(0).token_ids;
  }
  const std::string& mine() const { return model.adapter(0).path(); }
  std::string tensors() const { return mine() + "/adapter_model.safetensors"; }

  const std::vector<std::string> names = {"mine", "other", "third"};
  const TinyLoraModel model{3};
  std::optional<Engine> engine;
};
INSTANTIATE_TEST_SUITE_P(Scheduling, LoraDiskTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "async" : "sync"; });

// What was read of it may be of before and of after.
TEST_P(LoraDiskTest, AFileThatIsWrittenWhileItIsRead) {
  std::atomic<bool> stops = false;
  std::thread writer([&] {
    for (int i = 1; !stops; ++i) {
      std::error_code gone;
      fs::last_write_time(tensors(), fs::file_time_type(std::chrono::seconds(i)), gone);
    }
  });
  std::string error;
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (error.empty() && std::chrono::steady_clock::now() < until) {
    engine->remove_lora("mine");
    try {
      engine->add_lora({"mine", 0, mine()});
    } catch (const InvalidArgument& refused) {
      error = refused.what();
    }
  }
  stops = true;
  writer.join();
  EXPECT_NE(error.find("was written while it was read"), std::string::npos) << error;
  engine->add_lora({"mine", 0, mine()});
  EXPECT_EQ(answer("mine").token_ids, alone());
}

TEST_P(LoraDiskTest, AFileThatIsCutOff) {
  for (const uintmax_t size : {fs::file_size(tensors()) - 4, uintmax_t{100}, uintmax_t{0}}) {
    fs::resize_file(tensors(), size);
    expect_that_mine_fails_alone("adapter_model.safetensors");
  }
  expect_that_it_can_be_added_anew();
}

TEST_P(LoraDiskTest, AFileThatIsGone) {
  fs::remove(tensors());
  expect_that_mine_fails_alone("has no adapter_model.safetensors");
  expect_that_it_can_be_added_anew();
}

TEST_P(LoraDiskTest, ADirectoryThatIsGoneAndComesBack) {
  const auto expected = answer("mine").token_ids;
  EXPECT_EQ(answer("other").token_ids.size() + answer("third").token_ids.size(), 48U);
  EXPECT_TRUE(comes_true([&] { return !is_loaded("mine"); }));
  fs::rename(mine(), mine() + "_away");
  expect_that_mine_fails_alone("there is no such directory");
  fs::rename(mine() + "_away", mine());
  EXPECT_EQ(answer("mine").token_ids, expected);
}

TEST_P(LoraDiskTest, ARelativePathWhileTheProcessGoesElsewhere) {
  const auto expected = answer("mine").token_ids;
  EXPECT_TRUE(engine->remove_lora("mine"));
  {
    const fs::path path = mine();
    const WorkingDirectory beside(path.parent_path());
    EXPECT_TRUE(engine->add_lora({"mine", 0, path.filename().string()}));
  }
  EXPECT_EQ(answer("other").token_ids.size() + answer("third").token_ids.size(), 48U);
  EXPECT_TRUE(comes_true([&] { return !is_loaded("mine"); }));
  EXPECT_EQ(answer("mine").token_ids, expected);
}

// Whoever may read everything, as root may, can still not read this.
TEST_P(LoraDiskTest, AFileThatCannotBeRead) {
  fs::remove(tensors());
  fs::create_symlink(tensors(), tensors());
  expect_that_mine_fails_alone("adapter_model.safetensors");
  fs::remove(tensors());
  fs::create_directory(tensors());
  expect_that_mine_fails_alone("adapter_model.safetensors");
  expect_that_it_can_be_added_anew();
}

TEST_P(LoraDiskTest, AConfigThatIsAnother) {
  model.adapter(0).write("adapter_config.json", R"({"peft_type": "LORA", "lora_alpha": 1, "r": 1})");
  expect_that_mine_fails_alone("have changed since it was added: remove it, and add it anew");
  model.adapter(0).write("adapter_config.json", "{");
  expect_that_mine_fails_alone("adapter_config.json");
  expect_that_it_can_be_added_anew();
}

TEST_P(LoraDiskTest, WhatIsInMemoryNeedsNoFiles) {
  const auto expected = answer("mine").token_ids;
  Asked under_way(*engine, request("mine"));
  fs::remove_all(mine());
  EXPECT_EQ(under_way.wait().token_ids, expected);
  EXPECT_EQ(answer("mine").token_ids, expected);
}

}  // namespace
}  // namespace quire
