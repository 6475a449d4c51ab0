#include "formats/gguf.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "formats/gguf_bytes.h"
#include "quire/error.h"
#include "util/error_of.h"
#include "util/str.h"

namespace quire {
namespace gguf_test {
namespace {

GgufHeader parse(const std::string& text) {
  return parse_gguf(
      [&](uint64_t position, std::span<std::byte> out) {
        ASSERT_LE(position + out.size(), text.size());
        std::memcpy(out.data(), text.data() + position, out.size());
      },
      text.size(), "f");
}

std::string refusal(const GgufBytes& bytes) {
  return error_of([&] { parse(bytes.text); });
}

bool says(const GgufBytes& bytes, std::string_view expected) {
  const std::string said = refusal(bytes);
  if (said.starts_with("f: ") && said.find(expected) != said.npos) return true;
  ADD_FAILURE() << "'" << said << "' does not say '" << expected << "'";
  return false;
}

TEST(GgufTest, FloatsAreTheDecimalsThatTheyWereWrittenFrom) {
  GgufBytes bytes;
  bytes.begin(2, 0, 3);
  bytes.add_string("x").add(uint32_t{6}).add(1e-5F);
  bytes.add_string("y").add(uint32_t{12}).add(double{1e-5F});
  bytes.add_string("z").add(uint32_t{9}).add(uint32_t{6}).add(uint64_t{2}).add(0.1F).add(INFINITY);
  const GgufHeader header = parse(bytes.text);
  EXPECT_EQ(header.get_number("x"), 1e-5);
  EXPECT_EQ(header.get_number("y"), double{1e-5F});
  EXPECT_EQ(header.get_array<double>("z"), (std::vector<double>{0.1, INFINITY}));
}

TEST(GgufTest, ArraysOfArraysAreCheckedAndDropped) {
  GgufBytes bytes;
  bytes.begin(3, 0, 1);
  bytes.add_string("a").add(uint32_t{9}).add(uint32_t{9}).add(uint64_t{2});
  for (const int32_t value : {1, 2}) bytes.add(uint32_t{5}).add(uint64_t{1}).add(value);
  EXPECT_TRUE(std::holds_alternative<std::monostate>(parse(bytes.text).at("a")));
  bytes.text.resize(bytes.text.size() - 1);
  EXPECT_NE(error_of([&] { parse(bytes.text); }).find("'a' has 1 elements of int32"), std::string::npos);
}

TEST(GgufTest, KeysAndTensorsAreRead) {
  GgufBytes bytes;
  bytes.begin(3, 1, 3);
  bytes.add_string("n").add(uint32_t{4}).add(uint32_t{7});
  bytes.add_string("s").add(uint32_t{8}).add_string("text");
  bytes.add_string("a").add(uint32_t{9}).add(uint32_t{5}).add(uint64_t{2}).add(int32_t{-1}).add(int32_t{2});
  bytes.add_tensor("w", 64, 3, 8, 0).add_data(2 * 3 * 34);
  const GgufHeader header = parse(bytes.text);
  EXPECT_EQ(header.get_int("n", 0, 10), 7);
  EXPECT_EQ(header.get_string("s"), "text");
  EXPECT_EQ(header.get_array<int64_t>("a"), (std::vector<int64_t>{-1, 2}));
  EXPECT_NE(error_of([&] { header.get_array<std::string>("a"); }).find("'a' must be an array of strings"),
            std::string::npos);
  EXPECT_NE(error_of([&] { header.get_array<double>("n"); }).find("'n' must be an array of floats"),
            std::string::npos);
  ASSERT_EQ(header.tensors.size(), 1U);
  EXPECT_EQ(header.tensors[0].shape, (std::vector<int64_t>{3, 64}));
  EXPECT_EQ(header.tensors[0].num_bytes, 204U);
  EXPECT_EQ(header.tensors[0].position + 204, bytes.text.size());
  EXPECT_NE(error_of([&] { header.get_int("n", 0, 6); }).find("'n' must be from 0 to 6, got 7"),
            std::string::npos);
  EXPECT_NE(error_of([&] { header.get_string("n"); }).find("'n' must be a string"), std::string::npos);
  EXPECT_NE(error_of([&] { header.get_bool("s", true); }).find("'s' must be a bool"), std::string::npos);
}

TEST(GgufTest, WhatContradictsItselfIsNamed) {
  EXPECT_TRUE(says(GgufBytes().begin(1, 0, 0), "version 1"));
  EXPECT_TRUE(says(GgufBytes().begin(uint32_t{3} << 24, 0, 0), "big-endian"));
  EXPECT_TRUE(says(GgufBytes().begin(3, uint64_t{1} << 40, 0), "tensors"));
  EXPECT_TRUE(says(GgufBytes().begin(3, 0, uint64_t{1} << 40), "keys"));
  const auto one_key = [](uint32_t type) { return GgufBytes().begin(3, 0, 1).add_string("k").add(type); };
  EXPECT_TRUE(says(one_key(13).add(uint64_t{0}), "'k' has the type 13"));
  EXPECT_TRUE(says(one_key(7).add(uint64_t{2}), "'k' is a bool of 2"));
  EXPECT_TRUE(says(one_key(8).add(uint64_t{1} << 50), "'k' has 1125899906842624 bytes"));
  EXPECT_TRUE(says(one_key(9).add(uint32_t{4}).add(uint64_t{1} << 50), "'k' has 1125899906842624 elements"));
  GgufBytes twice = GgufBytes().begin(3, 0, 2);
  for (int i = 0; i < 2; ++i) twice.add_string("k").add(uint32_t{0}).add(uint8_t{1});
  EXPECT_TRUE(says(twice, "key 'k' is there twice"));
  GgufBytes nested = one_key(9);
  for (int i = 0; i < 8; ++i) nested.add(uint32_t{9}).add(uint64_t{1});
  EXPECT_TRUE(says(nested, "nested more than 4 deep"));

  const auto tensor = [](uint64_t columns, uint64_t rows, uint32_t type, uint64_t at) {
    return GgufBytes().begin(3, 1, 0).add_tensor("w", columns, rows, type, at).add_data(64);
  };
  EXPECT_TRUE(says(tensor(32, 1, 13, 0), "type Q5_K, which is not read"));
  EXPECT_TRUE(says(tensor(33, 1, 8, 0), "rows of 33 values"));
  EXPECT_TRUE(says(tensor(32, 1, 8, 8), "no multiple of 32"));
  EXPECT_TRUE(says(tensor(32, 2, 8, 0), "truncated"));
  EXPECT_TRUE(says(tensor(uint64_t{1} << 40, uint64_t{1} << 40, 0, 0), "cannot be counted"));
  GgufBytes overlap = GgufBytes().begin(3, 2, 0);
  overlap.add_tensor("v", 16, 1, 0, 0).add_tensor("w", 8, 1, 0, 32).add_data(64);
  EXPECT_TRUE(says(overlap, "tensors 'v' and 'w' overlap"));
}

TEST(GgufTest, EveryPrefixOfAFileIsRefused) {
  GgufBytes bytes;
  bytes.begin(3, 1, 1).add_string("k").add(uint32_t{8}).add_string("text");
  bytes.add_tensor("w", 32, 1, 8, 0).add_data(34);
  for (size_t size = 0; size < bytes.text.size(); ++size)
    EXPECT_TRUE(says({bytes.text.substr(0, size)}, "")) << size;
  EXPECT_EQ(parse(bytes.text).tensors.size(), 1U);
}

TEST(GgufTest, BlocksHoldTheirScaleTimesTheirValues) {
  std::string block(34, '\0');
  block[1] = 0x38;  // 0.5 as fp16
  block[2] = 3;
  block[33] = -4;
  float values[32];
  dequantize_blocks(GgmlType::kQ8_0, reinterpret_cast<const std::byte*>(block.data()), 1, values);
  EXPECT_EQ(values[0], 1.5F);
  EXPECT_EQ(values[31], -2.0F);
  dequantize_blocks(GgmlType::kQ4_0, reinterpret_cast<const std::byte*>(block.data()), 1, values);
  EXPECT_EQ(values[0], -2.5F);  // (3 - 8) / 2
  EXPECT_EQ(values[16], -4.0F);
}

}  // namespace
}  // namespace gguf_test
}  // namespace quire
