// Writes a model's logits at every position of a prompt, for the parity tests in Python.
//
//   quire_logits MODEL_DIR DTYPE CHUNK RANKS MAX_MODEL_LEN OUT_FILE < token ids, separated by blanks
//
// The prompt is computed CHUNK tokens at a time (0: whole) on RANKS tensor-parallel ranks. OUT_FILE gets
// [T, V] float32 values of rank 0.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "device/thread_pool.h"
#include "models/model_registry.h"
#include "quire/error.h"
#include "quire/kernels/backend_registry.h"

namespace quire {
namespace {

constexpr int32_t kBlockSize = 16;

struct Arguments {
  std::string model, dtype;
  int32_t chunk = 0, num_ranks = 1, max_model_len = 0;
  std::vector<int32_t> ids;
};

std::vector<float> compute(const Arguments& args, Communicator& communicator) {
  const KernelTable& ops = *find_kernel_table("cpu");
  ThreadPool pool(2);
  LaunchContext launch;
  launch.host = pool.host_parallel();
  Checkpoint checkpoint = Checkpoint::open(args.model);
  const HfConfig config = HfConfig::load(args.model + "/config.json");
  const auto T = static_cast<int32_t>(args.ids.size());
  BuildContext build{ops, launch, checkpoint, args.dtype == "float32" ? DType::kFloat32 : DType::kBFloat16};
  build.rank = communicator.rank();
  build.world_size = communicator.world_size();
  build.max_model_len = args.max_model_len;
  build.max_num_tokens = build.max_num_seqs = T;
  build.block_size = kBlockSize;
  const auto model = find_model(config)(build, config);
  Buffer workspace(build.workspace_bytes);
  launch.workspace = workspace.data();
  launch.workspace_bytes = workspace.size();

  // Blocks in reverse order, so that a mistake in the table shows.
  const int32_t num_blocks = (T + kBlockSize - 1) / kBlockSize;
  std::vector<int32_t> table(static_cast<size_t>(num_blocks));
  std::iota(table.rbegin(), table.rend(), 1);
  std::vector<Buffer> caches;
  std::vector<KVCacheView> views;
  for (const KVCacheSpec& spec : model->kv_cache_specs()) {
    Buffer& pages =
        caches.emplace_back(static_cast<size_t>(spec.page_bytes) * static_cast<size_t>(num_blocks + 1));
    std::fill_n(reinterpret_cast<uint8_t*>(pages.data()), pages.size(), uint8_t{0xFF});  // NaN until written
    views.push_back({pages.data(), spec.page_bytes, num_blocks + 1, kBlockSize, spec.num_kv_heads,
                     spec.head_size, build.dtype});
  }
  const std::vector<int32_t> groups(views.size(), 0);
  ActivationArena arena(model->activation_bytes(T, T));
  std::vector<float> logits(args.ids.size() * static_cast<size_t>(model->vocab_size()));
  std::vector<int32_t> positions(args.ids.size());
  std::iota(positions.begin(), positions.end(), 0);
  std::vector<int64_t> slots;
  for (int32_t p : positions)
    slots.push_back(int64_t{table[static_cast<size_t>(p / kBlockSize)]} * kBlockSize + p % kBlockSize);

  const int32_t chunk = args.chunk > 0 ? args.chunk : T;
  for (int32_t begin = 0; begin < T; begin += chunk) {
    const int32_t count = std::min(chunk, T - begin);
    int32_t query_start_loc[] = {0, count};
    int32_t seq_len = begin + count;
    AttentionMetadata metadata;
    metadata.block_table = {table.data(), DType::kInt32, 1, num_blocks};
    metadata.slot_mapping = {slots.data() + begin, DType::kInt64, count};
    metadata.query_start_loc = {query_start_loc, DType::kInt32, 2};
    metadata.seq_lens = {&seq_len, DType::kInt32, 1};
    metadata.max_query_len = count;
    metadata.max_seq_len = seq_len;
    const ForwardContext ctx{ops, launch, communicator, arena, views, groups, {&metadata, 1}};
    arena.release(0);
    auto* ids = const_cast<int32_t*>(args.ids.data());
    const TensorView hidden = model->forward(
        ctx, {{ids + begin, DType::kInt32, count}, {positions.data() + begin, DType::kInt32, count}});
    model->compute_logits(
        ctx,
        {logits.data() + int64_t{begin} * model->vocab_size(), DType::kFloat32, count, model->vocab_size()},
        hidden);
  }
  return logits;
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  using namespace quire;
  if (argc != 7) {
    std::fprintf(stderr, "usage: %s MODEL_DIR DTYPE CHUNK RANKS MAX_MODEL_LEN OUT_FILE < ids\n", argv[0]);
    return 2;
  }
  Arguments args{argv[1], argv[2], std::atoi(argv[3]), std::atoi(argv[4]), std::atoi(argv[5]), {}};
  args.ids.assign(std::istream_iterator<int32_t>(std::cin), {});
  std::vector<float> logits;
  try {
    if (args.num_ranks == 1) {
      logits = compute(args, *make_single_communicator());
    } else {
      const auto ranks = make_shared_memory_communicators(args.num_ranks, size_t{256} << 20);
      std::vector<std::thread> threads;
      for (const auto& rank : ranks) {
        threads.emplace_back([&args, &rank, &logits] {
          auto result = compute(args, *rank);
          if (rank->rank() == 0) logits = std::move(result);
        });
      }
      for (std::thread& thread : threads) thread.join();
    }
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  std::ofstream out(argv[6], std::ios::binary);
  out.write(reinterpret_cast<const char*>(logits.data()),
            static_cast<std::streamsize>(logits.size() * sizeof(float)));
  return out ? 0 : 1;
}
