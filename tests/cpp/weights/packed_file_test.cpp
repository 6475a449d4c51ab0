#include "weights/packed_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "quire/error.h"
#include "util/error_of.h"
#include "weights/model_directory.h"
#include "weights/weight_files.h"

namespace quire {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

PackedHeader header_for(const std::string& kernels, int32_t rank = 0, int32_t world_size = 1) {
  return {kernels, "bfloat16", rank, world_size, "BF16", {{"a.weight", "BF16", {2, 3}}, {"n", "F32", {5}}},
          {}};
}

// Two sections and an empty one between them.
std::string write_small(const ModelDirectory& directory, const PackedHeader& header) {
  const std::string path = directory.path() + "/" + packed_file_name(header);
  const std::string first = "one section", last(300, 'z');
  const std::span<const std::byte> sections[] = {bytes_of(first), {}, bytes_of(last)};
  write_packed_file(path, header, sections);
  return path;
}

std::string text_at(const std::byte* data, size_t bytes) {
  return {reinterpret_cast<const char*>(data), bytes};
}

TEST(PackedFileTest, SaysAndHoldsWhatWasWritten) {
  const ModelDirectory directory;
  const std::string path = write_small(directory, header_for("cpu-panels32"));
  EXPECT_EQ(std::filesystem::path(path).filename(), "cpu-panels32-bfloat16-0-of-1.quire");
  const auto file = std::make_shared<const PackedFile>(path);
  EXPECT_EQ(file->header().layout, "cpu-panels32");
  EXPECT_EQ(file->header().main_dtype, "BF16");
  ASSERT_EQ(file->header().tensors.size(), 2U);
  EXPECT_EQ(file->header().tensors[0].shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(file->header().sections, (std::vector<uint64_t>{11, 0, 300}));
  const auto arena = make_packed_arena(file);
  EXPECT_EQ(text_at(arena->allocate(11), 11), "one section");
  std::byte* computed = arena->allocate_computed(100);
  std::memset(computed, 1, 100);
  arena->allocate(0);
  std::byte* last = arena->allocate(300);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(last) % DeviceArena::kAlignment, 0U);
  EXPECT_EQ(text_at(last, 300), std::string(300, 'z'));
  EXPECT_TRUE(arena->allocations()[1].is_computed);
  last[0] = std::byte{'y'};
  arena->discard();
  arena->restore();
  EXPECT_EQ(text_at(last, 2), "zz");
  EXPECT_EQ(computed[0], std::byte{0});
  EXPECT_NE(error_of<InvalidArgument>([&] { arena->allocate(1); }).find("packed for another model"),
            std::string::npos);
}

TEST(PackedFileTest, AnotherSizeIsRefused) {
  const ModelDirectory directory;
  const auto file = std::make_shared<const PackedFile>(write_small(directory, header_for("cpu-panels32")));
  const auto arena = make_packed_arena(file);
  EXPECT_NE(error_of<InvalidArgument>([&] {
              arena->allocate(12);
            }).find("section 0 has 11 bytes, and one of 12 bytes is wanted; pack it again"),
            std::string::npos);
}

TEST(PackedFileTest, WhatChangesMeanwhileIsAnErrorThatNamesTheFile) {
  const ModelDirectory directory;
  const std::string path = write_small(directory, header_for("cpu-panels32"));
  const auto file = std::make_shared<const PackedFile>(path);
  const auto arena = make_packed_arena(file);
  arena->check();
  const std::byte* section = arena->allocate(11);
  std::filesystem::resize_file(path, 100);
  EXPECT_NE(error_of<InvalidArgument>([&] { arena->check(); }).find(path + ": was written while"),
            std::string::npos);
  const std::byte first = *static_cast<const volatile std::byte*>(section);
  EXPECT_EQ(first, std::byte{0});
  EXPECT_NE(error_of<InternalError>([&] { arena->check(); }).find(path + ": was cut off"), std::string::npos);
  std::byte some[4];
  EXPECT_NE(error_of<InvalidArgument>([&] { file->read(0, some); }).find(path), std::string::npos);
}

TEST(PackedFileTest, WhatIsTornOrUntrueIsRefused) {
  const ModelDirectory directory;
  const std::string path = write_small(directory, header_for("cpu-panels32"));
  std::ifstream stream(path, std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(stream)), {});
  const auto error_with = [&](const std::string& bytes) {
    directory.write("bad.quire", bytes);
    return error_of<InvalidArgument>([&] { PackedFile(directory.path() + "/bad.quire"); });
  };
  const auto replaced = [&](const std::string& what, const std::string& with) {
    std::string bytes = whole;
    EXPECT_NE(bytes.find(what), std::string::npos) << what;
    return error_with(bytes.replace(bytes.find(what), what.size(), with));
  };
  // Every length but the whole.
  for (const size_t length : {size_t{0}, size_t{7}, size_t{15}, size_t{16}, size_t{200}, size_t{65535},
                              size_t{65536}, whole.size() - 1, whole.size() + 1}) {
    std::string bytes = whole;
    bytes.resize(length);
    EXPECT_NE(error_with(bytes).find("bad.quire"), std::string::npos) << length;
  }
  EXPECT_NE(replaced("QUIREPAK", "QUIREPAC").find("does not begin as"), std::string::npos);
  EXPECT_NE(replaced("\"version\":1", "\"version\":2").find("this Quire reads 1"), std::string::npos);
  EXPECT_NE(replaced("[11,0,300]", "[11,1,300]").find("it is truncated"), std::string::npos);
  EXPECT_NE(replaced("[11,0,300]", "[11,0,-30]").find("sections[2]"), std::string::npos);
  EXPECT_NE(replaced("\"rank\":0", "\"rank\":1").find("rank"), std::string::npos);
  EXPECT_NE(replaced("\"BF16\",\"rank\"", "\"BF99\",\"rank\"").find("main_dtype"), std::string::npos);
  std::filesystem::remove(path);
  std::filesystem::create_directory(path);
  EXPECT_NE(error_of<InvalidArgument>([&] { const PackedFile file(path); }).find("is not a file"),
            std::string::npos);
}

