// Exchanges between the ranks of one process, each with a device.
//
//   peers_bench [NUM_DEVICES]
//
// A row is a tensor of bfloat16 that all ranks sum, alone and with the addition and the norm behind it, or
// the logits that they gather. Times are microseconds of one in a graph of many, of which each waits for the
// one before, beside the rate at which a rank's bytes go to the others.
#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <thread>
#include <vector>

#include "device/runtime_handles.h"
#include "distributed/peer_communicator.h"
#include "quire/error.h"
#include "quire/kernels/backend_registry.h"

namespace quire {
namespace {

constexpr int kReplays = 5;

struct Rank {
  const DeviceRuntime& runtime;
  const KernelTable& ops;
  Communicator& communicator;
  std::barrier<>& all;
  LaunchContext launch;

  TensorView tensor(DType dtype, int64_t rows, int64_t columns, std::vector<DeviceMemory>& memory) const {
    void* data = nullptr;
    const size_t bytes = static_cast<size_t>(rows * columns) * dtype_bytes(dtype);
    check_device(runtime, runtime.allocate(&data, bytes), "allocating");
    memory.emplace_back(runtime, data);
    check_device(runtime, runtime.fill(data, 0, bytes, launch.stream), "filling");
    return {data, dtype, rows, columns};
  }

  // Microseconds of one of `count` in a graph.
  double time(int count, const std::function<void()>& enqueue) const {
    check_device(runtime, runtime.begin_capture(launch.stream), "capturing");
    for (int i = 0; i < count; ++i) enqueue();
    void* handle = nullptr;
    check_device(runtime, runtime.end_capture(launch.stream, &handle), "capturing");
    const DeviceGraph graph(runtime, handle);
    std::vector<double> times;
    for (int i = 0; i <= kReplays; ++i) {
      check_device(runtime, runtime.synchronize_stream(launch.stream), "waiting");
      all.arrive_and_wait();
      const auto begin = std::chrono::steady_clock::now();
      check_device(runtime, runtime.launch_graph(graph.get(), launch.stream), "replaying");
      check_device(runtime, runtime.synchronize_stream(launch.stream), "waiting");
      const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
      if (i > 0) times.push_back(took.count() / count);
    }
    check_launches(*launch.error);
    communicator.check();
    std::ranges::sort(times);
    return times[times.size() / 2];
  }
};

void sums(const Rank& rank) {
  if (rank.communicator.rank() == 0)
    std::printf("%-28s %10s %10s %14s\n", "sum of", "us", "GB/s", "and norm, us");
  for (const int64_t hidden_size : {4096, 8192}) {
    for (const int64_t rows : {1, 8, 32, 64, 128, 256, 512, 2048, 8192}) {
      std::vector<DeviceMemory> memory;
      const TensorView x = rank.tensor(DType::kBFloat16, rows, hidden_size, memory);
      const TensorView out = rank.tensor(DType::kBFloat16, rows, hidden_size, memory);
      const TensorView residual = rank.tensor(DType::kBFloat16, rows, hidden_size, memory);
      const TensorView weight = {rank.tensor(DType::kBFloat16, 1, hidden_size, memory).data, DType::kBFloat16,
                                 hidden_size};
      const RmsNormParams norm = {.weight = weight, .eps = 1e-5F};
      const int count = rows > 256 ? 10 : 100;
      const auto sum = [&] { rank.communicator.all_reduce_sum(rank.launch, x); };
      const double alone = rank.time(count, sum);
      const double two = rank.time(count, [&] {
        sum();
        rank.ops.fused_add_rms_norm(rank.launch, out, residual, x, weight, norm.eps, 0.0F);
      });
      if (rank.communicator.rank() != 0) continue;
      std::printf("%5ld x %-20ld %10.2f %10.1f %14.2f\n", rows, hidden_size, alone,
                  static_cast<double>(rows * hidden_size * 2) / alone / 1e3, two);
    }
  }
}

void gathers(const Rank& rank) {
  constexpr int64_t kVocabSize = 128256;
  const int64_t columns = kVocabSize / rank.communicator.world_size();
  for (const int64_t rows : {1, 8, 64, 256}) {
    std::vector<DeviceMemory> memory;
    const TensorView part = rank.tensor(DType::kFloat32, rows, columns, memory);
    const TensorView out =
        rank.tensor(DType::kFloat32, rows, columns * rank.communicator.world_size(), memory);
    const double us = rank.time(10, [&] { rank.communicator.all_gather_columns(rank.launch, out, part); });
    if (rank.communicator.rank() == 0)
      std::printf("logits %3ld x %-17ld %10.2f %10.1f\n", rows, kVocabSize, us,
                  static_cast<double>(rows * columns * 4) / us / 1e3);
  }
}

void run(int num_devices) {
  const DeviceRuntime& runtime = *find_device_runtime("cuda");
  std::vector<int32_t> devices;
  for (int32_t device = 0; device < num_devices; ++device) {
    if (cuda_kernel_table(device) == nullptr) throw InvalidArgument("fewer devices than ranks");
    devices.push_back(device);
  }
  const KernelTable& ops = *cuda_kernel_table(0);
  const auto communicators = make_peer_communicators(runtime, ops, devices, std::chrono::seconds(10));
  std::barrier all(num_devices);
  std::vector<std::thread> threads;
  for (const int32_t device : devices) {
    threads.emplace_back([&, device] {
      check_device(runtime, runtime.select(device), "selecting");
      const DeviceStream stream = make_stream(runtime);
      LaunchError error;
      Rank rank{runtime, ops, *communicators[static_cast<size_t>(device)], all, {}};
      rank.launch.stream = stream.get();
      rank.launch.error = &error;
      sums(rank);
      gathers(rank);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  try {
    quire::run(argc > 1 ? std::atoi(argv[1]) : 2);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
