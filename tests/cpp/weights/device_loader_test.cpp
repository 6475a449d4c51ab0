// The loader that streams through pinned memory: against a device that is as late as it may be, and against
// the real one where there is one.
#include <latch>
#include <numeric>

#include "device/device_arena.h"
#include "device/fake_device_runtime.h"
#include "device/runtime_handles.h"
#include "quire/error.h"
#include "quire/kernels/backend_registry.h"
#include "quire/kernels/cuda_device.h"
#include "util/sanitized.h"
#include "weights/loader_check.h"

namespace quire {
namespace {

struct FilledRandom {
  void* data;
  DType dtype;
  int64_t numel;
  float scale;
  uint64_t seed;
  void* stream;
};
std::vector<FilledRandom> filled;

// Only what the loader uses.
const KernelTable& fake_ops() {
  static const KernelTable kTable = [] {
    KernelTable table{};
    table.fill_random = [](const LaunchContext& ctx, TensorView out, float scale, uint64_t seed) {
      filled.push_back({out.data, out.dtype, out.numel(), scale, seed, ctx.stream});
      if (out.numel() == 13) {
        ctx.error->failed = true;
        std::strcpy(ctx.error->text, "fill_random [13]: unlucky");
      }
    };
    return table;
  }();
  return kTable;
}

class DeviceLoaderTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (GetParam() == std::string("fake")) {
      FakeDeviceRuntime::reset();
      runtime_ = &FakeDeviceRuntime::table();
      ops_ = &fake_ops();
      return;
    }
    runtime_ = find_device_runtime("cuda");
    ops_ = cuda_kernel_table(0);
    if (!runtime_ || !ops_) GTEST_SKIP() << "no CUDA device";
    check_device(*runtime_, runtime_->select(0), "select");
  }
  std::string read(const std::byte* data, size_t bytes) const {
    const DeviceStream stream = make_stream(*runtime_);
    std::string host(bytes, '\xAB');
    check_device(*runtime_, runtime_->copy(host.data(), data, bytes, stream.get()), "copy");
    check_device(*runtime_, runtime_->synchronize_stream(stream.get()), "synchronize");
    return host;
  }

  const DeviceRuntime* runtime_ = nullptr;
  const KernelTable* ops_ = nullptr;
};

TEST_P(DeviceLoaderTest, EveryPairOfTypesArrivesExactly) {
  // Of small chunks, each is filled many times over, and few tensors end where a piece or a chunk does.
  const DeviceLoaderOptions small{
      .max_threads = 8, .chunk_bytes = 100'000, .num_chunks = 2, .piece_bytes = 30'000};
  for (const DeviceLoaderOptions& options :
       {small, DeviceLoaderOptions{.max_threads = 8}, DeviceLoaderOptions{.max_threads = 1}}) {
    if (kSanitized && options.piece_bytes != small.piece_bytes)
      continue;  // the same code, at ten times the price
    const auto arena = make_device_arena(*runtime_, size_t{128} << 20);
    const auto loader = make_device_loader(*runtime_, 0, *ops_, options);
    check_loader(
        *loader, [&](size_t bytes) { return arena->allocate(bytes); },
        [this](const std::byte* data, size_t bytes) { return read(data, bytes); });
  }
}

TEST_P(DeviceLoaderTest, BlocksArriveAsTheirValues) {
  const auto arena = make_device_arena(*runtime_, size_t{128} << 20);
  const auto loader = make_device_loader(*runtime_, 0, *ops_, {.max_threads = 8});
  check_blocks(
      *loader, [&](size_t bytes) { return arena->allocate(bytes); },
      [this](const std::byte* data, size_t bytes) { return read(data, bytes); });
}

TEST_P(DeviceLoaderTest, ManySmallTensorsShareTheBuffers) {
  constexpr int32_t kCount = 3000;
  const auto arena = make_device_arena(*runtime_, kCount * 256);
  const auto loader = make_device_loader(*runtime_, 0, *ops_, {.max_threads = 3});
  std::vector<float> values(kCount);
  std::vector<std::byte*> places;
  for (int32_t i = 0; i < kCount; ++i) {
    values[static_cast<size_t>(i)] = static_cast<float>(i);
    places.push_back(arena->allocate(4));
    loader->load(places.back(), DType::kFloat32,
                 TensorView(&values[static_cast<size_t>(i)], DType::kFloat32, 1));
  }
  loader->finish();
  const std::string all = read(places[0], kCount * 256);
  for (int32_t i = 0; i < kCount; ++i) {
    float value;
    std::memcpy(&value, all.data() + static_cast<size_t>(i) * 256, 4);
    ASSERT_EQ(value, static_cast<float>(i));
  }
}

