// Tensors of a file through a loader, in every pair of types and every form, and what must come of them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "formats/gguf_bytes.h"
#include "quire/error.h"
#include "util/error_of.h"
#include "util/half_float.h"
#include "util/str.h"
#include "weights/checkpoint.h"
#include "weights/model_directory.h"
#include "weights/weight_loader.h"

namespace quire {

// Any bits at all: infinities, NaN and subnormal numbers among them.
inline std::string random_bytes(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::string bytes(count, '\0');
  for (size_t i = 0; i + 8 <= count; i += 8) {
    const uint64_t word = random();
    std::memcpy(bytes.data() + i, &word, 8);
  }
  return bytes;
}

// Random bytes without the patterns of infinities and NaN.
inline std::string finite_bytes(size_t count, uint64_t seed) {
  std::string bytes = random_bytes(count, seed);
  for (size_t i = 1; i < count; i += 2)
    bytes[i] = static_cast<char>(bytes[i] & 0xBF);  // no exponent is all ones
  return bytes;
}

inline float value_at(const TensorView& view, int64_t row, int64_t column) {
  const std::byte* at = view.as<std::byte>() + (view.rank == 1 ? column : row * view.stride[0] + column) *
                                                   static_cast<int64_t>(dtype_bytes(view.dtype));
  if (view.dtype == DType::kFloat32) {
    float value;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, at, sizeof bits);
  return view.dtype == DType::kFloat16 ? fp16_to_float(bits) : bf16_to_float(bits);
}

// `from`, dense, one value after the other.
inline std::string expected_bytes(const TensorView& from, DType dtype) {
  const int64_t rows = from.rank == 1 ? 1 : from.shape[0];
  const int64_t columns = from.shape[from.rank - 1];
  const size_t size = dtype_bytes(dtype);
  std::string out(static_cast<size_t>(rows * columns) * size, '\0');
  char* to = out.data();
  for (int64_t row = 0; row < rows; ++row) {
    if (dtype == from.dtype) {  // bit for bit, which a way through fp32 need not be
      const auto begin = static_cast<size_t>(from.rank == 1 ? 0 : row * from.stride[0]);
      std::memcpy(to, from.as<char>() + begin * size, static_cast<size_t>(columns) * size);
      to += static_cast<size_t>(columns) * size;
      continue;
    }
    for (int64_t column = 0; column < columns; ++column, to += size) {
      const float value = value_at(from, row, column);
      if (dtype == DType::kFloat32) {
        std::memcpy(to, &value, sizeof value);
      } else {
        const uint16_t bits = dtype == DType::kFloat16 ? float_to_fp16(value) : float_to_bf16(value);
        std::memcpy(to, &bits, sizeof bits);
      }
    }
  }
  return out;
}

// Loads every form of every pair of types, and compares what lies there once the loader has finished.
// `allocate` gives the backend's memory, `read` copies from it.
inline void check_loader(WeightLoader& loader, const std::function<std::byte*(size_t)>& allocate,
                         const std::function<std::string(const std::byte*, size_t)>& read) {
  struct Form {
    const char* name;
    int64_t rows, columns;  // of the tensor; rows 0: a vector
    int64_t row_begin, num_rows, column_begin, num_columns;
    bool large() const { return num_columns * std::max<int64_t>(num_rows, 1) > 1'000'000; }
  };
  const Form forms[] = {
      {"vector", 0, 1003, 0, 0, 0, 1003},
      {"part_of_a_vector", 0, 999, 0, 0, 7, 500},
      {"matrix", 301, 1999, 0, 301, 0, 1999},
      {"pieces", 1301, 1801, 0, 1301, 0, 1801},  // longer than one piece, and no multiple of it
      {"rows", 50, 130, 13, 29, 0, 130},
      {"columns", 2048, 2050, 0, 2048, 3, 1025},    // many pieces of several rows
      {"few_columns", 500, 1000, 1, 499, 990, 10},  // most is not read
      {"one_row", 9, 33, 4, 1, 5, 11},
      {"long_rows", 2, 2'200'000, 0, 2, 1, 2'199'999},  // a row is longer than a piece
  };
  struct Type {
    const char* name;
    DType dtype;
  };
  const Type types[] = {{"F32", DType::kFloat32}, {"F16", DType::kFloat16}, {"BF16", DType::kBFloat16}};
  // Two pairs will do for the large ones: one that is copied, one that is converted.
  const auto is_stored = [](const Form& form, DType stored) {
    return !form.large() || stored != DType::kFloat16;
  };

  // Plain memory may hold any bits; a checkpoint is read through a file.
  for (const bool in_file : {false, true})
    for (const Type& stored : types) {
      const ModelDirectory directory;
      std::vector<NamedTensor> tensors;
      for (const Form& form : forms) {
        if (!is_stored(form, stored.dtype)) continue;
        std::vector<int64_t> shape = {form.columns};
        if (form.rows > 0) shape.insert(shape.begin(), form.rows);
        const auto numel = static_cast<size_t>(std::max<int64_t>(form.rows, 1) * form.columns);
        tensors.push_back(
            {form.name, stored.name, shape,
             (in_file ? finite_bytes : random_bytes)(numel * dtype_bytes(stored.dtype), tensors.size())});
      }
      write_safetensors(directory, tensors);
      tensors.clear();
      Checkpoint checkpoint = Checkpoint::open(directory.path());
      loader.set_checkpoint(in_file ? &checkpoint : nullptr);
      struct Loaded {
        std::string name;
        std::byte* at;
        std::string expected;
      };
      std::vector<Loaded> loaded;
      for (const Type& wanted : types) {
        for (const Form& form : forms) {
          if (!is_stored(form, stored.dtype) || (form.large() && wanted.dtype != DType::kBFloat16)) continue;
          TensorView view = form.rows > 0 ? checkpoint.take(form.name, {form.rows, form.columns})
                                          : checkpoint.take(form.name, {form.columns});
          if (form.rows > 0) view = slice_rows(view, form.row_begin, form.num_rows);
          view = slice_columns(view, form.column_begin, form.num_columns);
          std::string expected = expected_bytes(view, wanted.dtype);
          std::byte* at = allocate(expected.size());
          loader.load(at, wanted.dtype, view);
          loaded.push_back({str(form.name, " ", stored.name, " to ", wanted.name), at, std::move(expected)});
        }
      }
      loader.finish();
      for (const Loaded& each : loaded) {
        EXPECT_TRUE(read(each.at, each.expected.size()) == each.expected) << each.name;
      }
    }
  loader.set_checkpoint(nullptr);

  // A table that is computed, in rows; each one once.
  constexpr int64_t kRows = 70'001, kColumns = 36;
  std::byte* table = allocate(kRows * kColumns * sizeof(int32_t));
  loader.generate(table, kRows, kColumns * sizeof(int32_t), [](int64_t begin, int64_t end, std::byte* out) {
    for (int64_t i = begin * kColumns; i < end * kColumns; ++i, out += sizeof(int32_t)) {
      const auto value = static_cast<int32_t>(i);
      std::memcpy(out, &value, sizeof value);
    }
  });
  std::byte* zeros = allocate(64 * 100);
  load_zeros(loader, zeros, 64, 100);
  loader.finish();
  std::string expected(kRows * kColumns * sizeof(int32_t), '\0');
  for (int32_t i = 0; i < kRows * kColumns; ++i)
    std::memcpy(expected.data() + static_cast<size_t>(i) * 4, &i, 4);
  EXPECT_TRUE(read(table, expected.size()) == expected);
  EXPECT_EQ(read(zeros, 6400), std::string(6400, '\0'));
}

// A GGUF file whose one tensor is a llama's q of blocks of Q8_0; `values` are what it holds, in Hugging
// Face's order of rows.
struct QuantizedFile {
  static constexpr int64_t kHeads = 4, kHalf = 250, kRows = kHeads * 2 * kHalf, kColumns = 2080;

