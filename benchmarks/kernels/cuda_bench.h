// What the benchmarks of single CUDA ops share: memory on the device, and how a call is timed.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "power.h"
#include "quire/kernels/backend_registry.h"
#include "quire/kernels/device_runtime.h"

namespace quire {

inline const DeviceRuntime& runtime() { return *find_device_runtime("cuda"); }
inline const KernelTable& kernels() { return *cuda_kernel_table(0); }

inline void check(int code) {
  if (code == 0) return;
  std::fprintf(stderr, "%s\n", runtime().error_text(code));
  std::exit(1);
}

class Memory {
 public:
  explicit Memory(size_t bytes) { check(runtime().allocate(&data_, bytes)); }
  Memory(const Memory& other) = delete;
  Memory& operator=(const Memory& other) = delete;
  ~Memory() { runtime().release(data_); }
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
};

// An array on the device.
template <typename T>
class Values {
 public:
  explicit Values(const std::vector<T>& values) : memory_(values.size() * sizeof(T)) {
    check(runtime().copy(memory_.data(), values.data(), values.size() * sizeof(T), nullptr));
    check(runtime().synchronize());
  }
  T* data() const { return static_cast<T*>(memory_.data()); }

 private:
  Memory memory_;
};

inline LaunchContext context;
inline const char* filter = "";

// Device 0, with a stream; the first argument is the filter. Without a device the program ends; without
// what linears need, context.state stays null.
inline void begin_benchmark(int argc, char** argv) {
  if (cuda_kernel_table(0) == nullptr) {
    std::fprintf(stderr, "no CUDA device\n");
    std::exit(1);
  }
  if (argc > 1) filter = argv[1];
  check(runtime().select(0));
  static LaunchError error;
  context.error = &error;
  check(runtime().create_stream(&context.stream));
  context.state = kernels().create_state(&error);
  if (context.state == nullptr) std::fprintf(stderr, "%s\n", error.text);
}

// The median time of op(i), in microseconds, for copies i of its arguments in turn: by events around a
// stretch of calls.
inline double median_us(int copies, const std::function<void(int)>& op, int least_calls = 20) {
  constexpr int kRepeats = 15;
  void *begin, *end;
  check(runtime().create_event(&begin, true));
  check(runtime().create_event(&end, true));
  const int calls = std::max(copies, least_calls);
  std::vector<float> times;
  for (int repeat = 0; repeat < kRepeats + 3; ++repeat) {
    check(runtime().record_event(begin, context.stream));
    for (int i = 0; i < calls; ++i) op(i % copies);
    check(runtime().record_event(end, context.stream));
    check(runtime().synchronize_event(end));
    float ms;
    check(runtime().elapsed_ms(&ms, begin, end));
    if (repeat >= 3) times.push_back(ms * 1000 / static_cast<float>(calls));
  }
  check(runtime().destroy_event(begin));
  check(runtime().destroy_event(end));
  if (context.error->failed) {
    std::fprintf(stderr, "%s\n", context.error->text);
    std::exit(1);
  }
  std::sort(times.begin(), times.end());
  return static_cast<double>(times[times.size() / 2]);
}

// A row. `bytes`: what one call must read and write.
inline void measure(const std::string& name, int copies, double bytes, const std::function<void(int)>& op) {
  if (name.find(filter) == std::string::npos) return;
  const double us = median_us(copies, op);
  std::printf("%-44s %9.2f us %8.0f GB/s\n", name.c_str(), us, bytes / us / 1000);
  constexpr double kEnoughUs = 10'000;  // for the host's part not to count
  const int calls = copies * static_cast<int>(std::ceil(kEnoughUs / us / copies));
  print_sustained(calls, [&] {
    for (int i = 0; i < calls; ++i) op(i % copies);
    check(runtime().synchronize_stream(context.stream));
  });
  std::fflush(stdout);
}

inline std::string label(const char* op, const char* size, int64_t n) {
  return std::string(op) + " " + size + "=" + std::to_string(n);
}

// Copies of arguments of `bytes` that no cache holds together.
inline int copies_of(double bytes) { return static_cast<int>(std::clamp(300e6 / bytes, 2.0, 400.0)); }

// Memory for `copies` matrices of random numbers, and the views of each.
class Matrices {
 public:
  Matrices(int copies, DType dtype, int64_t rows, int64_t columns, float scale = 1.0F)
      : dtype_(dtype),
        rows_(rows),
        columns_(columns),
        memory_(static_cast<size_t>(copies * rows * columns) * dtype_bytes(dtype)) {
    kernels().fill_random(context, TensorView(memory_.data(), dtype, copies * rows, columns), scale, 1);
  }
  TensorView operator[](int i) const {
    return TensorView(memory_.data(), dtype_, (i + 1) * rows_, columns_).rows(i * rows_, rows_);
  }

 private:
  DType dtype_;
  int64_t rows_, columns_;
  Memory memory_;
};

// Operations a microsecond of the library's product of 8,192 x 4,096 and 8,192 x 4,096. context.workspace is
// for it.
inline double card_flops_per_us() {
  constexpr DType kType = DType::kBFloat16;
  constexpr int64_t kM = 8192, kN = 8192, kK = 4096;
  const Matrices x(1, kType, kM, kK), w(1, kType, kN, kK), out(1, kType, kM, kN);
  const LinearWeight weight = {.data = w[0].data, .n = kN, .k = kK, .dtype = kType};
  const double us = median_us(1, [&](int) { kernels().linear(context, out[0], x[0], weight, nullptr); });
  return 2.0 * kM * kN * kK / us;
}

// Bytes a microsecond of reading 4 GB once: a matrix, for its product with a vector.
inline double card_bytes_per_us() {
  constexpr DType kType = DType::kBFloat16;
  constexpr int64_t kRows = 1 << 18, kColumns = 8192;
  const Matrices x(1, kType, kRows, kColumns), w(1, kType, 1, kColumns), out(1, kType, 1, kRows);
  const LinearWeight weight = {.data = x[0].data, .n = kRows, .k = kColumns, .dtype = kType};
  const double us = median_us(1, [&](int) { kernels().linear(context, out[0], w[0], weight, nullptr); }, 4);
  return static_cast<double>(kRows * kColumns) * 2 / us;
}

}  // namespace quire