TEST_P(DeviceLoaderTest, WhatAWriterThrowsComesOutOfFinishOnce) {
  const auto arena = make_device_arena(*runtime_, 1 << 20);
  const auto loader = make_device_loader(*runtime_, 0, *ops_);
  std::byte* to = arena->allocate(1 << 20);
  loader->generate(to, 16, 64, [](int64_t, int64_t, std::byte*) { throw ResourceExhausted("no more"); });
  EXPECT_THROW(loader->finish(), ResourceExhausted);
  load_zeros(*loader, to, 16, 64);
  loader->finish();
  EXPECT_EQ(read(to, 1024), std::string(1024, '\0'));
}

TEST_P(DeviceLoaderTest, MayBeDroppedInTheMiddle) {
  const auto arena = make_device_arena(*runtime_, size_t{64} << 20);
  std::byte* to = arena->allocate(size_t{64} << 20);
  const auto loader = make_device_loader(*runtime_, 0, *ops_, {.max_threads = 2});
  load_zeros(*loader, to, 1 << 16, 1 << 10);
}

INSTANTIATE_TEST_SUITE_P(Devices, DeviceLoaderTest, testing::Values("fake", "cuda"),
                         [](const auto& info) { return std::string(info.param); });

class FakeDeviceLoaderTest : public testing::Test {
 protected:
  const DeviceRuntime& runtime_ = FakeDeviceRuntime::table();
  FakeDevice& device_ = FakeDeviceRuntime::reset();
};

TEST_F(FakeDeviceLoaderTest, DummyValuesAreMadeOnTheDevice) {
  filled.clear();
  {
    const auto loader = make_device_loader(runtime_, 0, fake_ops());
    float place = 0;
    loader->load(&place, DType::kBFloat16, TensorView(nullptr, DType::kFloat32, 100, 64));
    loader->load(&place, DType::kFloat32, TensorView(nullptr, DType::kFloat32, 16));
    loader->finish();
    ASSERT_EQ(filled.size(), 2U);
    EXPECT_EQ(filled[0].data, &place);
    EXPECT_EQ(filled[0].dtype, DType::kBFloat16);
    EXPECT_EQ(filled[0].numel, 6400);
    EXPECT_EQ(filled[0].scale, 1.0F / 8);
    EXPECT_EQ(filled[1].scale, 1.0F / 4);
    EXPECT_NE(filled[0].seed, filled[1].seed);
    EXPECT_NE(filled[0].stream, nullptr);

    loader->load(&place, DType::kFloat32, TensorView(nullptr, DType::kFloat32, 13));
    EXPECT_THROW(loader->finish(), InternalError);
  }
  EXPECT_EQ(device_.num_handles, 0);
}

TEST_F(FakeDeviceLoaderTest, AFileTruncatedMeanwhileIsAnErrorThatNamesIt) {
  EXPECT_EQ(truncation_error([] { return make_device_loader(FakeDeviceRuntime::table(), 0, fake_ops()); }),
            "model.safetensors: was truncated while it was read");
}

TEST_F(FakeDeviceLoaderTest, AFailedCopyIsNamedWithItsSize) {
  device_.copies_until_failure = 1;
  std::vector<float> values(3 << 20);  // a chunk and a half
  std::vector<std::byte> place(values.size() * 4);
  {
    const auto loader = make_device_loader(runtime_, 0, fake_ops(), {.max_threads = 1});
    loader->load(place.data(), DType::kFloat32,
                 TensorView(values.data(), DType::kFloat32, static_cast<int64_t>(values.size())));
    try {
      loader->finish();
      FAIL();
    } catch (const InternalError& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("4194304 bytes"), std::string::npos) << text;
      EXPECT_NE(text.find("it broke"), std::string::npos) << text;
    }
  }
  EXPECT_EQ(device_.num_allocations, 0);
  EXPECT_EQ(device_.num_handles, 0);
}

// Pieces of one tensor, and tensors that lie side by side.
TEST_F(FakeDeviceLoaderTest, NeighboursAreCopiedAtOnce) {
  constexpr int kMany = 1000;
  device_.copies_until_failure = kMany;
  std::vector<std::byte> place(4096);
  const auto loader = make_device_loader(
      runtime_, 0, fake_ops(), {.max_threads = 4, .chunk_bytes = 1024, .num_chunks = 3, .piece_bytes = 256});
  load_zeros(*loader, place.data(), 4, 256);  // a chunk
  loader->finish();
  EXPECT_EQ(device_.copies_until_failure, kMany - 1);
  load_zeros(*loader, place.data() + 1024, 8, 64);
  load_zeros(*loader, place.data() + 1536, 7, 64);
  load_zeros(*loader, place.data() + 2048, 1, 64);  // a gap before it
  loader->finish();
  EXPECT_EQ(device_.copies_until_failure, kMany - 3);
  load_zeros(*loader, place.data() + 2048, 4, 500);  // rows that no other may follow, two to a chunk
  loader->finish();
  EXPECT_EQ(device_.copies_until_failure, kMany - 7);
}