TEST(PackedFileTest, WhatCannotBeWrittenLeavesNothing) {
  const ModelDirectory directory;
  PackedHeader header = header_for("cpu-panels32");
  EXPECT_NE(error_of<ResourceExhausted>([&] {
              write_packed_file(directory.path() + "/none/x.quire", header, {});
            }).find("/none/x.quire: cannot be written"),
            std::string::npos);
  std::filesystem::create_directory(directory.path() + "/x.quire");
  EXPECT_NE(error_of<ResourceExhausted>([&] {
              write_packed_file(directory.path() + "/x.quire", header, {});
            }).find("cannot be written"),
            std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(directory.path() + "/x.quire.part"));
}

TEST(PackedFileTest, OneProcessAtATimeWritesAFile) {
  const ModelDirectory directory;
  const std::string path = directory.path() + "/x.quire", part = path + ".part";
  PackedHeader header = header_for("cpu-panels32");
  directory.write("x.quire.part", std::string(1 << 20, 'x'));  // of one that was killed
  const int other = ::open(part.c_str(), O_WRONLY | O_CLOEXEC);
  ASSERT_EQ(::flock(other, LOCK_EX), 0);
  EXPECT_NE(error_of<InvalidArgument>([&] {
              write_packed_file(path, header, {});
            }).find("x.quire: another process is writing it"),
            std::string::npos);
  EXPECT_EQ(std::filesystem::file_size(part), 1 << 20);
  ::close(other);
  write_packed_file(path, header, {});
  EXPECT_LT(std::filesystem::file_size(path), 1 << 20);
  EXPECT_FALSE(std::filesystem::exists(part));
}

TEST(WeightFilesTest, PackedWeightsGoToWhomTheyArePackedFor) {
  const ModelDirectory directory;
  write_small(directory, header_for("cpu-panels32"));
  write_small(directory, header_for("cpu-panels64", 1, 2));
  EXPECT_EQ(open_weight_files(directory.path(), {"cpu-panels32", "auto", 0, 1}).packed->header().layout,
            "cpu-panels32");
  EXPECT_EQ(open_weight_files(directory.path(), {"cpu-panels64", "bfloat16", 1, 2}).packed->header().rank, 1);
  for (const WeightReader& reader :
       {WeightReader{"cpu-panels32", "float32", 0, 1}, WeightReader{"cpu-panels64", "auto", 0, 2},
        WeightReader{"cuda-rows", "auto", 0, 1}}) {
    EXPECT_NE(error_of<InvalidArgument>([&] {
                open_weight_files(directory.path(), reader);
              }).find("cpu-panels64-bfloat16-1-of-2.quire is for cpu-panels64 in bfloat16, rank 1 of 2"),
              std::string::npos);
  }
  // With a checkpoint beside them nobody is turned away.
  write_safetensors(directory, {{"a.weight", "F32", {1}, std::string(4, '\0')}});
  EXPECT_EQ(open_weight_files(directory.path(), {"cuda-rows", "auto", 0, 1}).packed, nullptr);
  EXPECT_NE(open_weight_files(directory.path(), {"cpu-panels32", "auto", 0, 1}).packed, nullptr);
}

}  // namespace
}  // namespace quire
