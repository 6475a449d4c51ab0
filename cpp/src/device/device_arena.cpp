#include "device/device_arena.h"

#include <cstdint>
#include <limits>
#include <vector>

#include "device/buffer.h"
#include "quire/error.h"
#include "util/str.h"

namespace quire {
namespace {

class HostArena final : public DeviceArena {
 public:
  std::byte* allocate(size_t bytes) override {
    std::byte* data = buffers_.emplace_back(bytes).data();
    used_ += rounded(bytes);
    return data;
  }
  size_t remaining() const override { return std::numeric_limits<size_t>::max(); }

 private:
  std::vector<Buffer> buffers_;
};

class MeasuringArena final : public DeviceArena {
 public:
  std::byte* allocate(size_t bytes) override {
    // From an address that no process has mapped, and that is not null.
    auto* data = reinterpret_cast<std::byte*>(uintptr_t{kAlignment} + used_);
    used_ += rounded(bytes);
    return data;
  }
  size_t remaining() const override { return std::numeric_limits<size_t>::max() - used_; }
};

class BlockArena final : public DeviceArena {
 public:
  BlockArena(const DeviceRuntime& runtime, size_t bytes) : runtime_(runtime), bytes_(bytes) {
    if (bytes == 0) return;
    void* data = nullptr;
    if (const int code = runtime.allocate(&data, bytes); code != 0) {
      size_t free = 0, total = 0;
      const bool known = runtime.memory_info(&free, &total) == 0;
      throw ResourceExhausted(
          str("cannot allocate ", bytes, " bytes of device memory: ", runtime.error_text(code),
              known ? str(" (", free, " of ", total, " bytes are free)") : std::string()));
    }
    data_ = static_cast<std::byte*>(data);
  }
  ~BlockArena() override {
    if (data_) runtime_.release(data_);  // a device that failed before fails here too: nothing is left to do
  }
  BlockArena(const BlockArena&) = delete;
  BlockArena& operator=(const BlockArena&) = delete;

  std::byte* allocate(size_t bytes) override {
    // Compared unrounded first: rounding could overflow.
    if (bytes > remaining() || rounded(bytes) > remaining()) {
      throw ResourceExhausted(str("the device's arena of ", bytes_, " bytes has ", remaining(), " left, and ",
                                  bytes, " more are asked for"));
    }
    std::byte* data = data_ + used_;
    used_ += rounded(bytes);
    return data;
  }
  size_t remaining() const override { return bytes_ - used_; }

 private:
  const DeviceRuntime& runtime_;
  size_t bytes_;
  std::byte* data_ = nullptr;
};

}  // namespace

std::unique_ptr<DeviceArena> make_host_arena() { return std::make_unique<HostArena>(); }
std::unique_ptr<DeviceArena> make_measuring_arena() { return std::make_unique<MeasuringArena>(); }
std::unique_ptr<DeviceArena> make_device_arena(const DeviceRuntime& runtime, size_t bytes) {
  return std::make_unique<BlockArena>(runtime, bytes);
}

}  // namespace quire
