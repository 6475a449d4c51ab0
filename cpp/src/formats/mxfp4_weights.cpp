#include "formats/mxfp4_weights.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "quire/error.h"
#include "util/check.h"
#include "util/half_float.h"
#include "util/str.h"

namespace quire {
namespace {

constexpr int kScaleBias = 127;

// Of each scale what the sixteen values become: 8 KiB, which stay in the first cache.
using ValueTable = std::array<std::array<uint16_t, 16>, 256>;

ValueTable make_table() {
  constexpr std::array<float, 8> kMagnitudes = {0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F};
  ValueTable table;
  for (int scale = 0; scale < 256; ++scale) {
    for (size_t i = 0; i < 16; ++i) {
      const float magnitude = std::ldexp(kMagnitudes[i % 8], scale - kScaleBias);
      table[static_cast<size_t>(scale)][i] = float_to_bf16(i < 8 ? magnitude : -magnitude);
    }
  }
  return table;
}

void read_bytes(const StoredTensor& tensor, int64_t begin, int64_t count, uint8_t* out) {
  const std::byte* from = tensor.data + begin;
  const auto size = static_cast<size_t>(count);
  if (tensor.file == nullptr) {
    std::memcpy(out, from, size);
  } else {
    tensor.file->read(from, std::as_writable_bytes(std::span(out, size)));
  }
}

TensorEntry entry_of(const std::string& path, const Mxfp4Tensor& tensor, uint64_t begin) {
  const TensorEntry &blocks = *tensor.blocks.entry, &scales = *tensor.scales.entry;
  const auto fail = [&](const TensorEntry& entry, const std::string& expected) {
    std::string shape;
    for (const int64_t size : entry.shape) shape += str(shape.empty() ? "" : ", ", size);
    throw InvalidArgument(
        str(path, ": tensor '", entry.name, "' is ", entry.dtype, " [", shape, "]; expected: ", expected));
  };
  if (blocks.dtype != "U8" || blocks.shape.size() < 2 || blocks.shape.back() != kMxfp4BlockBytes)
    fail(blocks, str("U8, the last dimension ", kMxfp4BlockBytes, " (MXFP4)"));
  const std::vector<int64_t> outer(blocks.shape.begin(), blocks.shape.end() - 1);
  if (scales.dtype != "U8" || scales.shape != outer)
    fail(scales, str("U8, of the shape of '", blocks.name, "' but for its last dimension (MXFP4)"));
  // What has no values may have any other size.
  if (outer.back() > std::numeric_limits<int64_t>::max() / kMxfp4BlockValues) fail(blocks, "fewer of them");
  TensorEntry entry{blocks.name, "BF16", outer, begin, begin};
  entry.shape.back() *= kMxfp4BlockValues;
  uint64_t bytes = sizeof(uint16_t);
  for (const int64_t size : entry.shape) bytes *= static_cast<uint64_t>(size);  // four times the blocks'
  entry.end += bytes;
  return entry;
}

}  // namespace

void decode_mxfp4_block(const uint8_t* bytes, uint8_t scale, uint16_t* out) {
  static const ValueTable table = make_table();
  const auto& values = table[scale];
  for (int64_t i = 0; i < kMxfp4BlockBytes; ++i) {
    out[2 * i] = values[bytes[i] & 15];
    out[2 * i + 1] = values[bytes[i] >> 4];
  }
}

Mxfp4Weights::Mxfp4Weights(const std::string& path, std::vector<Mxfp4Tensor> tensors)
    : path_(path), tensors_(std::move(tensors)) {
  for (const Mxfp4Tensor& tensor : tensors_)
    entries_.push_back(entry_of(path_, tensor, entries_.empty() ? 0 : entries_.back().end));
  if (!entries_.empty()) addresses_ = ReservedAddresses(static_cast<size_t>(entries_.back().end), path_);
}

void Mxfp4Weights::read(const std::byte* from, std::span<std::byte> out) const {
  const auto position = static_cast<uint64_t>(from - addresses_.begin());
  const auto entry = std::ranges::upper_bound(entries_, position, {}, &TensorEntry::end);
  QUIRE_CHECK(entry != entries_.end() && position + out.size() <= entry->end, "values of two tensors");
  QUIRE_CHECK((position - entry->begin) % 2 == 0 && out.size() % 2 == 0, "a part of a value");
  const Mxfp4Tensor& tensor = tensors_[static_cast<size_t>(entry - entries_.begin())];
  auto first = static_cast<int64_t>((position - entry->begin) / 2);
  auto count = static_cast<int64_t>(out.size() / 2);
  constexpr int64_t kBlocksAtOnce = 256;  // in the first caches
  std::array<uint8_t, kBlocksAtOnce * kMxfp4BlockBytes> blocks;
  std::array<uint8_t, kBlocksAtOnce> scales;
  std::array<uint16_t, kBlocksAtOnce * kMxfp4BlockValues> values;
  for (std::byte* to = out.data(); count > 0;) {
    const int64_t block = first / kMxfp4BlockValues;
    const int64_t skipped = first % kMxfp4BlockValues;
    const int64_t num_blocks =
        std::min(kBlocksAtOnce, (skipped + count + kMxfp4BlockValues - 1) / kMxfp4BlockValues);
    read_bytes(tensor.blocks, block * kMxfp4BlockBytes, num_blocks * kMxfp4BlockBytes, blocks.data());
    read_bytes(tensor.scales, block, num_blocks, scales.data());
    for (int64_t i = 0; i < num_blocks; ++i) {
      const uint8_t scale = scales[static_cast<size_t>(i)];
      if (scale == kMxfp4NanScale) {
        throw InvalidArgument(str(path_, ": tensor '", tensor.scales.entry->name, "' holds ",
                                  int(kMxfp4NanScale), ", which is NaN, at place ", block + i,
                                  "; the file is damaged"));
      }
      decode_mxfp4_block(&blocks[static_cast<size_t>(i * kMxfp4BlockBytes)], scale,
                         &values[static_cast<size_t>(i * kMxfp4BlockValues)]);
    }
    const int64_t n = std::min(count, num_blocks * kMxfp4BlockValues - skipped);
    std::memcpy(to, &values[static_cast<size_t>(skipped)], static_cast<size_t>(n) * 2);
    to += n * 2;
    first += n;
    count -= n;
  }
}

}  // namespace quire
