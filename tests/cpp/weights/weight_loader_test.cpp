#include "weights/weight_loader.h"

#include <cmath>

#include "device/device_arena.h"
#include "device/thread_pool.h"
#include "quire/error.h"
#include "util/sanitized.h"
#include "weights/convert.h"
#include "weights/loader_check.h"

namespace quire {
namespace {

std::string read_host(const std::byte* data, size_t bytes) {
  return {reinterpret_cast<const char*>(data), bytes};
}

TEST(HostLoaderTest, EveryPairOfTypesArrivesExactly) {
  ThreadPool pool(3);
  for (const HostParallel* host : {pool.host_parallel(), static_cast<const HostParallel*>(nullptr)}) {
    if (kSanitized && host == nullptr) continue;  // the same code on one thread, at ten times the price
    const auto arena = make_host_arena();
    const auto loader = make_host_loader(host);
    check_loader(*loader, [&](size_t bytes) { return arena->allocate(bytes); }, read_host);
  }
}

TEST(HostLoaderTest, BlocksArriveAsTheirValues) {
  ThreadPool pool(3);
  const auto arena = make_host_arena();
  const auto loader = make_host_loader(pool.host_parallel());
  check_blocks(*loader, [&](size_t bytes) { return arena->allocate(bytes); }, read_host);
}

TEST(HostLoaderTest, AFileTruncatedMeanwhileIsAnErrorThatNamesIt) {
  ThreadPool pool(3);
  EXPECT_EQ(truncation_error([&] { return make_host_loader(pool.host_parallel()); }),
            "model.safetensors: was truncated while it was read");
}

// What loading a part of a file says, one of whose values has these bits.
std::string load_error(const char* stored, uint32_t bits, DType wanted, int64_t row_begin, int64_t num_rows) {
  constexpr int64_t kRows = 900, kColumns = 400, kPlace = 200'123;
  const ModelDirectory directory;
  const size_t size = stored == std::string("F32") ? 4 : 2;
  std::string bytes(kRows * kColumns * size, '\0');
  std::memcpy(bytes.data() + kPlace * size, &bits, size);
  write_safetensors(directory, {{"a.weight", "F32", {3}, std::string(12, '\0')},
                                {"b.weight", stored, {kRows, kColumns}, bytes}});
  Checkpoint checkpoint = Checkpoint::open(directory.path());
  ThreadPool pool(3);
  const auto loader = make_host_loader(pool.host_parallel());
  loader->set_checkpoint(&checkpoint);
  std::vector<float> out(kRows * kColumns);
  try {
    loader->load(out.data(), wanted,
                 slice_rows(checkpoint.take("b.weight", {kRows, kColumns}), row_begin, num_rows));
    loader->finish();
  } catch (const InvalidArgument& error) {
    const std::string text = error.what();
    return text.substr(text.find("model.safetensors"));
  }
  return "";
}

TEST(HostLoaderTest, AWeightThatIsNotFiniteIsNamed) {
  struct Value {
    const char* stored;
    uint32_t infinity, nan, largest;
  };
  for (const Value& value : {Value{"F32", 0xFF800000, 0x7F800001, 0x7F7FFFFF},
                             {"F16", 0x7C00, 0xFE00, 0xFBFF},
                             {"BF16", 0xFF80, 0x7FC0, 0xFF7F}}) {
    for (const DType wanted : {DType::kFloat32, DType::kBFloat16}) {
      for (const uint32_t bits : {value.infinity, value.nan}) {
        EXPECT_EQ(
            load_error(value.stored, bits, wanted, 0, 900),
            "model.safetensors: tensor 'b.weight' holds NaN or an infinite value, at place 200123 of 360000; "
            "the file is damaged, or was written by a training run that had diverged")
            << value.stored;
        EXPECT_EQ(load_error(value.stored, bits, wanted, 0, 500), "") << value.stored;
        EXPECT_NE(load_error(value.stored, bits, wanted, 500, 1), "") << value.stored;
      }
      EXPECT_EQ(load_error(value.stored, value.largest, wanted, 0, 900), "") << value.stored;
    }
  }
}

// What a loader makes of [rows, columns] without data.
std::vector<float> dummy_values(WeightLoader& loader, int64_t rows, int64_t columns) {
  std::vector<float> values(static_cast<size_t>(rows * columns), 1e9F);
  loader.load(values.data(), DType::kFloat32, TensorView(nullptr, DType::kBFloat16, rows, columns));
  loader.finish();
  return values;
}

TEST(HostLoaderTest, DummyValuesAreSpreadEvenlyAndKeepAProductsMagnitude) {
  ThreadPool pool(3);
  const auto values = dummy_values(*make_host_loader(pool.host_parallel()), 400, 256);
  double sum = 0, squares = 0;
  for (const float value : values) {
    ASSERT_LE(std::abs(value), 1.0F / 16);  // 1 / sqrt(256)
    sum += value;
    squares += double{value} * value;
  }
  const auto n = static_cast<double>(values.size());
  EXPECT_NEAR(sum / n, 0, 0.0005);
  EXPECT_NEAR(squares / n * 256, 1.0 / 3, 0.005);  // the variance of [-1, 1)
  EXPECT_NE(values[0], values[256]);
}

TEST(HostLoaderTest, DummyValuesFollowFromThePlaceOfTheCallAlone) {
  ThreadPool pool(3);
  const auto first = make_host_loader(pool.host_parallel());
  const auto second = make_host_loader();
  const auto values = dummy_values(*first, 300, 300);
  EXPECT_EQ(dummy_values(*second, 300, 300), values);
  EXPECT_NE(dummy_values(*first, 300, 300), values);
}

TEST(MeasuringLoaderTest, TouchesNothing) {
  const auto loader = make_measuring_loader();
  EXPECT_TRUE(loader->measuring());
  loader->load(nullptr, DType::kFloat32, TensorView(nullptr, DType::kFloat32, 1 << 20));
  loader->generate(nullptr, 1 << 20, 64, [](int64_t, int64_t, std::byte*) { FAIL(); });
  loader->finish();
}

// As GPT-2 has linears, and GPT-OSS experts: inputs first, gate and up by turns.
TEST(HostLoaderTest, TransposedTensorsAndEveryOtherOfTheirRowsArriveInOrder) {
  ThreadPool pool(2);
  constexpr int64_t kRows = 150, kColumns = 70;
  std::vector<float> stored(kRows * kColumns);
  for (size_t i = 0; i < stored.size(); ++i) stored[i] = static_cast<float>(i);
  const TensorView rows = transposed(TensorView(stored.data(), DType::kFloat32, kColumns, kRows));
  EXPECT_TRUE(is_transposed(rows));
  TensorView odd = slice_rows(rows, 1, kRows / 2);
  odd.stride[0] *= 2;
  const auto expect_arrives = [&](const TensorView& from, int64_t first, int64_t step) {
    std::vector<float> loaded(static_cast<size_t>(from.numel())), read(loaded.size());
    const auto loader = make_host_loader(pool.host_parallel());
    loader->load(loaded.data(), DType::kFloat32, from);
    loader->finish();
    loader->read_rows(read.data(), DType::kFloat32, from);
    EXPECT_EQ(loaded, read);
    for (int64_t r = 0; r < from.shape[0]; ++r) {
      for (int64_t c = 0; c < from.shape[1]; ++c)
        ASSERT_EQ(loaded[static_cast<size_t>(r * from.shape[1] + c)],
                  static_cast<float>(c * kRows + first + r * step));
    }
  };
  expect_arrives(rows, 0, 1);
  expect_arrives(odd, 1, 2);
  expect_arrives(slice_rows(odd, 3, 20), 7, 2);
  EXPECT_EQ(slice_columns(rows, 5, 3).shape[1], 3);
}

TEST(SliceTest, ATensorWithoutDataStaysWithout) {
  const TensorView none(nullptr, DType::kBFloat16, 10, 20);
  const TensorView part = slice_columns(slice_rows(none, 3, 4), 5, 6);
  EXPECT_EQ(part.data, nullptr);
  EXPECT_EQ(part.shape[0], 4);
  EXPECT_EQ(part.shape[1], 6);
  EXPECT_EQ(slice_rows(TensorView(nullptr, DType::kBFloat16, 10), 3, 4).shape[0], 4);
}

TEST(DummyCheckpointTest, HasWhatIsAskedForInTheConfigsType) {
  const ModelDirectory directory;
  directory.write("config.json", R"({"torch_dtype": "float16"})");
  Checkpoint checkpoint = Checkpoint::dummy(directory.path());
  EXPECT_EQ(checkpoint.main_dtype(), "F16");
  EXPECT_FALSE(checkpoint.has("a.weight"));
  const TensorView view = checkpoint.take("a.weight", {3, 5});
  EXPECT_EQ(view.data, nullptr);
  EXPECT_EQ(view.dtype, DType::kFloat16);
  EXPECT_EQ(view.rank, 2);
  EXPECT_EQ(view.shape[1], 5);
  checkpoint.check_all_taken({});

  directory.write("config.json", R"({"dtype": "bfloat16", "torch_dtype": "float16"})");
  EXPECT_EQ(Checkpoint::dummy(directory.path()).main_dtype(), "BF16");
  directory.write("config.json", "{}");
  EXPECT_EQ(Checkpoint::dummy(directory.path()).main_dtype(), "F32");
  directory.write("config.json", R"({"dtype": "int8"})");
  EXPECT_THROW(Checkpoint::dummy(directory.path()), InvalidArgument);
}

}  // namespace
}  // namespace quire