TEST_F(FakeDeviceLoaderTest, NothingOfALoadThatFailedIsSentLater) {
  constexpr int kMany = 1000;
  device_.copies_until_failure = kMany;
  const auto loader = make_device_loader(
      runtime_, 0, fake_ops(), {.max_threads = 2, .chunk_bytes = 1024, .num_chunks = 2, .piece_bytes = 64});
  {
    std::vector<std::byte> gone(1 << 20);
    loader->generate(gone.data(), 5, 64, [](int64_t begin, int64_t, std::byte*) {
      if (begin == 4) throw InvalidArgument("no such row");
    });
    EXPECT_THROW(loader->finish(), InvalidArgument);
    EXPECT_EQ(device_.copies_until_failure, kMany);
    device_.copies_until_failure = 3;
    load_zeros(*loader, gone.data(), 1 << 10, 1 << 10);
    EXPECT_THROW(loader->finish(), InternalError);
  }
  device_.copies_until_failure = kMany;
  std::vector<std::byte> place(512, std::byte{1});
  load_zeros(*loader, place.data(), 8, 64);
  loader->finish();
  EXPECT_EQ(place, std::vector<std::byte>(512));
  EXPECT_EQ(device_.copies_until_failure, kMany - 1);
}

TEST_F(FakeDeviceLoaderTest, WhatWasSentArrivesBeforeADroppedLoaderIsGone) {
  std::vector<std::byte> place(8192, std::byte{1});
  std::latch at_the_third(1);
  {
    const auto loader =
        make_device_loader(runtime_, 0, fake_ops(),
                           {.max_threads = 1, .chunk_bytes = 1024, .num_chunks = 8, .piece_bytes = 1024});
    loader->generate(place.data(), 8, 1024, [&](int64_t row, int64_t, std::byte* out) {
      std::memset(out, 0, 1024);
      if (row == 2) at_the_third.count_down();
    });
    at_the_third.wait();
  }
  EXPECT_EQ(std::vector<std::byte>(place.begin(), place.begin() + 2048), std::vector<std::byte>(2048));
  EXPECT_EQ(device_.num_allocations, 0);
  EXPECT_EQ(device_.num_handles, 0);
}

// Copies happen at any time from when they are enqueued to when they are waited for.
TEST_F(FakeDeviceLoaderTest, ChunksAreFilledAgainOnlyWhenTheirCopiesAreDone) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    device_.hurries.emplace(seed);
    std::mt19937 random(seed);
    const auto loader = make_device_loader(runtime_, 0, fake_ops(),
                                           {.max_threads = 1 + static_cast<int32_t>(seed % 8),
                                            .chunk_bytes = 4096,
                                            .num_chunks = 1 + static_cast<int32_t>(seed % 4),
                                            .piece_bytes = 64 + random() % 1024});
    std::vector<int32_t> place(200'000, -1);
    size_t end = 0;
    while (place.size() - end > 5000) {
      const size_t columns = 1 + random() % 1000, rows = random() % 5;
      const auto first = static_cast<int32_t>(end);
      loader->generate(&place[end], static_cast<int64_t>(rows), columns * sizeof(int32_t),
                       [=](int64_t from, int64_t to, std::byte* out) {
                         auto* values = reinterpret_cast<int32_t*>(out);
                         const auto width = static_cast<int32_t>(columns);
                         std::iota(values, values + (to - from) * width,
                                   first + static_cast<int32_t>(from) * width);
                       });
      end += rows * columns;
      if (random() % 100 == 0) loader->finish();
    }
    loader->finish();
    for (size_t i = 0; i < end; ++i) ASSERT_EQ(place[i], static_cast<int32_t>(i)) << seed;
  }
}

TEST_F(FakeDeviceLoaderTest, ARowLongerThanAChunkIsRefused) {
  std::vector<std::byte> place(2000);
  const auto loader = make_device_loader(runtime_, 0, fake_ops(), {.chunk_bytes = 1024, .piece_bytes = 64});
  load_zeros(*loader, place.data(), 1, 1024);
  EXPECT_THROW(load_zeros(*loader, place.data(), 1, 1025), InternalError);
  loader->finish();
}

TEST_F(FakeDeviceLoaderTest, WithoutPinnedMemoryItSaysSo) {
  device_.free_pinned_bytes = 1 << 20;
  float value = 1, place = 0;
  const auto loader = make_device_loader(runtime_, 0, fake_ops());
  loader->load(&place, DType::kFloat32, TensorView(&value, DType::kFloat32, 1));
  EXPECT_THROW(loader->finish(), ResourceExhausted);
}

TEST_F(FakeDeviceLoaderTest, TakesFewPinnedBytes) {
  const size_t before = device_.free_pinned_bytes;
  const auto loader = make_device_loader(runtime_, 0, fake_ops(), {.max_threads = 8});
  std::vector<std::byte> place(size_t{256} << 20);
  load_zeros(*loader, place.data(), 256, 1 << 20);
  loader->finish();
  EXPECT_LE(before - device_.free_pinned_bytes, size_t{64} << 20);
  EXPECT_GE(before - device_.free_pinned_bytes, size_t{4} << 20);
}

}  // namespace
}  // namespace quire
