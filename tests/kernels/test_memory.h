// Memory that the kernels under test can reach, wherever they run.
//
// With a CUDA device present all of it is pinned host memory, which kernels read and write in place, so that
// a test looks the same for every table. Whoever reads what a kernel wrote calls wait_for_device() first;
// Tensor and Array do so by themselves where they can.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include "quire/kernels/backend_registry.h"
#include "quire/kernels/device_runtime.h"

namespace quire {

// The runtime of this machine's first CUDA device, selected; null without one.
inline const DeviceRuntime* cuda_runtime() {
  static const DeviceRuntime* runtime = [] {
    const DeviceRuntime* found = cuda_kernel_table(0) != nullptr ? find_device_runtime("cuda") : nullptr;
    return found != nullptr && found->select(0) == 0 ? found : nullptr;
  }();
  return runtime;
}

// What the running test's table computes on.
struct TestDevice {
  const DeviceRuntime* runtime = nullptr;  // null while a CPU table is under test
  void* stream = nullptr;
  void* state = nullptr;
  LaunchError error;
  bool busy = false;  // an op may have been launched since the last wait
};
inline TestDevice& test_device() {
  static TestDevice device;
  return device;
}

// Waits for what was launched; fails the test if any of it failed.
inline void wait_for_device() {
  TestDevice& device = test_device();
  device.busy = false;
  if (device.runtime == nullptr) return;
  if (device.error.failed) {
    ADD_FAILURE() << "launch failed: " << device.error.text;
    device.error = {};
  }
  const int code = device.runtime->synchronize();
  if (code != 0) ADD_FAILURE() << "device: " << device.runtime->error_text(code);
}

// Pinned memory, kept for the next of its size: getting it from the driver takes as long as a test.
class PinnedPool {
 public:
  static PinnedPool& instance() {
    static auto* pool = new PinnedPool;  // never destroyed: the driver may be gone before static objects
    return *pool;
  }
  void* take(size_t bytes) {
    const std::scoped_lock lock(mutex_);
    auto& free = free_[size_class(bytes)];
    if (!free.empty()) {
      void* data = free.back();
      free.pop_back();
      return data;
    }
    void* data = nullptr;
    if (cuda_runtime()->allocate_pinned(&data, size_class(bytes)) != 0) throw std::bad_alloc();
    return data;
  }
  void give(void* data, size_t bytes) {
    const std::scoped_lock lock(mutex_);
    free_[size_class(bytes)].push_back(data);
  }

 private:
  static size_t size_class(size_t bytes) {
    size_t size = 4096;
    while (size < bytes) size *= 2;
    return size;
  }
  std::mutex mutex_;
  std::map<size_t, std::vector<void*>> free_;
};

// 64-byte aligned.
inline void* allocate_for_kernels(size_t bytes) {
  return cuda_runtime() != nullptr ? PinnedPool::instance().take(bytes)
                                   : ::operator new(bytes, std::align_val_t{64});
}
inline void free_for_kernels(void* data, size_t bytes) {
  if (test_device().busy) wait_for_device();  // a kernel may still use it
  if (cuda_runtime() != nullptr) {
    PinnedPool::instance().give(data, bytes);
  } else {
    ::operator delete(data, std::align_val_t{64});
  }
}

template <typename T>
struct KernelAllocator {
  using value_type = T;
  KernelAllocator() = default;
  template <typename U>
  KernelAllocator(const KernelAllocator<U>&) {}  // NOLINT: allocators convert
  T* allocate(size_t n) { return static_cast<T*>(allocate_for_kernels(n * sizeof(T))); }
  void deallocate(T* data, size_t n) { free_for_kernels(data, n * sizeof(T)); }
  template <typename U>
  bool operator==(const KernelAllocator<U>&) const {
    return true;
  }
};

// A std::vector that kernels may be given.
template <typename T>
using Array = std::vector<T, KernelAllocator<T>>;

// Memory that begins as NaN in every float format, so that what a kernel forgets to write, or reads without
// being allowed to, shows.
class Memory {
 public:
  explicit Memory(size_t bytes, int fill = 0xFF)
      : data_(static_cast<std::byte*>(allocate_for_kernels(bytes + 1)), Free{bytes + 1}), bytes_(bytes) {
    std::memset(data_.get(), fill, bytes);
  }
  std::byte* data() const { return data_.get(); }
  size_t bytes() const { return bytes_; }

 private:
  struct Free {
    size_t bytes;
    void operator()(std::byte* p) const { free_for_kernels(p, bytes); }
  };
  std::unique_ptr<std::byte, Free> data_;
  size_t bytes_;
};

// Memory where the table under test works: the device's own, if it has any. Filled with NaN; the
// host may not touch it.
class ScratchMemory {
 public:
  explicit ScratchMemory(size_t bytes) : bytes_(bytes), runtime_(test_device().runtime) {
    if (runtime_ == nullptr) {
      host_ = std::make_unique<Memory>(bytes);
      data_ = host_->data();
    } else if (runtime_->allocate(&data_, bytes + 1) != 0 ||
               runtime_->fill(data_, 0xFF, bytes + 1, test_device().stream) != 0) {
      throw std::bad_alloc();
    }
  }
  ~ScratchMemory() {
    if (runtime_ == nullptr) return;
    wait_for_device();
    runtime_->release(data_);
  }
  ScratchMemory(const ScratchMemory&) = delete;
  ScratchMemory& operator=(const ScratchMemory&) = delete;
  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  size_t bytes_;
  const DeviceRuntime* runtime_;
  std::unique_ptr<Memory> host_;
  void* data_ = nullptr;
};

}  // namespace quire
