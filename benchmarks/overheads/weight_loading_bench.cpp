// How fast weights get from the page cache to a device, beside what the bus gives.
//
//   weight_loading_bench DIRECTORY [GIGABYTES = 4] [THREADS] [CHUNK_MIB] [CHUNKS] [PIECE_MIB]
//
// What is 0 or left out of the last four is as the loader has it.
//
// Writes a safetensors file of that size to DIRECTORY, once; reads it so that it lies in the page cache; then
// loads it, as it is stored and with a conversion, a few times. Copies from pinned memory alone are timed in
// the same run, in parts of 64 MiB and of a chunk of the loader's; so is pinning all its chunks. The last
// column is the loader's rate over that of the former. Then from the disk, after the page cache has forgotten
// the file, by turns with reads of the same pieces that go around the cache (O_DIRECT).
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "device/device_arena.h"
#include "device/runtime_handles.h"
#include "quire/error.h"
#include "quire/kernels/backend_registry.h"
#include "quire/kernels/cuda_device.h"
#include "util/str.h"
#include "weights/checkpoint.h"
#include "weights/weight_loader.h"

namespace quire {
namespace {

constexpr int64_t kRows = 4096, kColumns = 8192;  // bf16: 64 MiB a tensor
constexpr size_t kTensorBytes = kRows * kColumns * 2;

class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

std::string tensor_name(size_t i) { return "weight." + std::to_string(i); }

void write_file(const std::string& path, size_t num_tensors) {
  std::string header = "{";
  for (size_t i = 0; i < num_tensors; ++i) {
    header += str(i > 0 ? "," : "", '"', tensor_name(i), R"(":{"dtype":"BF16","shape":[)", kRows, ",",
                  kColumns, R"(],"data_offsets":[)", i * kTensorBytes, ",", (i + 1) * kTensorBytes, "]}");
  }
  header += "}";
  header.resize((header.size() + 63) / 64 * 64 - 8 + 64, ' ');  // the data begin at a multiple of 64
  const uint64_t length = header.size();
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&length), sizeof length);
  file << header;
  std::vector<uint16_t> values(kTensorBytes / 2);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<uint16_t>(0x3C00 + i * 7 % 0x300);
  for (size_t i = 0; i < num_tensors; ++i)
    file.write(reinterpret_cast<const char*>(values.data()), kTensorBytes);
  file.close();
  if (!file) throw ResourceExhausted("cannot write " + path);
}

void read_once(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<char> part(8 << 20);
  while (file.read(part.data(), static_cast<std::streamsize>(part.size()))) {
  }
}

// Until it is read again.
void forget(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0 || ::fdatasync(fd) != 0 || ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) != 0)
    throw InternalError("cannot forget " + path);
  ::close(fd);
}

// Bytes a second of threads that read the pieces of a file by turns, around the page cache.
double direct_rate(const std::string& path, int num_threads) {
  constexpr size_t kPiece = 2 << 20;
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
  if (fd < 0) return 0;
  const size_t num_pieces = std::filesystem::file_size(path) / kPiece;
  std::atomic<size_t> next = 0, bytes = 0;
  const Stopwatch watch;
  std::vector<std::thread> threads;
  for (int i = 0; i < num_threads; ++i) {
    threads.emplace_back([&] {
      void* piece = std::aligned_alloc(4096, kPiece);
      for (size_t at = next++; at < num_pieces; at = next++) {
        const ssize_t count = ::pread(fd, piece, kPiece, static_cast<off_t>(at * kPiece));
        if (count > 0) bytes += static_cast<size_t>(count);
      }
      std::free(piece);
    });
  }
  for (std::thread& thread : threads) thread.join();
  const double seconds = watch.seconds();
  ::close(fd);
  return static_cast<double>(bytes) / seconds;
}

// Bytes a second of copies of `part` bytes from pinned memory, one after the other.
double pinned_rate(const DeviceRuntime& runtime, std::byte* to, size_t bytes, size_t part) {
  const PinnedMemory from = make_pinned(runtime, part);
  const DeviceStream stream = make_stream(runtime);
  double best = 0;
  for (int round = 0; round < 3; ++round) {
    const Stopwatch watch;
    for (size_t done = 0; done + part <= bytes; done += part)
      check_device(runtime, runtime.copy(to + done, from.get(), part, stream.get()), "copy");
    check_device(runtime, runtime.synchronize_stream(stream.get()), "copy");
    best = std::max(best, static_cast<double>(bytes / part * part) / watch.seconds());
  }
  return best;
}

