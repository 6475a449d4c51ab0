#include "formats/json.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "formats/hf_config.h"
#include "formats/json_tree.h"
#include "formats/safetensors.h"
#include "quire/error.h"
#include "util/error_of.h"
#include "util/sanitized.h"

namespace quire {
namespace {

std::string nested_arrays(int depth) {
  return std::string(static_cast<size_t>(depth), '[') + std::string(static_cast<size_t>(depth), ']');
}

TEST(JsonTest, DepthIsCountedOutsideOfStrings) {
  const std::string deepest = nested_arrays(kMaxJsonDepth), deeper = nested_arrays(kMaxJsonDepth + 1);
  const std::string complaint = "f: nested more than 200 deep";
  EXPECT_TRUE(parse_json(deepest, "f").is_array());
  EXPECT_EQ(error_of([&] { parse_json(deeper, "f"); }), complaint);
  EXPECT_EQ(error_of([&] { parse_ordered_json(deeper, "f"); }), complaint);
  EXPECT_FALSE(try_parse_json(deepest).is_discarded());
  EXPECT_TRUE(try_parse_json(deeper).is_discarded());
  const std::string in_a_string = "[\"\\\\\\\"" + std::string(1000, '[') + "\", \"\\\\\"]";
  EXPECT_EQ(parse_json(in_a_string, "f").size(), 2U);
  std::string side_by_side = "[[]";
  for (int i = 0; i < 1000; ++i) side_by_side += ",[],{}";
  EXPECT_EQ(parse_json(side_by_side + "]", "f").size(), 2001U);
  EXPECT_EQ(error_of([&] { parse_json("[\"" + deeper, "f"); }).rfind("f: not valid JSON", 0), 0U);
}

TEST(JsonTest, NoReaderFollowsNestingToTheEndOfItsStack) {
  const std::string deep = nested_arrays(kTooDeep);
  EXPECT_NE(error_of([&] { HfConfig::parse("{\"a\": " + deep + "}", "f"); }).find("nested"),
            std::string::npos);
  for (const std::string& header :
       {"{\"a\": {\"dtype\": \"F32\", \"shape\": " + deep + ", \"data_offsets\": [0, 4]}}",
        "{\"__metadata__\": " + deep + "}"}) {
    EXPECT_EQ(error_of([&] { parse_safetensors_header(header, 4, "f"); }),
              "f: the header: nested more than 200 deep");
  }
}

TEST(JsonTest, AnIntegerThatIsTooLargeIsNamed) {
  EXPECT_EQ(error_of([] { parse_json_tree(R"({"a": {"b": [1, 100000000000000000000]}})", "f"); }),
            "f: the integer 100000000000000000000 of 'b' does not fit 64 bits");
  EXPECT_EQ(error_of([] { parse_json_tree("18446744073709551615", "f"); }),
            "f: the integer 18446744073709551615 does not fit 64 bits");
}

TEST(JsonTest, MembersThatAreThereTwiceAreNamedWithTheirPlace) {
  check_unique_members(R"({"a": {"b": 1}, "b": [{"a": 1}, {"a": 2}]})", "f");
  check_unique_members(R"({"a": 1, )", "f");  // no JSON: another's complaint
  EXPECT_EQ(error_of([] { check_unique_members(R"({"a": 1, "b": 2, "a": 3})", "f"); }),
            "f: 'a' is there twice");
  EXPECT_EQ(error_of([] { check_unique_members(R"({"x": [{"y": {"a": 1, "\u0061": 3}}]})", "f"); }),
            "f: 'x.y.a' is there twice");
}

TEST(JsonTest, WhatIsNoFileIsNotWaitedFor) {
  const std::string fifo = testing::TempDir() + "json_test-" + std::to_string(getpid());
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  for (const std::string& path : {fifo, std::string("/dev/zero"), std::string("/tmp")}) {
    EXPECT_EQ(error_of([&] { read_text_file(path); }), path + ": is not a file");
    EXPECT_EQ(error_of([&] { SafetensorsFile{path}; }), path + ": is not a file");
  }
  EXPECT_EQ(error_of([&] { read_text_file("/nowhere"); }), "/nowhere: no such file, or it cannot be read");
  std::filesystem::remove(fifo);
}

// Whoever may write to a directory of files that are read.
TEST(JsonTest, AFifoThatComesIntoAFilesPlaceIsNotWaitedFor) {
  constexpr int kReads = 20'000;
  const std::string path = testing::TempDir() + "json_test-place-" + std::to_string(getpid());
  const std::string fifo = path + "-fifo", next = path + "-next";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  std::atomic<int> num_reads = 0;
  std::thread reader([&] {
    for (; num_reads < kReads; ++num_reads) error_of([&] { read_text_file(path); });
  });
  // Until there is no getting on.
  using Clock = std::chrono::steady_clock;
  auto until = Clock::now() + std::chrono::seconds(10);
  for (int before = 0; num_reads < kReads && Clock::now() < until;) {
    if (const int now = num_reads; now > before) {
      before = now;
      until = Clock::now() + std::chrono::seconds(10);
    }
    std::ofstream(next) << "{}";
    std::filesystem::rename(next, path);
    std::filesystem::create_hard_link(fifo, next);
    std::filesystem::rename(next, path);
  }
  EXPECT_EQ(num_reads, kReads);
  while (num_reads < kReads) {  // it waits for a writer, and gets one
    if (const int writer = ::open(fifo.c_str(), O_WRONLY | O_NONBLOCK); writer >= 0) ::close(writer);
  }
  reader.join();
  for (const std::string& each : {path, fifo}) std::filesystem::remove(each);
}

TEST(JsonTest, AFileThatThereIsIsNotMissingWhereDescriptorsAre) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none = {.rlim_cur = 0, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const std::string refused = error_of([] { read_text_file("/etc/passwd"); });
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(refused, "/etc/passwd: cannot be read: Too many open files");
}

TEST(JsonTest, AFileHasAtMostSoManyBytes) {
  const std::string path = testing::TempDir() + "json_test-large-" + std::to_string(getpid());
  std::ofstream(path) << "{}";
  std::filesystem::resize_file(path, kMaxTextFileBytes + 1);  // a hole
  EXPECT_EQ(error_of([&] { read_text_file(path); }), path + ": has 134217729 bytes, more than 134217728");
  EXPECT_EQ(error_of([&] { read_text_file(path, 9); }), path + ": has 134217729 bytes, more than 9");
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace quire
