// Weights on their way to a device.
//
// A tensor is cut into pieces. A few threads take them in turn, and convert each into its room of a pinned
// chunk: pieces in turn have room in turn. Whoever fills the last piece of a chunk enqueues its copies, one
// for all pieces that follow each other on the device too, so that copies are long and few. There are a few
// chunks: while one is copied, others wait for their turn at the copy engine or are filled.
#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "device/runtime_handles.h"
#include "device/thread_pool.h"
#include "util/check.h"
#include "util/thread_name.h"
#include "weights/convert.h"
#include "weights/weight_loader.h"

namespace quire {
namespace {

// Pieces begin at multiples of a cache line, which two threads would else take from each other.
constexpr size_t kAlignment = 64;

// Values or rows that are still to be brought to `to`.
struct Job {
  std::byte* to = nullptr;
  int64_t count = 0;
  size_t bytes_each = 0;
  int64_t at_once = 0;  // in a piece
  std::shared_ptr<const WeightLoader::RowWriter> write;
  int64_t next = 0;
};

// Of a chunk, what one copy brings to `to`.
struct Run {
  std::byte* to = nullptr;
  size_t offset = 0, bytes = 0;
};

// Pinned memory that several threads fill. Pieces are given room until it is closed; it is sent when those
// that have room are filled.
struct Chunk {
  // Room for `bytes` that go to `to`, of which there is enough.
  size_t take(std::byte* to, size_t bytes) {
    const size_t offset = next_offset();
    used = offset + bytes;
    if (!runs.empty()) {
      Run& last = runs.back();
      if (last.to + last.bytes == to && last.offset + last.bytes == offset) {
        last.bytes += bytes;
        return offset;
      }
    }
    runs.push_back({to, offset, bytes});
    return offset;
  }
  size_t next_offset() const { return (used + kAlignment - 1) / kAlignment * kAlignment; }
  std::byte* data() const { return static_cast<std::byte*>(memory.get()); }

  PinnedMemory memory;
  DeviceEvent copied;
  bool is_closed = false;
  size_t used = 0;
  int32_t num_filling = 0;  // pieces that have room and are not filled
  std::vector<Run> runs;
};

class DeviceLoader final : public WeightLoader {
 public:
  DeviceLoader(const DeviceRuntime& runtime, int32_t device, const KernelTable& ops,
               const DeviceLoaderOptions& options)
      : runtime_(runtime), device_(device), ops_(ops), options_(options) {
    QUIRE_CHECK(options.num_chunks > 0 && options.piece_bytes <= options.chunk_bytes, options.num_chunks,
                " chunks of ", options.chunk_bytes, " bytes for pieces of ", options.piece_bytes);
    check_device(runtime, runtime.select(device), "selecting the device to load weights");
    stream_ = make_stream(runtime);
    const auto num_cpus = static_cast<int32_t>(ThreadPool::available_cpus().size());
    try {
      for (int32_t i = 0; i < std::clamp(num_cpus, 1, options.max_threads); ++i)
        threads_.emplace_back([this] { run(); });
    } catch (...) {
      stop();
      throw;
    }
  }
  ~DeviceLoader() override {
    stop();
    // No copy may still read a chunk that goes. A device that has failed reads nothing: its answer is not
    // asked for.
    runtime_.synchronize_stream(stream_.get());
  }

  void load(void* to, DType dtype, TensorView from) override {
    const uint64_t seed = num_loads_++;
    if (from.numel() == 0 || keeps(from)) return;
    if (!from.data) return fill_random(to, dtype, from, seed);
    if (is_transposed(from)) return load_transposed(to, dtype, from);
    // A dense tensor is one long row.
    const bool is_dense = from.rank == 1 || from.stride[0] == from.shape[1];
    const int64_t columns = is_dense ? from.numel() : from.shape[1];
    const size_t size = dtype_bytes(dtype);
    push(to, from.numel(), size, [=, this](int64_t begin, int64_t end, std::byte* out) {
      const size_t from_size = dtype_bytes(from.dtype);
      for (int64_t n = 0; begin < end; begin += n, out += static_cast<size_t>(n) * size) {
        const int64_t row = begin / columns, column = begin % columns;
        n = std::min(end - begin, columns - column);
        const int64_t place = is_dense ? begin : row * from.stride[0] + column;
        read_values(out, dtype, from.as<std::byte>() + static_cast<size_t>(place) * from_size, from.dtype, n);
      }
    });
  }

  void generate(void* to, int64_t rows, size_t row_bytes, RowWriter write) override {
    if (rows > 0) push(to, rows, row_bytes, std::move(write));
  }

  void finish() override {
    std::exception_ptr error;
    {
      std::unique_lock lock(mutex_);
      idle_.wait(lock, [this] { return jobs_.empty() && num_busy_ == 0; });
      if (open_ != nullptr) close(lock);
      error = std::exchange(error_, nullptr);
    }
    const int code = runtime_.synchronize_stream(stream_.get());
    if (error) std::rethrow_exception(error);
    check_launches(launch_error_);
    check_device(runtime_, code, "loading weights");
  }

 private:
  using Lock = std::unique_lock<std::mutex>;

