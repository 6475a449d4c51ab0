// Names of the hub, in a cache as huggingface_hub lays it out.
#include "quire/model_directory.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "util/error_of.h"
#include "weights/model_directory.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

constexpr const char* kCommit = "0123456789abcdef0123456789abcdef01234567";

// One model, "org/name", whose branch main is a commit with these files.
class HubCache {
 public:
  explicit HubCache(std::initializer_list<const char*> files) {
    fs::create_directories(repository() + "/refs/refs/pr");
    fs::create_directories(snapshot());
    root_.write("models--org--name/refs/main", kCommit);
    root_.write("models--org--name/refs/refs/pr/1", std::string(kCommit) + "\n");
    for (const char* file : files) write(file, "{}");
  }
  const std::string& path() const { return root_.path(); }
  std::string repository() const { return root_.path() + "/models--org--name"; }
  std::string snapshot() const { return repository() + "/snapshots/" + kCommit; }
  void write(const std::string& file, const std::string& text) const {
    root_.write(str("models--org--name/snapshots/", kCommit, "/", file), text);
  }
  CachedModel find(const std::string& revision = "", HubFiles files = HubFiles::kModel) const {
    return find_cached_model({"org/name", revision}, files, path());
  }
  EngineConfig config(const std::string& model) const {
    EngineConfig config;
    config.model = model;
    config.download_dir = path();
    return config;
  }

 private:
  ModelDirectory root_;
};

TEST(ModelDirectoryTest, ANameHasTwoPartsAndPerhapsARevision) {
  const auto parsed = parse_hub_name("Qwen/Qwen2.5-0.5B@refs/pr/1");
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->name, "Qwen/Qwen2.5-0.5B");
  EXPECT_EQ(parsed->revision, "refs/pr/1");
  EXPECT_TRUE(parse_hub_name("a/b"));
  for (const char* none : {"", "a", "/a/b", "./a", "../a", "a/..", "a/b/c", "a/b@", "a/b@../x", "a/b@/x",
                           "a//b", "a/b--c", "a/b@x//y", "a b/c", "~/a", "a/-b", "a/b.", "a/b@x@y"})
    EXPECT_FALSE(parse_hub_name(none)) << none;
  EXPECT_FALSE(parse_hub_name("a/" + std::string(1000, 'b')));
}

TEST(ModelDirectoryTest, ANameMayHaveAQuantization) {
  const auto parsed = parse_hub_name("org/name:UD-Q4_K_XL@main");
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->name, "org/name");
  EXPECT_EQ(parsed->quantization, "UD-Q4_K_XL");
  EXPECT_EQ(parsed->revision, "main");
  EXPECT_EQ(parse_hub_name("a/b:Q8_0")->quantization, "Q8_0");
  for (const char* none : {"a/b:", "a/b:@main", "a/b:x/y", "a/b:..", "a/b:Q8_0:Q4_0", "a:b/c"})
    EXPECT_FALSE(parse_hub_name(none)) << none;
  using Names = std::vector<std::string>;
  const Names names = {"x-Q4_K_M.gguf",
                       "x-Q4_K.gguf",
                       "x.q8_0.gguf",
                       "README.md",
                       "f16/x-00002-of-00002.gguf",
                       "f16/x-00001-of-00002.gguf",
                       "x-F16.txt",
                       "y-Q5-1.gguf",
                       "z-Q5-2.gguf"};
  EXPECT_EQ(select_gguf_files(names, "Q4_K_M", "r"), Names{"x-Q4_K_M.gguf"});
  EXPECT_EQ(select_gguf_files(names, "Q4_K", "r"), Names{"x-Q4_K.gguf"});
  EXPECT_EQ(select_gguf_files(names, "Q8_0", "r"), Names{"x.q8_0.gguf"});
  EXPECT_EQ(select_gguf_files(names, "F16", "r"),
            (Names{"f16/x-00001-of-00002.gguf", "f16/x-00002-of-00002.gguf"}));
  EXPECT_EQ(select_gguf_files(names, "Q4", "r"), Names());
  EXPECT_EQ(error_of([&] { select_gguf_files(names, "q5", "r"); }),
            "'r:q5' may be y-Q5-1.gguf or z-Q5-2.gguf; name more of it, or give the file");
}

TEST(ModelDirectoryTest, TheFileOfAQuantizationIsFoundWithItsParts) {
  const HubCache cache({});
  cache.write("x-Q8_0.gguf", "");
  const auto find = [&](const char* quantization) {
    return find_cached_model({"org/name", "", quantization}, HubFiles::kModel, cache.path());
  };
  EXPECT_EQ(cache.find().directory, cache.snapshot() + "/x-Q8_0.gguf");  // the only one
  cache.write("x-F16-00001-of-00002.gguf", "");
  EXPECT_EQ(cache.find().missing, "config.json");
  EXPECT_EQ(find("q8_0").directory, cache.snapshot() + "/x-Q8_0.gguf");
  EXPECT_EQ(find("q8_0").missing, "");
  EXPECT_EQ(find("F16").missing, "x-F16-00002-of-00002.gguf");
  cache.write("x-F16-00002-of-00002.gguf", "");
  EXPECT_EQ(find("F16").directory, cache.snapshot() + "/x-F16-00001-of-00002.gguf");
  EXPECT_EQ(find("F32").missing, "GGUF file of F32");
}

