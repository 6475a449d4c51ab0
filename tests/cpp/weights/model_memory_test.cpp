// A model in an arena: its size is known before anything is allocated or read, and every byte gets where it
// belongs.
#include <gtest/gtest.h>

#include <cstring>

#include "device/fake_device_runtime.h"
#include "formats/hf_config.h"
#include "layers/vocab_parallel.h"
#include "models/model_registry.h"
#include "quire/kernels/backend_registry.h"
#include "weights/loader_check.h"
#include "weights/weight_files.h"

namespace quire {
namespace {

// Where its memory begins, besides.
class RecordingArena final : public DeviceArena {
 public:
  explicit RecordingArena(std::unique_ptr<DeviceArena> arena) : arena_(std::move(arena)) {}
  std::byte* allocate(size_t bytes) override {
    std::byte* data = arena_->allocate(bytes);
    if (!start_) start_ = data;
    used_ = arena_->used();
    return data;
  }
  size_t remaining() const override { return arena_->remaining(); }
  void discard() override { arena_->discard(); }
  void restore() override { arena_->restore(); }
  const std::byte* start() const { return start_; }

 private:
  std::unique_ptr<DeviceArena> arena_;
  const std::byte* start_ = nullptr;
};

struct Backend {
  // The CPU's, with packed weights or, as a device has them, plain ones.
  explicit Backend(bool packed) : ops(*find_kernel_table("cpu")) {
    if (!packed) ops.linear_pack_rows = nullptr;
  }
  // Returns the workspace's size.
  size_t build(Checkpoint checkpoint, DeviceArena& arena, WeightLoader& loader, int32_t rank = 0,
               int32_t world_size = 1) {
    const HfConfig config = HfConfig::load(QUIRE_DEMO_MODEL "/config.json");
    BuildContext build{ops, launch, checkpoint, arena, loader, DType::kBFloat16};
    build.rank = rank;
    build.world_size = world_size;
    build.max_model_len = 300;
    build.max_num_tokens = 64;
    build.max_num_seqs = 8;
    const auto model = build_model(build, config);
    loader.finish();
    return build.workspace_bytes;
  }

  KernelTable ops;
  LaunchContext launch;
};

TEST(ModelMemoryTest, MeasuringFindsTheSizeWithoutTouchingAnything) {
  for (const bool packed : {true, false}) {
    Backend backend(packed);
    const auto host = make_host_arena();
    const size_t workspace_bytes =
        backend.build(Checkpoint::open(QUIRE_DEMO_MODEL), *host, *make_host_loader());
    // A dummy's tensors are null and the measuring arena's addresses are nobody's: to touch one would end us.
    const auto measured = make_measuring_arena();
    EXPECT_EQ(backend.build(Checkpoint::dummy(QUIRE_DEMO_MODEL), *measured, *make_measuring_loader()),
              workspace_bytes);
    EXPECT_EQ(measured->used(), host->used());
    EXPECT_GT(measured->used(), size_t{7'300'000} * 2);
  }
}

TEST(ModelMemoryTest, ADevicesArenaEndsUpAsTheHostWouldFillIt) {
  FakeDeviceRuntime::reset();
  const DeviceRuntime& runtime = FakeDeviceRuntime::table();
  for (const int32_t world_size : {1, 2}) {
    for (int32_t rank = 0; rank < world_size; ++rank) {
      Backend backend(/*packed=*/false);
      const auto measured = make_measuring_arena();
      backend.build(Checkpoint::dummy(QUIRE_DEMO_MODEL), *measured, *make_measuring_loader(), rank,
                    world_size);
      const size_t bytes = measured->used();
      // Both arenas are full of 0xCD before. The fake's memory is the host's: the host's loader can write it.
      std::vector<RecordingArena> arenas;
      for (const auto& loader : {make_device_loader(runtime, 0, backend.ops), make_host_loader()}) {
        arenas.emplace_back(make_device_arena(runtime, bytes));
        backend.build(Checkpoint::open(QUIRE_DEMO_MODEL), arenas.back(), *loader, rank, world_size);
        EXPECT_EQ(arenas.back().remaining(), 0U);
      }
      EXPECT_EQ(std::memcmp(arenas[0].start(), arenas[1].start(), bytes), 0) << rank << " of " << world_size;
    }
  }
}

// Packed from one arena, and read to another: what is computed is computed there.
TEST(ModelMemoryTest, PackedWeightsFillADevicesArenaAsTheCheckpointDoes) {
  FakeDeviceRuntime::reset();
  const DeviceRuntime& runtime = FakeDeviceRuntime::table();
  Backend backend(/*packed=*/false);
  const auto measured = make_measuring_arena();
  backend.build(Checkpoint::dummy(QUIRE_DEMO_MODEL), *measured, *make_measuring_loader());
  const auto expected = make_device_arena(runtime, measured->used());
  backend.build(Checkpoint::open(QUIRE_DEMO_MODEL), *expected, *make_device_loader(runtime, 0, backend.ops));

  PackedHeader header{
      "cuda-rows", "bfloat16", 0, 1, "BF16", Checkpoint::open(QUIRE_DEMO_MODEL).described_tensors(), {}};
  std::vector<std::span<const std::byte>> sections;
  size_t computed_bytes = 0;
  for (const DeviceArena::Allocation& each : expected->allocations()) {
    if (each.is_computed) {
      computed_bytes += each.bytes;
    } else {
      sections.emplace_back(each.data, each.bytes);
    }
  }
  EXPECT_EQ(computed_bytes, size_t{300} * 64 * 4) << "the angles of 300 positions";
  const ModelDirectory directory;
  const std::string path = directory.path() + "/" + packed_file_name(header);
  write_packed_file(path, header, sections);

  const auto arena = make_device_arena(runtime, measured->used());
  const auto file = std::make_shared<const PackedFile>(path);
  Checkpoint described = Checkpoint::described(directory.path(), header.main_dtype, file->header().tensors);
  const auto loader =
      make_packed_loader(file, *arena, /*is_mapped=*/false, make_device_loader(runtime, 0, backend.ops));
  backend.build(std::move(described), *arena, *loader);
  EXPECT_EQ(std::memcmp(arena->device_memory().data(), expected->device_memory().data(), measured->used()),
            0);
}

// Five ids over two ranks: the second has two, and room for a third.
TEST(ModelMemoryTest, RowsPastTheVocabularyAreZeroOnADevice) {
  FakeDeviceRuntime::reset();
  const DeviceRuntime& runtime = FakeDeviceRuntime::table();
  const std::vector<float> values = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  const ModelDirectory directory;
  write_safetensors(
      directory,
      {{"e.weight", "F32", {5, 2}, std::string(reinterpret_cast<const char*>(values.data()), 40)}});
  for (const bool for_logits : {false, true}) {
    Backend backend(/*packed=*/false);
    Checkpoint checkpoint = Checkpoint::open(directory.path());
    RecordingArena arena(make_device_arena(runtime, 256));
    const auto loader = make_device_loader(runtime, 0, backend.ops);
    BuildContext build{backend.ops, backend.launch, checkpoint, arena, *loader, DType::kFloat32};
    build.rank = 1;
    build.world_size = 2;
    build.max_num_seqs = 1;
    const VocabParallelEmbedding embedding(build, "e", 5, 2, for_logits);
    loader->finish();
    float rows[6];
    std::memcpy(rows, arena.start(), sizeof rows);
    EXPECT_EQ(std::vector<float>(rows, rows + 6), (std::vector<float>{6, 7, 8, 9, 0, 0}));
  }
}

}  // namespace
}  // namespace quire