  void push(void* to, int64_t count, size_t bytes_each, RowWriter write) {
    QUIRE_CHECK(bytes_each <= options_.chunk_bytes, "a row of ", bytes_each, " bytes");
    auto at_once = static_cast<int64_t>(std::max<size_t>(1, options_.piece_bytes / bytes_each));
    // A piece whose end is aligned has the next one for a neighbour.
    if (at_once > int64_t{kAlignment}) at_once -= at_once % int64_t{kAlignment};
    Job job{static_cast<std::byte*>(to), count, bytes_each, at_once,
            std::make_shared<const RowWriter>(std::move(write))};
    {
      const std::lock_guard lock(mutex_);
      if (error_) return;
      jobs_.push_back(std::move(job));
    }
    count > at_once ? changed_.notify_all() : changed_.notify_one();
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
    const int selected = runtime_.select(device_);
    Lock lock(mutex_);
    while (true) {
      // A thread that waits has nothing in hand.
      changed_.wait(lock, [this] {
        return stop_ || (!jobs_.empty() && (open_ != nullptr || (!is_preparing_ && can_prepare())));
      });
      if (stop_) return;
      ++num_busy_;
      if (selected == 0) {
        step(lock);
      } else {
        do_unlocked(lock, [&] { check_device(runtime_, selected, "selecting the device to load weights"); });
      }
      --num_busy_;
      if (jobs_.empty() && num_busy_ == 0) idle_.notify_all();
    }
  }

  // Brings the queue's first piece a step further: fills it when a chunk has room, else sees to one that has.
  void step(Lock& lock) {
    if (open_ == nullptr) return prepare(lock);
    Chunk& chunk = *open_;
    Job& job = jobs_.front();
    const int64_t begin = job.next, end = std::min(job.count, begin + job.at_once);
    const size_t bytes = static_cast<size_t>(end - begin) * job.bytes_each;
    if (chunk.next_offset() + bytes > options_.chunk_bytes) return close(lock);
    const size_t offset = chunk.take(job.to + static_cast<size_t>(begin) * job.bytes_each, bytes);
    ++chunk.num_filling;
    auto write = job.write;
    job.next = end;
    if (end == job.count) jobs_.pop_front();
    do_unlocked(lock, [&] {
      const auto last_owner = std::move(write);  // what it holds goes before `finish` returns
      (*last_owner)(begin, end, chunk.data() + offset);
    });
    if (--chunk.num_filling == 0 && chunk.is_closed) send(chunk, lock);
  }

  // Whether there is a chunk to prepare, or there may be one more.
  bool can_prepare() const {
    return !sent_.empty() || chunks_.size() < static_cast<size_t>(options_.num_chunks);
  }

  // Opens the chunk that was copied last, which the CPU's caches are the likeliest to hold; while copies of
  // all are under way, a new one or, at last, the one that is done next.
  void prepare(Lock& lock) {
    is_preparing_ = true;
    const std::vector<Chunk*> sent = sent_;
    const bool may_add = chunks_.size() < static_cast<size_t>(options_.num_chunks);
    Chunk* ready = nullptr;
    Chunk added;
    const bool has_room = do_unlocked(lock, [&] {
      for (size_t i = sent.size(); i-- > 0 && ready == nullptr;) {
        bool is_done = false;
        check_device(runtime_, runtime_.query_event(sent[i]->copied.get(), &is_done), "loading weights");
        if (is_done) ready = sent[i];
      }
      if (ready != nullptr) return;
      if (may_add) {
        added.copied = make_event(runtime_);
        added.memory = make_pinned(runtime_, options_.chunk_bytes);
      } else {
        check_device(runtime_, runtime_.synchronize_event(sent[0]->copied.get()), "loading weights");
        ready = sent[0];
      }
    });
    if (has_room) {
      if (ready == nullptr) {
        ready = &chunks_.emplace_back(std::move(added));
      } else {
        std::erase(sent_, ready);
      }
      open_ = ready;
    }
    is_preparing_ = false;
    changed_.notify_all();
  }

  // The next piece gets room in another chunk.
  void close(Lock& lock) {
    Chunk& chunk = *std::exchange(open_, nullptr);
    chunk.is_closed = true;
    if (chunk.num_filling == 0) {
      send(chunk, lock);
    } else {
      changed_.notify_all();
    }
  }

  // After an error nothing is: not all of it may have been filled.
  void send(Chunk& chunk, Lock& lock) {
    if (!error_) {
      do_unlocked(lock, [&] {
        for (const Run& run : chunk.runs) {
          const int code = runtime_.copy(run.to, chunk.data() + run.offset, run.bytes, stream_.get());
          if (code != 0)
            check_device(runtime_, code, str("copying ", run.bytes, " bytes of weights").c_str());
        }
        check_device(runtime_, runtime_.record_event(chunk.copied.get(), stream_.get()), "loading weights");
      });
    }
    chunk.runs.clear();
    chunk.used = 0;
    chunk.is_closed = false;
    sent_.push_back(&chunk);
    changed_.notify_all();
  }

  // Whether `work` threw nothing. What it throws, if it is the first, is `finish`'s to throw, and what is
  // queued is dropped.
  template <typename Work>
  bool do_unlocked(Lock& lock, const Work& work) {
    std::exception_ptr error;
    lock.unlock();
    try {
      work();
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (!error) return true;
    if (!error_) error_ = error;
    jobs_.clear();
    return false;
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
  const DeviceLoaderOptions options_;
  DeviceStream stream_;
  LaunchError launch_error_;
  uint64_t num_loads_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_, idle_;
  std::deque<Job> jobs_;      // none is done
  std::deque<Chunk> chunks_;  // those that were needed so far
  Chunk* open_ = nullptr;     // has room for the next piece, or for none; null: one is to be prepared
  bool is_preparing_ = false;
  std::vector<Chunk*> sent_;  // neither open nor being filled, in the order of their copies
  int32_t num_busy_ = 0;      // threads in `step`
  std::exception_ptr error_;  // the first since `finish`
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<WeightLoader> make_device_loader(const DeviceRuntime& runtime, int32_t device,
                                                 const KernelTable& ops, const DeviceLoaderOptions& options) {
  return std::make_unique<DeviceLoader>(runtime, device, ops, options);
}

}  // namespace quire
