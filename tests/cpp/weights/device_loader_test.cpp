// The loader that streams through pinned memory: against a device that is as late as it may be, and against
// the real one where there is one.
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
  for (const int32_t max_threads : {1, 8}) {
    if (kSanitized && max_threads == 1) continue;  // the same code on one thread, at ten times the price
    const auto arena = make_device_arena(*runtime_, size_t{128} << 20);
    const auto loader = make_device_loader(*runtime_, 0, *ops_, max_threads);
    check_loader(
        *loader, [&](size_t bytes) { return arena->allocate(bytes); },
        [this](const std::byte* data, size_t bytes) { return read(data, bytes); });
  }
}

TEST_P(DeviceLoaderTest, BlocksArriveAsTheirValues) {
  const auto arena = make_device_arena(*runtime_, size_t{128} << 20);
  const auto loader = make_device_loader(*runtime_, 0, *ops_, 8);
  check_blocks(
      *loader, [&](size_t bytes) { return arena->allocate(bytes); },
      [this](const std::byte* data, size_t bytes) { return read(data, bytes); });
}

TEST_P(DeviceLoaderTest, ManySmallTensorsShareTheBuffers) {
  constexpr int32_t kCount = 3000;
  const auto arena = make_device_arena(*runtime_, kCount * 256);
  const auto loader = make_device_loader(*runtime_, 0, *ops_, 3);
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
  const auto loader = make_device_loader(*runtime_, 0, *ops_, 2);
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
  std::vector<float> values(3 << 20);
  std::vector<std::byte> place(values.size() * 4);
  {
    const auto loader = make_device_loader(runtime_, 0, fake_ops(), 1);
    loader->load(place.data(), DType::kFloat32,
                 TensorView(values.data(), DType::kFloat32, static_cast<int64_t>(values.size())));
    try {
      loader->finish();
      FAIL();
    } catch (const InternalError& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("2097152 bytes"), std::string::npos) << text;
      EXPECT_NE(text.find("it broke"), std::string::npos) << text;
    }
  }
  EXPECT_EQ(device_.num_allocations, 0);
  EXPECT_EQ(device_.num_handles, 0);
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
  const auto loader = make_device_loader(runtime_, 0, fake_ops(), 8);
  std::vector<std::byte> place(size_t{256} << 20);
  load_zeros(*loader, place.data(), 256, 1 << 20);
  loader->finish();
  EXPECT_LE(before - device_.free_pinned_bytes, size_t{64} << 20);
  EXPECT_GE(before - device_.free_pinned_bytes, size_t{4} << 20);
}

}  // namespace
}  // namespace quire
