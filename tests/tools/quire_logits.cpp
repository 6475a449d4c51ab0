// Writes a model's logits at every position of a prompt, for the parity tests in Python.
//
//   quire_logits MODEL_DIR DTYPE CHUNK RANKS MAX_MODEL_LEN OUT_FILE [DEVICE] < token ids, separated by blanks
//
// The prompt is computed CHUNK tokens at a time (0: whole) on RANKS tensor-parallel ranks, on DEVICE ("cpu"
// unless given) and, where it is not the host, those that follow. OUT_FILE gets [T, V] float32 values of rank
// 0.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "device/runtime_handles.h"
#include "device/thread_pool.h"
#include "distributed/peer_communicator.h"
#include "layers/quantization.h"
#include "models/dry_run.h"
#include "models/model_registry.h"
#include "quire/error.h"
#include "util/check.h"
#include "worker/backend.h"

namespace quire {
namespace {

constexpr int32_t kBlockSize = 16;
constexpr size_t kDeviceBytes = size_t{2} << 30;

struct Arguments {
  std::string model, dtype;
  int32_t chunk = 0, num_ranks = 1, max_model_len = 0;
  std::string device = "cpu";
  std::vector<int32_t> ids;
};

// Host memory that kernels read in place: plain, or pinned where there is a device.
class Visible {
 public:
  explicit Visible(const Backend& backend) : backend_(backend) {}
  std::byte* allocate(size_t bytes) {
    if (!backend_.is_device()) return buffers_.emplace_back(bytes).data();
    return static_cast<std::byte*>(pinned_.emplace_back(make_pinned(*backend_.runtime, bytes)).get());
  }
  template <typename T>
  T* copy(const std::vector<T>& values) {
    auto* data = reinterpret_cast<T*>(allocate(values.size() * sizeof(T)));
    std::copy(values.begin(), values.end(), data);
    return data;
  }

