// What has which name.
#include "engine/lora_registry_rig.h"
#include "util/working_directory.h"

namespace quire {
namespace {

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
  EXPECT_EQ(
      add_error({"a", 6, "/adapters/a"}),
      "lora_name 'a' was added with lora_int_id 5, got 6: give 0 for the one that is there, remove that "
      "one first, or set load_inplace");
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
  EXPECT_EQ(add_error({"a\xFF", 0, "/d"}), "lora_name must be valid UTF-8; byte 1 is not");
  EXPECT_EQ(add_error({"a", -1, "/d"}), "lora_int_id must be at least 1, or 0 for none, got -1");
  EXPECT_EQ(add_error({"a", 0, ""}), "lora_path is empty; give a directory with adapter_config.json");
  EXPECT_EQ(add_error({"a", 0, std::string(4097, 'd')}), "lora_path must have at most 4096 bytes, got 4097");
  EXPECT_EQ(add_error({"a", 0, std::string("/d\0e", 4)}), "lora_path must not hold null characters");
  EXPECT_TRUE(registry.add({std::string(512, 'a'), 0, "/d"}));
  EXPECT_TRUE(registry.add({"é", 0, "/d"}));
}

// Whoever gives a relative path means the directory that it leads to then.
TEST_F(LoraRegistryTest, ARelativePathIsAnotherOneInAnotherDirectory) {
  const WorkingDirectory root("/");
  EXPECT_TRUE(registry.add({"a", 0, "d"}));
  EXPECT_FALSE(registry.add({"a", 0, "/d"}));
  const WorkingDirectory other("/proc");
  EXPECT_EQ(add_error({"a", 0, "d"}),
            "lora_name 'a' is that of /d: remove that one first, choose another name, or set load_inplace");
  EXPECT_EQ(info("a").lora_path, "d");
}

TEST_F(LoraRegistryTest, ADirectoryIsTheSameHoweverItIsWritten) {
  EXPECT_TRUE(registry.add({"a", 0, "/d/e"}));
  for (const char* path : {"/d/e/", "/d//e", "/./d/e/.", "//d/e"})
    EXPECT_FALSE(registry.add({"a", 0, path})) << path;
  EXPECT_NE(add_error({"a", 0, "/d/x/../e"}), "");  // x may be a link
}

TEST_F(LoraRegistryTest, ANameThatNobodyHasIsRefusedWithTheNearest) {
  EXPECT_EQ(error_of([&] { registry.use("a"); }), "lora_name 'a': no adapter was added; add_lora does");
  add("pirate");
  add("poet");
  EXPECT_EQ(error_of([&] { registry.use("pirates"); }),
            "lora_name 'pirates' is no adapter's; the nearest is 'pirate', and add_lora adds others");
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

// Nothing that was cached is taken for what another adapter of the name has computed.
TEST_F(LoraRegistryTest, NamesOfLongAgoAreForgottenAndTheirVersionsNotGivenAgain) {
  const auto version = [&](const std::string& name, const std::string& stamp) {
    loader.stamps["/d"] = stamp;
    registry.add({name, 0, "/d"});
    const std::string found = registry.use(name)->fingerprint();
    registry.remove(name);
    return found;
  };
  EXPECT_EQ(version("a", "monday"), "");
  EXPECT_EQ(version("a", "tuesday"), "1");
  for (size_t i = 1; i < LoraRegistry::kMaxNames; ++i) EXPECT_EQ(version(std::to_string(i), "monday"), "");
  EXPECT_EQ(version("a", "tuesday"), "1");
  EXPECT_EQ(version("b", "monday"), "2");
  EXPECT_EQ(version("a", "tuesday"), "2");
  EXPECT_EQ(version("a", "monday"), "3");
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

}  // namespace
}  // namespace quire