  QuantizedFile() {
    GgufBytes bytes;
    bytes.begin(3, 1, 7);
    bytes.add_string("general.architecture").add(uint32_t{8}).add_string("llama");
    for (const auto& [key, value] :
         {std::pair("embedding_length", kColumns), std::pair("feed_forward_length", int64_t{8}),
          std::pair("block_count", int64_t{1}), std::pair("attention.head_count", kHeads),
          std::pair("context_length", int64_t{64})})
      bytes.add_string(str("llama.", key)).add(uint32_t{4}).add(static_cast<uint32_t>(value));
    bytes.add_string("llama.attention.layer_norm_rms_epsilon").add(uint32_t{6}).add(1e-5F);
    bytes.add_tensor("blk.0.attn_q.weight", kColumns, kRows, 8, 0).add_data(0);
    std::mt19937 random(7);
    values.resize(kRows * kColumns);
    for (int64_t stored = 0; stored < kRows; ++stored) {
      // The file has the two halves of a head's rows by turns.
      const int64_t place = stored % (2 * kHalf);
      float* row = values.data() + (stored - place + place % 2 * kHalf + place / 2) * kColumns;
      for (int64_t block = 0; block < kColumns / 32; ++block) {
        const float scale = static_cast<float>(1 + random() % 1000) / 1024.0F;
        bytes.add(float_to_fp16(scale));
        for (int64_t i = 0; i < 32; ++i) {
          const auto value = static_cast<int8_t>(random());
          bytes.add(value);
          row[block * 32 + i] = static_cast<float>(value) * fp16_to_float(float_to_fp16(scale));
        }
      }
    }
    std::ofstream(path, std::ios::binary) << bytes.text;
  }

