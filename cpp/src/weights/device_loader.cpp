// Weights on their way to a device.
//
// A tensor is cut into pieces of at most kPieceBytes. A few threads take pieces in turn; each has two pinned
// buffers, converts a piece into one of them, enqueues its copy, and goes on with the other, so that the copy
// engine always has something to do while memory is read on several cores.
#include <algorithm>
#include <array>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "device/runtime_handles.h"
#include "device/thread_pool.h"
#include "util/check.h"
#include "util/thread_name.h"
#include "weights/convert.h"
#include "weights/weight_loader.h"

namespace quire {
namespace {

// Bytes of one copy, a huge page: long enough that enqueuing it costs nothing, short enough that all buffers
// together (48 MiB for twelve threads) mostly stay in the CPU's last cache.
constexpr int64_t kPieceBytes = 2 << 20;

struct Piece {
  void* to = nullptr;
  size_t bytes = 0;
  std::function<void(std::byte* out)> fill;
};

class DeviceLoader final : public WeightLoader {
 public:
  DeviceLoader(const DeviceRuntime& runtime, int32_t device, const KernelTable& ops, int32_t max_threads)
      : runtime_(runtime), device_(device), ops_(ops) {
    check_device(runtime, runtime.select(device), "selecting the device to load weights");
    stream_ = make_stream(runtime);
    const auto num_cpus = static_cast<int32_t>(ThreadPool::available_cpus().size());
    try {
      for (int32_t i = 0; i < std::clamp(num_cpus, 1, max_threads); ++i)
        threads_.emplace_back([this] { run(); });
    } catch (...) {
      stop();
      throw;
    }
  }
  ~DeviceLoader() override { stop(); }

  void load(void* to, DType dtype, TensorView from) override {
    const uint64_t seed = num_loads_++;
    if (from.numel() == 0 || keeps(from)) return;
    if (!from.data) return fill_random(to, dtype, from, seed);
    if (is_transposed(from)) return load_transposed(to, dtype, from);
    // A dense tensor is one long row.
    int64_t rows = from.rank == 1 ? 1 : from.shape[0];
    int64_t columns = from.shape[from.rank - 1];
    if (from.rank == 1 || from.stride[0] == columns) {
      columns *= rows;
      rows = 1;
    }
    const auto size = static_cast<int64_t>(dtype_bytes(dtype));
    const auto from_size = static_cast<int64_t>(dtype_bytes(from.dtype));
    const int64_t row_stride = from.stride[0] * from_size;
    const int64_t most = kPieceBytes / size;
    const int64_t columns_at_once = std::min(columns, most);
    const int64_t rows_at_once = columns > most ? 1 : std::min(rows, most / columns);
    for (int64_t row = 0; row < rows; row += rows_at_once) {
      const int64_t num_rows = std::min(rows_at_once, rows - row);
      for (int64_t column = 0; column < columns; column += columns_at_once) {
        const int64_t num_columns = std::min(columns_at_once, columns - column);
        const std::byte* source = from.as<std::byte>() + row * row_stride + column * from_size;
        push({static_cast<std::byte*>(to) + (row * columns + column) * size,
              static_cast<size_t>(num_rows * num_columns * size),
              [=, this, values_dtype = from.dtype](std::byte* out) {
                for (int64_t r = 0; r < num_rows; ++r) {
                  read_values(out + r * num_columns * size, dtype, source + r * row_stride, values_dtype,
                              num_columns);
                }
              }});
      }
    }
  }

  void generate(void* to, int64_t rows, size_t row_bytes, RowWriter write) override {
    const auto size = static_cast<int64_t>(row_bytes);
    QUIRE_CHECK(size <= kPieceBytes, "a row of ", size, " bytes");
    const auto shared = std::make_shared<const RowWriter>(std::move(write));
    const int64_t at_once = kPieceBytes / size;
    for (int64_t begin = 0; begin < rows; begin += at_once) {
      const int64_t end = std::min(rows, begin + at_once);
      push({static_cast<std::byte*>(to) + begin * size, static_cast<size_t>((end - begin) * size),
            [=](std::byte* out) { (*shared)(begin, end, out); }});
    }
  }

  void finish() override {
    std::exception_ptr error;
    {
      std::unique_lock lock(mutex_);
      idle_.wait(lock, [this] { return pieces_.empty() && num_busy_ == 0; });
      error = std::exchange(error_, nullptr);
    }
    const int code = runtime_.synchronize_stream(stream_.get());
    if (error) std::rethrow_exception(error);
    check_launches(launch_error_);
    check_device(runtime_, code, "loading weights");
  }

 private:
  // What a thread fills while the copy from the other one runs.
  struct Staging {
    PinnedMemory memory;
    DeviceEvent copied;
  };

  void push(Piece piece) {
    {
      const std::lock_guard lock(mutex_);
      pieces_.push_back(std::move(piece));
    }
    changed_.notify_one();
  }

  void fill_random(void* to, DType dtype, TensorView shape, uint64_t seed) {
    LaunchContext launch;
    launch.stream = stream_.get();
    launch.error = &launch_error_;
    const auto scale = static_cast<float>(1.0 / std::sqrt(shape.shape[shape.rank - 1]));
    ops_.fill_random(launch, {to, dtype, shape.numel()}, scale, seed);
  }

  void run() {
    name_this_thread("quire-loader");
    std::array<Staging, 2> staging;
    size_t next = 0;
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return stop_ || !pieces_.empty(); });
      if (stop_) break;
      const Piece piece = std::move(pieces_.front());
      pieces_.pop_front();
      if (!error_) {
        ++num_busy_;
        lock.unlock();
        std::exception_ptr error;
        try {
          send(piece, staging[next++ % staging.size()]);
        } catch (...) {
          error = std::current_exception();
        }
        lock.lock();
        if (error && !error_) error_ = error;
        --num_busy_;
      }
      if (pieces_.empty() && num_busy_ == 0) idle_.notify_all();
    }
    lock.unlock();
    // The buffers go with this frame: no copy may still read one.
    for (const Staging& each : staging) {
      if (each.copied) runtime_.synchronize_event(each.copied.get());
    }
  }

  void send(const Piece& piece, Staging& staging) {
    if (!staging.memory) {
      check_device(runtime_, runtime_.select(device_), "selecting the device to load weights");
      staging.copied = make_event(runtime_);
      staging.memory = make_pinned(runtime_, kPieceBytes);
    } else {
      check_device(runtime_, runtime_.synchronize_event(staging.copied.get()), "loading weights");
    }
    piece.fill(static_cast<std::byte*>(staging.memory.get()));
    const int code = runtime_.copy(piece.to, staging.memory.get(), piece.bytes, stream_.get());
    if (code != 0) check_device(runtime_, code, str("copying ", piece.bytes, " bytes of weights").c_str());
    check_device(runtime_, runtime_.record_event(staging.copied.get(), stream_.get()), "loading weights");
  }

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  const DeviceRuntime& runtime_;
  const int32_t device_;
  const KernelTable& ops_;
  DeviceStream stream_;
  LaunchError launch_error_;
  uint64_t num_loads_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_, idle_;
  std::deque<Piece> pieces_;
  int32_t num_busy_ = 0;      // threads with a piece in hand
  std::exception_ptr error_;  // the first; what is queued after it is dropped
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<WeightLoader> make_device_loader(const DeviceRuntime& runtime, int32_t device,
                                                 const KernelTable& ops, int32_t max_threads) {
  return std::make_unique<DeviceLoader>(runtime, device, ops, max_threads);
}

}  // namespace quire
