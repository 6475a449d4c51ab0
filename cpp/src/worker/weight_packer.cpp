#include "worker/weight_packer.h"

#include <span>
#include <vector>

#include "weights/packed_file.h"
#include "weights/weight_files.h"
#include "worker/model_builder.h"
#include "worker/platform.h"

namespace quire {
namespace {

// Of what is packed no size depends on it.
constexpr int32_t kAnyLength = 16;

}  // namespace

std::string pack_rank(const EngineConfig& config, const Backend& backend, const HfConfig& hf_config,
                      int32_t rank, int32_t num_threads, const std::string& directory) {
  const auto platform = make_platform(backend, num_threads);
  platform->select();
  Checkpoint checkpoint = Checkpoint::open(config.model);
  const DType dtype = resolve_dtype(config, checkpoint, backend);
  const auto communicator = make_planned_communicator(rank, config.tensor_parallel_size, /*device_bytes=*/0);
  const ModelRunnerConfig any = model_runner_config(config, backend, kAnyLength);
  const ModelBuilder builder(config, hf_config, any, *platform, *communicator);
  const auto build = [&](DeviceArena& arena, WeightLoader& loader) {
    loader.set_checkpoint(&checkpoint);
    builder.build(dtype, checkpoint, arena, loader);
    loader.finish();
    platform->check();
  };
  std::unique_ptr<DeviceArena> arena;
  if (platform->runtime() != nullptr) {
    const auto counter = make_measuring_arena();
    build(*counter, *make_measuring_loader());
    arena = make_device_arena(*platform->runtime(), counter->used());
  } else {
    arena = make_host_arena();
  }
  build(*arena, *platform->make_loader());

  // Null on the host, where what was handed out can be read.
  const std::byte* device = arena->device_memory().data();
  const Buffer copy = platform->copy_to_host(*arena);
  std::vector<std::span<const std::byte>> sections;
  for (const DeviceArena::Allocation& each : arena->allocations()) {
    if (each.is_computed) continue;
    const std::byte* data = device == nullptr ? each.data : copy.data() + (each.data - device);
    sections.emplace_back(data, each.bytes);
  }
  PackedHeader header = {backend.ops->weight_layout,
                         dtype_name(dtype),
                         rank,
                         config.tensor_parallel_size,
                         checkpoint.main_dtype(),
                         checkpoint.described_tensors(),
                         {}};
  const std::string path = directory + "/" + packed_file_name(header);
  write_packed_file(path, std::move(header), sections);
  return path;
}

}  // namespace quire