  const ModelDirectory directory;
  const std::string path = directory.path() + "/x.gguf";
  std::vector<float> values;
};

// Blocks that are cut by pieces, by slices and by heads arrive as the values that they stand for.
inline void check_blocks(WeightLoader& loader, const std::function<std::byte*(size_t)>& allocate,
                         const std::function<std::string(const std::byte*, size_t)>& read) {
  const QuantizedFile file;
  Checkpoint checkpoint = Checkpoint::open(file.path);
  loader.set_checkpoint(&checkpoint);
  const TensorView all = checkpoint.take("model.layers.0.self_attn.q_proj.weight",
                                         {QuantizedFile::kRows, QuantizedFile::kColumns});
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16})
    for (const bool is_slice : {false, true}) {
      const int64_t first_row = is_slice ? 3 : 0, rows = is_slice ? 1490 : all.shape[0];
      const int64_t first_column = is_slice ? 17 : 0, columns = is_slice ? 1031 : all.shape[1];
      const auto size = dtype_bytes(dtype);
      std::byte* at = allocate(static_cast<size_t>(rows * columns) * size);
      loader.load(at, dtype, slice_columns(slice_rows(all, first_row, rows), first_column, columns));
      loader.finish();
      TensorView expected(const_cast<float*>(file.values.data()), DType::kFloat32, all.shape[0],
                          all.shape[1]);
      expected = slice_columns(slice_rows(expected, first_row, rows), first_column, columns);
      EXPECT_TRUE(read(at, static_cast<size_t>(rows * columns) * size) == expected_bytes(expected, dtype));
    }
  checkpoint.check_unchanged();
  std::filesystem::resize_file(file.path, 500'000);
  EXPECT_NE(error_of([&] {
              loader.load(allocate(file.values.size() * 4), DType::kFloat32, all);
              loader.finish();
            }).find(str(file.path, ": was truncated while it was read")),
            std::string::npos);
  EXPECT_NE(error_of([&] { checkpoint.check_unchanged(); }).find(file.path), std::string::npos);
  loader.set_checkpoint(nullptr);
}

// What a loader says of a tensor of a file that has been truncated since it was opened.
inline std::string truncation_error(const std::function<std::unique_ptr<WeightLoader>()>& make_loader) {
  constexpr int64_t kRows = 1000, kColumns = 600;
  const ModelDirectory directory;
  write_safetensors(directory,
                    {{"a.weight", "BF16", {kRows, kColumns}, finite_bytes(kRows * kColumns * 2, 0)}});
  Checkpoint checkpoint = Checkpoint::open(directory.path());
  std::filesystem::resize_file(directory.path() + "/model.safetensors", 500'000);
  std::vector<float> out(kRows * kColumns);
  const auto loader = make_loader();
  loader->set_checkpoint(&checkpoint);
  try {
    loader->load(out.data(), DType::kFloat32, checkpoint.take("a.weight", {kRows, kColumns}));
    loader->finish();
  } catch (const InvalidArgument& error) {
    const std::string text = error.what();
    return text.substr(text.find("model.safetensors"));
  }
  return "nothing";
}

}  // namespace quire
