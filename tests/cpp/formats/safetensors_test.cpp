#include "formats/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "quire/error.h"
#include "util/error_of.h"

namespace quire {
namespace {

std::string header_refusal(const std::string& header, uint64_t data_bytes) {
  return error_of([&] { parse_safetensors_header(header, data_bytes, "f"); });
}

TEST(SafetensorsTest, ReadsEntriesInFileOrder) {
  const std::string header = R"({"__metadata__":{"format":"pt"},
    "b":{"dtype":"F32","shape":[2,3],"data_offsets":[4,28]},
    "a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}})";
  const auto entries = parse_safetensors_header(header, 28, "f");
  ASSERT_EQ(entries.size(), 2U);
  EXPECT_EQ(entries[0].name, "a");
  EXPECT_EQ(entries[1].shape, (std::vector<int64_t>{2, 3}));
}

TEST(SafetensorsTest, ContradictionsAreNamed) {
  EXPECT_NE(header_refusal(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4).find("takes 8"),
            std::string::npos);
  EXPECT_NE(
      header_refusal(R"({"a":{"dtype":"F99","shape":[2],"data_offsets":[0,4]}})", 4).find("dtype 'F99'"),
      std::string::npos);
  EXPECT_NE(header_refusal(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8).find("hole"),
            std::string::npos);
  EXPECT_NE(header_refusal(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},
                         "b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
                           4)
                .find("overlap"),
            std::string::npos);
  EXPECT_NE(header_refusal(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4).find("end before"),
            std::string::npos);
  EXPECT_NE(header_refusal(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 4).find("truncated"),
            std::string::npos);
  EXPECT_NE(header_refusal(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 5).find("holds 5"),
            std::string::npos);
  EXPECT_NE(header_refusal(R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}})", 0)
                .find("overflow"),
            std::string::npos);
  EXPECT_NE(header_refusal(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4).find("shape"),
            std::string::npos);
  EXPECT_NE(header_refusal(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},
                         "a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
                           4)
                .find("twice"),
            std::string::npos);
  EXPECT_NE(header_refusal("[]", 0).find("not a JSON object"), std::string::npos);
  EXPECT_NE(header_refusal("{", 0).find("not valid JSON"), std::string::npos);
}

class SafetensorsFileTest : public testing::Test {
 protected:
  void SetUp() override {
    path_ = testing::TempDir() + "quire_safetensors_test_" +
            testing::UnitTest::GetInstance()->current_test_info()->name();
  }
  void TearDown() override { std::filesystem::remove(path_); }
  void write(const std::string& bytes) { std::ofstream(path_, std::ios::binary) << bytes; }
  static std::string file_bytes() {
    const std::string header = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
    const uint64_t size = header.size();
    std::string bytes(reinterpret_cast<const char*>(&size), 8);
    const float values[] = {1.5F, -2.0F};
    return bytes + header + std::string(reinterpret_cast<const char*>(values), 8);
  }
  std::string path_;
};

TEST_F(SafetensorsFileTest, ReadsValuesInPlace) {
  write(file_bytes());
  const SafetensorsFile file(path_);
  float values[2];
  std::memcpy(values, file.bytes(file.entries()[0]).data(), sizeof values);
  EXPECT_EQ(values[0], 1.5F);
  EXPECT_EQ(values[1], -2.0F);
}

TEST_F(SafetensorsFileTest, ReadsWhatIsThereAndNamesTheFileWhenItIsNot) {
  write(file_bytes());
  const SafetensorsFile file(path_);
  const std::byte* at = file.bytes(file.entries()[0]).data();
  float value = 0;
  file.read(at + 4, std::as_writable_bytes(std::span(&value, 1)));
  EXPECT_EQ(value, -2.0F);
  EXPECT_EQ(file.entry_at(at + 7).name, "a");
  EXPECT_FALSE(file.contains(at + 8));
  std::filesystem::resize_file(path_, file_bytes().size() - 2);
  const std::string error = error_of([&] {
    file.read(at, std::as_writable_bytes(std::span(&value, 1)));
    file.read(at + 4, std::as_writable_bytes(std::span(&value, 1)));
  });
  EXPECT_EQ(error, path_ + ": was truncated while it was read");
}

TEST_F(SafetensorsFileTest, EveryTruncationIsRefused) {
  const std::string whole = file_bytes();
  for (size_t size = 0; size < whole.size(); ++size) {
    write(whole.substr(0, size));
    EXPECT_THROW(SafetensorsFile{path_}, InvalidArgument) << size;
  }
}

TEST_F(SafetensorsFileTest, AFileThatIsWrittenMeanwhileIsNoticed) {
  write(file_bytes());
  const SafetensorsFile file(path_);
  file.check_unchanged();
  std::filesystem::last_write_time(path_, std::filesystem::last_write_time(path_) + std::chrono::seconds(2));
  EXPECT_NE(error_of([&] { file.check_unchanged(); }).find(path_ + ": was written while it was read"),
            std::string::npos);
}

TEST_F(SafetensorsFileTest, WhatIsNoFileIsRefused) {
  EXPECT_THROW(SafetensorsFile{path_ + "/missing"}, InvalidArgument);
  EXPECT_THROW(SafetensorsFile{testing::TempDir()}, InvalidArgument);
  write(std::string(8, '\xFF') + "{}");
  EXPECT_THROW(SafetensorsFile{path_}, InvalidArgument);
}

}  // namespace
}  // namespace quire