 private:
  const Backend& backend_;
  std::vector<Buffer> buffers_;
  std::vector<PinnedMemory> pinned_;
};

DType dtype_of(const std::string& name) {
  if (name == "float32") return DType::kFloat32;
  return name == "float16" ? DType::kFloat16 : DType::kBFloat16;
}

// NaN until written.
void poison(const Backend& backend, std::byte* data, size_t bytes) {
  if (!backend.is_device()) {
    std::memset(data, 0xFF, bytes);
  } else {
    check_device(*backend.runtime, backend.runtime->fill(data, 0xFF, bytes, nullptr), "filling");
    check_device(*backend.runtime, backend.runtime->synchronize(), "filling");
  }
}

std::vector<float> compute(const Arguments& args, const Backend& backend, Communicator& communicator) {
  const KernelTable& ops = *backend.ops;
  ThreadPool pool(2);
  LaunchContext launch;
  LaunchError error;
  launch.host = pool.host_parallel();
  launch.error = &error;
  if (backend.is_device()) {
    check_device(*backend.runtime, backend.runtime->select(backend.device), "selecting the device");
    launch.state = ops.create_state(&error);
    check_launches(error);
  }
  Checkpoint checkpoint = Checkpoint::open(args.model);
  const HfConfig config = load_model_config(args.model);
  const auto T = static_cast<int32_t>(args.ids.size());
  const auto arena =
      backend.is_device() ? make_device_arena(*backend.runtime, kDeviceBytes) : make_host_arena();
  const auto loader = backend.is_device() ? make_device_loader(*backend.runtime, backend.device, ops)
                                          : make_host_loader(launch.host);
  loader->set_checkpoint(&checkpoint);
  BuildContext build{ops, launch, checkpoint, *arena, *loader, dtype_of(args.dtype)};
  build.rank = communicator.rank();
  build.world_size = communicator.world_size();
  build.max_model_len = args.max_model_len;
  build.max_num_tokens = build.max_num_seqs = T;
  build.block_size = kBlockSize;
  build.quantization = read_quantization(config, args.model);
  const auto model = build_model(build, config);
  loader->finish();
  launch.workspace = arena->allocate(build.workspace_bytes);
  launch.workspace_bytes = build.workspace_bytes;

  // Blocks in reverse order, so that a mistake in the table shows.
  const int32_t num_blocks = (T + kBlockSize - 1) / kBlockSize;
  std::vector<int32_t> table(static_cast<size_t>(num_blocks));
  std::iota(table.rbegin(), table.rend(), 1);
  std::vector<KVCacheView> views;
  for (const KVCacheSpec& spec : model->kv_cache_specs()) {
    const size_t bytes = static_cast<size_t>(spec.page_bytes) * static_cast<size_t>(num_blocks + 1);
    std::byte* pages = arena->allocate(bytes);
    poison(backend, pages, bytes);
    views.push_back(
        {pages, spec.page_bytes, num_blocks + 1, kBlockSize, spec.num_kv_heads, spec.head_size, build.dtype});
  }
  // Layers of equal demands share what is computed once a step for them, as in the engine.
  const auto specs = model->kv_cache_specs();
  std::vector<int32_t> groups, first_layers;
  for (size_t layer = 0; layer < specs.size(); ++layer) {
    const auto same =
        std::find(specs.begin(), specs.begin() + static_cast<std::ptrdiff_t>(layer), specs[layer]);
    if (same == specs.begin() + static_cast<std::ptrdiff_t>(layer)) {
      groups.push_back(static_cast<int32_t>(first_layers.size()));
      first_layers.push_back(static_cast<int32_t>(layer));
    } else {
      groups.push_back(groups[static_cast<size_t>(same - specs.begin())]);
    }
  }
  const size_t activation_bytes = dry_run_bytes(*model, ops, communicator, T, T);
  ActivationArena activations(arena->allocate(activation_bytes), activation_bytes);
  Visible visible(backend);
  const size_t num_logits = args.ids.size() * static_cast<size_t>(model->vocab_size());
  auto* logits = reinterpret_cast<float*>(visible.allocate(num_logits * sizeof(float)));
  std::vector<int32_t> positions(args.ids.size());
  std::iota(positions.begin(), positions.end(), 0);
  std::vector<int64_t> slots;
  for (int32_t p : positions)
    slots.push_back(int64_t{table[static_cast<size_t>(p / kBlockSize)]} * kBlockSize + p % kBlockSize);
  int32_t* all_ids = visible.copy(args.ids);
  int32_t* all_positions = visible.copy(positions);
  int64_t* all_slots = visible.copy(slots);
  int32_t* block_table = visible.copy(table);
  int32_t* state_indices = visible.copy(std::vector<int32_t>{0});
  std::vector<AttentionMetadata> per_group(first_layers.size());
  for (size_t group = 0; group < per_group.size(); ++group) {
    if (ops.attention_plan_bytes != nullptr)
      per_group[group].plan = arena->allocate(ops.attention_plan_bytes(1, T));
  }

  const int32_t chunk = args.chunk > 0 ? args.chunk : T;
  for (int32_t begin = 0; begin < T; begin += chunk) {
    const int32_t count = std::min(chunk, T - begin);
    AttentionMetadata metadata;  // the same for all groups, except the plan
    metadata.block_table = {block_table, DType::kInt32, 1, num_blocks};
    metadata.state_indices = {state_indices, DType::kInt32, 1};
    metadata.slot_mapping = {all_slots + begin, DType::kInt64, count};
    metadata.query_start_loc = {visible.copy(std::vector<int32_t>{0, count}), DType::kInt32, 2};
    metadata.seq_lens = {visible.copy(std::vector<int32_t>{begin + count}), DType::kInt32, 1};
    metadata.num_decode_rows = ops.decodes_first && count == 1 ? 1 : 0;
    metadata.max_query_len = count;
    metadata.max_seq_len = begin + count;
    for (AttentionMetadata& group : per_group) {
      metadata.plan = group.plan;
      group = metadata;
    }
    const ForwardContext ctx{ops, launch, communicator, activations, views, groups, per_group, first_layers};
    activations.release(0);
    const TensorView hidden = model->forward(
        ctx, {{all_ids + begin, DType::kInt32, count}, {all_positions + begin, DType::kInt32, count}});
    model->compute_logits(
        ctx, {logits + int64_t{begin} * model->vocab_size(), DType::kFloat32, count, model->vocab_size()},
        hidden);
    check_launches(error);
  }
  if (backend.is_device()) {
    check_device(*backend.runtime, backend.runtime->synchronize(), "computing");
    ops.destroy_state(launch.state);
  }
  return {logits, logits + num_logits};
}

std::vector<std::unique_ptr<Communicator>> make_communicators(const Arguments& args, const Backend& first) {
  if (args.num_ranks == 1) {
    std::vector<std::unique_ptr<Communicator>> one;
    one.push_back(make_single_communicator());
    return one;
  }
  if (!first.is_device()) return make_shared_memory_communicators(args.num_ranks, size_t{256} << 20);
  std::vector<int32_t> devices;
  for (int32_t rank = 0; rank < args.num_ranks; ++rank)
    devices.push_back(backend_of_rank(first, rank).device);
  return make_peer_communicators(*first.runtime, *first.ops, devices);
}

std::vector<float> compute(const Arguments& args) {
  EngineConfig config;
  config.device = args.device;
  config.tensor_parallel_size = args.num_ranks;
  const Backend first = find_backend(config);
  const auto communicators = make_communicators(args, first);
  std::vector<std::vector<float>> logits(communicators.size());
  std::vector<std::string> errors(communicators.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < communicators.size(); ++i) {
    threads.emplace_back([&, i] {
      try {
        logits[i] = compute(args, backend_of_rank(first, static_cast<int32_t>(i)), *communicators[i]);
      } catch (const Error& error) {
        errors[i] = error.what();
        communicators[i]->abort();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& error : errors) {
    if (!error.empty()) throw InvalidArgument(error);
  }
  return std::move(logits[0]);
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  using namespace quire;
  if (argc != 7 && argc != 8) {
    std::fprintf(stderr, "usage: %s MODEL_DIR DTYPE CHUNK RANKS MAX_MODEL_LEN OUT_FILE [DEVICE] < ids\n",
                 argv[0]);
    return 2;
  }
  Arguments args{argv[1], argv[2], std::atoi(argv[3]), std::atoi(argv[4]), std::atoi(argv[5]), "cpu", {}};
  if (argc == 8) args.device = argv[7];
  args.ids.assign(std::istream_iterator<int32_t>(std::cin), {});
  std::vector<float> logits;
  try {
    logits = compute(args);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  std::ofstream out(argv[6], std::ios::binary);
  out.write(reinterpret_cast<const char*>(logits.data()),
            static_cast<std::streamsize>(logits.size() * sizeof(float)));
  return out ? 0 : 1;
}