TEST(ModelDirectoryTest, OfSeveralFilesOneIsToBeGiven) {
  const ModelDirectory directory;
  directory.write("b-Q8_0.gguf", "");
  directory.write("a-Q4_0.gguf", "");
  EngineConfig config;
  config.model = directory.path();
  EXPECT_NE(error_of([&] { locate_model(config); }).find("holds 2 GGUF files, a-Q4_0.gguf among them; give"),
            std::string::npos);
}

TEST(ModelDirectoryTest, ABranchATagAndACommitAreFound) {
  const HubCache cache{"config.json", "model.safetensors"};
  for (const char* revision : {"", "main", "refs/pr/1", kCommit}) {
    EXPECT_EQ(cache.find(revision).directory, cache.snapshot()) << revision;
    EXPECT_EQ(cache.find(revision).missing, "");
  }
  EXPECT_EQ(cache.find("other").directory, "");
  EXPECT_NE(error_of([&] { cache.find("../../x"); }).find("revision must be a branch"), std::string::npos);
}

TEST(ModelDirectoryTest, AReferenceDoesNotLeadOutOfTheCache) {
  const HubCache cache{"config.json", "model.safetensors"};
  std::ofstream(cache.repository() + "/refs/main") << "../refs";
  EXPECT_EQ(cache.find().directory, "");
}

TEST(ModelDirectoryTest, AReferenceThatIsNoFileIsNotWaitedFor) {
  const HubCache cache{"config.json", "model.safetensors"};
  const std::string reference = cache.repository() + "/refs/main";
  fs::remove(reference);
  ASSERT_EQ(::mkfifo(reference.c_str(), 0600), 0);
  EXPECT_EQ(cache.find().directory, "");
  fs::remove(reference);
  fs::create_symlink("/dev/zero", reference);
  EXPECT_EQ(cache.find().directory, "");
}

TEST(ModelDirectoryTest, WhatWasFetchedInPartIsSaid) {
  const HubCache cache{"config.json"};
  EXPECT_EQ(cache.find().missing, "model.safetensors");
  EXPECT_EQ(cache.find("", HubFiles::kTokenizer).missing, "tokenizer.json");
  cache.write("model.safetensors.index.json",
              R"({"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}})");
  cache.write("1.safetensors", "");
  EXPECT_EQ(cache.find().missing, "2.safetensors");
  // A link whose file is gone.
  fs::create_symlink("../../blobs/none", cache.snapshot() + "/2.safetensors");
  EXPECT_EQ(cache.find().missing, "2.safetensors");
  fs::remove(cache.snapshot() + "/2.safetensors");
  cache.write("2.safetensors", "");
  EXPECT_EQ(cache.find().missing, "");
}

TEST(ModelDirectoryTest, AConfigurationGetsDirectories) {
  const HubCache cache{"config.json", "model.safetensors", "tokenizer.json"};
  EXPECT_EQ(locate_model(cache.config("org/name")).model, cache.snapshot());
  EXPECT_EQ(locate_model(cache.config("org/name@main")).tokenizer, "");
  EngineConfig config = cache.config(cache.path());
  config.tokenizer = "org/name";
  config.revision = "none";  // a directory has no revisions
  EXPECT_EQ(locate_model(config).model, cache.path());
  EXPECT_EQ(locate_model(config).tokenizer, cache.snapshot());
  config = cache.config("org/name");
  config.tokenizer_revision = "refs/pr/1";
  EXPECT_EQ(locate_model(config).tokenizer, cache.snapshot());
  // What can be no name is left to whoever reads it.
  EXPECT_EQ(locate_model(cache.config("/no/such")).model, "/no/such");
}

TEST(ModelDirectoryTest, WhatTheCacheDoesNotHaveIsRefusedWithWhatWouldDo) {
  const HubCache cache{"config.json"};
  EXPECT_EQ(error_of([&] { locate_model(cache.config("org/other")); }),
            str("model: no directory 'org/other', and the hub's cache ", cache.path(),
                " has none of that name; fetch it with `hf download org/other`, or give a directory"));
  EXPECT_EQ(error_of([&] { locate_model(cache.config("org/name@main")); }),
            str("model: no directory 'org/name@main', and ", cache.snapshot(),
                " has no model.safetensors; fetch it with `hf download org/name --revision main`, or give a "
                "directory"));
  EngineConfig config = cache.config("org/name@main");
  config.revision = "v1";
  EXPECT_NE(error_of([&] { locate_model(config); }).find("are not the same"), std::string::npos);
}

TEST(ModelDirectoryTest, TheCacheIsWhereTheEnvironmentSays) {
  const HubCache cache{"config.json", "model.safetensors"};
  ::setenv("HF_HUB_CACHE", cache.path().c_str(), 1);
  EXPECT_EQ(find_cached_model({"org/name", ""}).directory, cache.snapshot());
  ::unsetenv("HF_HUB_CACHE");
  const ModelDirectory home;
  fs::create_directory_symlink(cache.path(), home.path() + "/hub");
  ::setenv("HF_HOME", home.path().c_str(), 1);
  EXPECT_EQ(find_cached_model({"org/name", ""}).directory,
            str(home.path(), "/hub/models--org--name/snapshots/", kCommit));
  ::unsetenv("HF_HOME");
}

}  // namespace
}  // namespace quire