// Seconds to pin all chunks of a loader.
double pinning_seconds(const DeviceRuntime& runtime, const DeviceLoaderOptions& options) {
  std::vector<PinnedMemory> chunks;
  const Stopwatch watch;
  for (int32_t i = 0; i < options.num_chunks; ++i)
    chunks.push_back(make_pinned(runtime, options.chunk_bytes));
  return watch.seconds();
}

int run(const std::string& directory, double gigabytes, const DeviceLoaderOptions& options) {
  const DeviceRuntime* runtime = find_device_runtime("cuda");
  const KernelTable* ops = cuda_kernel_table(0);
  if (!runtime || !ops) {
    std::printf("no CUDA device\n");
    return 0;
  }
  check_device(*runtime, runtime->select(0), "select");
  const size_t num_tensors = std::max<size_t>(1, static_cast<size_t>(gigabytes * 1e9 / kTensorBytes));
  const size_t bytes = num_tensors * kTensorBytes;
  const std::string path = directory + "/model.safetensors";
  std::filesystem::create_directories(directory);
  std::error_code missing;
  if (std::filesystem::file_size(path, missing) < bytes || missing) write_file(path, num_tensors);
  read_once(path);

  // Room for the conversion, which doubles the bytes.
  const auto arena = make_device_arena(*runtime, 2 * bytes);
  std::byte* to = arena->allocate(2 * bytes);
  CudaDevice device;
  cuda_device(0, &device);
  std::printf("%s, %.2f GB in %zu tensors\n", device.name, static_cast<double>(bytes) / 1e9, num_tensors);
  double pinned = 0;
  for (const size_t part : {options.chunk_bytes, size_t{64} << 20}) {
    pinned = pinned_rate(*runtime, to, bytes, part);
    std::printf("copies of %3zu MiB from pinned memory %11.2f GB/s\n", part >> 20, pinned / 1e9);
  }
  std::printf("%d chunks pinned in %.2f ms, %d threads at most, pieces of %.2f MiB\n", options.num_chunks,
              pinning_seconds(*runtime, options) * 1e3, options.max_threads,
              static_cast<double>(options.piece_bytes) / (1 << 20));
  // All that a start pays: opening the file, starting threads, pinning memory.
  const auto load = [&](DType dtype, const char* from) {
    const Stopwatch watch;
    Checkpoint checkpoint = Checkpoint::open(directory);
    const auto loader = make_device_loader(*runtime, 0, *ops, options);
    const double made = watch.seconds();
    loader->set_checkpoint(&checkpoint);
    const size_t each = kTensorBytes / 2 * dtype_bytes(dtype);
    for (size_t i = 0; i < num_tensors; ++i)
      loader->load(to + i * each, dtype, checkpoint.take(tensor_name(i), {kRows, kColumns}));
    loader->finish();
    const double seconds = watch.seconds();
    const double rate = static_cast<double>(num_tensors * each) / seconds;
    std::printf("%s, bfloat16 to %-18s %7.2f GB/s to the device  %4.0f %%  (%.3f s, %.3f before the first)\n",
                from, dtype_name(dtype), rate / 1e9, rate / pinned * 100, seconds, made);
  };
  for (const DType dtype : {DType::kBFloat16, DType::kFloat32}) {
    for (int round = 0; round < 3; ++round) load(dtype, "page cache");
  }
  for (int round = 0; round < 2; ++round) {
    forget(path);
    load(DType::kBFloat16, "disk");
    for (const int num_threads : {1, 4, 10}) {
      forget(path);
      std::printf("O_DIRECT, %2d threads, no copies %17.2f GB/s\n", num_threads,
                  direct_rate(path, num_threads) / 1e9);
    }
  }
  return 0;
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s DIRECTORY [GIGABYTES] [THREADS] [CHUNK_MIB] [CHUNKS] [PIECE_MIB]\n",
                 argv[0]);
    return 2;
  }
  const auto number = [&](int i, double otherwise) {
    const double given = argc > i ? std::atof(argv[i]) : 0;
    return given > 0 ? given : otherwise;
  };
  constexpr double kMib = 1 << 20;
  quire::DeviceLoaderOptions options;
  options.max_threads = static_cast<int32_t>(number(3, options.max_threads));
  options.chunk_bytes =
      static_cast<size_t>(number(4, static_cast<double>(options.chunk_bytes) / kMib) * kMib);
  options.num_chunks = static_cast<int32_t>(number(5, options.num_chunks));
  options.piece_bytes =
      static_cast<size_t>(number(6, static_cast<double>(options.piece_bytes) / kMib) * kMib);
  try {
    return quire::run(argv[1], number(2, 4), options);
  } catch (const quire::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
