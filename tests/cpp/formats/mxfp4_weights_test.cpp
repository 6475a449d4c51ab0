#include "formats/mxfp4_weights.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>

#include "quire/error.h"
#include "util/error_of.h"
#include "util/half_float.h"

namespace quire {
namespace {

TEST(Mxfp4WeightsTest, EveryValueOfEveryScaleIsExact) {
  constexpr std::array<double, 8> kMagnitudes = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  std::array<uint8_t, kMxfp4BlockBytes> bytes;
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i | (15 - i) << 4);
  for (int scale = 0; scale < kMxfp4NanScale; ++scale) {
    std::array<uint16_t, kMxfp4BlockValues> out;
    decode_mxfp4_block(bytes.data(), static_cast<uint8_t>(scale), out.data());
    for (size_t i = 0; i < out.size(); ++i) {
      const size_t code = i % 2 == 0 ? i / 2 : 15 - i / 2;  // the low half comes first
      const double magnitude = std::ldexp(kMagnitudes[code % 8], scale - 127);
      const double expected = code < 8 ? magnitude : -magnitude;
      const float found = bf16_to_float(out[i]);
      EXPECT_EQ(std::signbit(found), code >= 8);
      if (magnitude < 0x1p128) {
        EXPECT_EQ(found, expected) << "scale " << scale << ", code " << code;
      } else {
        EXPECT_TRUE(std::isinf(found));
      }
    }
  }
}

// Two rows of two blocks, in memory.
struct Stored {
  std::array<uint8_t, 2 * 2 * kMxfp4BlockBytes> blocks;
  std::array<uint8_t, 4> scales = {127, 128, 126, 130};
  TensorEntry blocks_entry{"x_blocks", "U8", {2, 2, 16}, 0, 64};
  TensorEntry scales_entry{"x_scales", "U8", {2, 2}, 64, 68};

  Stored() {
    for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<uint8_t>(37 * i + 11);
  }
  Mxfp4Weights open() const {
    const auto* data = reinterpret_cast<const std::byte*>(blocks.data());
    const auto* scale_data = reinterpret_cast<const std::byte*>(scales.data());
    return {"dir", {{{nullptr, &blocks_entry, data}, {nullptr, &scales_entry, scale_data}}}};
  }
};

TEST(Mxfp4WeightsTest, AnyRunOfValuesIsThatPartOfTheWhole) {
  const Stored stored;
  const Mxfp4Weights weights = stored.open();
  ASSERT_EQ(weights.entries().size(), 1U);
  const TensorEntry& entry = weights.entries()[0];
  EXPECT_EQ(entry.name, "x_blocks");
  EXPECT_EQ(entry.dtype, "BF16");
  EXPECT_EQ(entry.shape, (std::vector<int64_t>{2, 64}));
  std::array<uint16_t, 128> expected;
  for (size_t i = 0; i < 4; ++i)
    decode_mxfp4_block(&stored.blocks[16 * i], stored.scales[i], &expected[32 * i]);
  for (const auto& [first, count] :
       {std::pair<size_t, size_t>{0, 128}, {31, 2}, {33, 62}, {70, 1}, {127, 1}}) {
    std::vector<uint16_t> out(count);
    weights.read(weights.bytes(entry).data() + 2 * first, std::as_writable_bytes(std::span(out)));
    EXPECT_EQ(std::memcmp(out.data(), &expected[first], 2 * count), 0) << first;
  }
}

TEST(Mxfp4WeightsTest, AScaleThatIsNaNIsNamed) {
  Stored stored;
  stored.scales[2] = kMxfp4NanScale;
  const Mxfp4Weights weights = stored.open();
  std::array<uint16_t, 64> row;
  const std::byte* first = weights.bytes(weights.entries()[0]).data();
  weights.read(first, std::as_writable_bytes(std::span(row)));
  EXPECT_EQ(error_of([&] { weights.read(first + 128, std::as_writable_bytes(std::span(row))); }),
            "dir: tensor 'x_scales' holds 255, which is NaN, at place 2; the file is damaged");
}

TEST(Mxfp4WeightsTest, WhatIsNotMxfp4IsNamed) {
  Stored stored;
  stored.scales_entry.shape = {2, 4};
  EXPECT_EQ(error_of([&] { stored.open(); }),
            "dir: tensor 'x_scales' is U8 [2, 4]; expected: U8, of the shape of 'x_blocks' but for its last "
            "dimension (MXFP4)");
  stored.blocks_entry.shape = {2, 4, 8};
  EXPECT_EQ(error_of([&] { stored.open(); }),
            "dir: tensor 'x_blocks' is U8 [2, 4, 8]; expected: U8, the last dimension 16 (MXFP4)");
}

}  // namespace
}  // namespace quire
