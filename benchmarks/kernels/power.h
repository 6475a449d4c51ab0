// What a device takes for work that goes on: a card at the limit of its power lowers its clock, which a row
// of some milliseconds does not show.
#pragma once

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

namespace quire {

// Watts and the multiprocessors' clock of the driver's first device, which is device 0 where
// CUDA_VISIBLE_DEVICES does not say otherwise, from its library (NVML), opened where it is found.
class PowerMeter {
 public:
  PowerMeter() {
    void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (library == nullptr) return;
    const auto start = symbol<int()>(library, "nvmlInit_v2");
    const auto find = symbol<int(unsigned, void**)>(library, "nvmlDeviceGetHandleByIndex_v2");
    fields_ = symbol<int(void*, int, Field*)>(library, "nvmlDeviceGetFieldValues");
    clock_ = symbol<int(void*, int, unsigned*)>(library, "nvmlDeviceGetClockInfo");
    works_ = start != nullptr && find != nullptr && fields_ != nullptr && clock_ != nullptr && start() == 0 &&
             find(0, &device_) == 0;
  }
  bool works() const { return works_; }
  // At this moment; 0 where the driver does not say.
  double watts() const {
    constexpr unsigned kPowerNow = 186;  // NVML_FI_DEV_POWER_INSTANT, milliwatts
    Field field{.id = kPowerNow};
    return fields_(device_, 1, &field) == 0 && field.result == 0 ? field.value.number / 1e3 : 0;
  }
  double mhz() const {
    constexpr int kMultiprocessors = 1;  // NVML_CLOCK_SM
    unsigned mhz = 0;
    return clock_(device_, kMultiprocessors, &mhz) == 0 ? mhz : 0;
  }

 private:
  // nvmlFieldValue_t
  struct Field {
    unsigned id = 0, scope = 0;
    long long timestamp = 0, latency_us = 0;
    int type = 0, result = 0;
    union {
      double real;
      unsigned number;
      unsigned long long large;
    } value = {};
  };
  template <typename Signature>
  static Signature* symbol(void* library, const char* name) {
    return reinterpret_cast<Signature*>(dlsym(library, name));
  }

  bool works_ = false;
  void* device_ = nullptr;
  int (*fields_)(void*, int, Field*) = nullptr;
  int (*clock_)(void*, int, unsigned*) = nullptr;
};

// Seconds of QUIRE_BENCH_SECONDS; 0: rows are short.
inline double bench_seconds() {
  const char* text = std::getenv("QUIRE_BENCH_SECONDS");
  return text != nullptr ? std::atof(text) : 0;
}

// Where QUIRE_BENCH_SECONDS is set: calls `some`, which returns when its calls have ended, again and again
// for so long, and prints what one of its `calls` calls takes in the second half of the time: time and, where
// the driver says it, power, clock and energy.
inline void print_sustained(int calls, const std::function<void()>& some) {
  using Clock = std::chrono::steady_clock;
  const double seconds = bench_seconds();
  if (seconds <= 0) return;
  static const PowerMeter meter;
  const auto since = [](Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  const auto repeat = [&](double until, const std::function<void()>& between) {
    int64_t count = 0;
    const auto begin = Clock::now();
    for (; since(begin) < until; count += calls) {
      some();
      between();
    }
    return 1e6 * since(begin) / static_cast<double>(count);
  };
  repeat(seconds / 2, [] {});
  std::vector<double> watts, mhz;
  auto last = Clock::now();
  const double us = repeat(seconds / 2, [&] {
    if (!meter.works() || since(last) < 0.05) return;
    last = Clock::now();
    watts.push_back(meter.watts());
    mhz.push_back(meter.mhz());
  });
  const auto median = [](std::vector<double>& values) {
    if (values.empty()) return 0.0;
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
  };
  const double power = median(watts);
  std::printf("    going on: %9.2f us", us);
  if (power > 0) std::printf(" %4.0f W %5.0f MHz %8.3f mJ", power, median(mhz), power * us / 1e3);
  std::printf("\n");
}

}  // namespace quire
