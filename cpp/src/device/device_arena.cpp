#include "device/device_arena.h"

#include <cstdint>
#include <limits>
#include <vector>

#include "device/buffer.h"
#include "quire/error.h"
#include "util/check.h"

namespace quire {
namespace {

class HostArena final : public DeviceArena {
 public:
  std::byte* allocate(size_t bytes) override {
    return handed_out(buffers_.emplace_back(bytes).data(), bytes);
  }
  size_t remaining() const override { return std::numeric_limits<size_t>::max(); }
  void discard() override {
    for (Buffer& buffer : buffers_) buffer.discard();
  }
  void restore() override {}  // pages come when they are touched

 private:
  std::vector<Buffer> buffers_;
};

class MeasuringArena final : public DeviceArena {
 public:
  // From an address that no process has mapped, and that is not null.
  std::byte* allocate(size_t bytes) override {
    if (bytes > kMaxBytes - used_)
      throw ResourceExhausted(str("config.json asks for more than ", kMaxBytes, " bytes of weights"));
    return handed_out(reinterpret_cast<std::byte*>(uintptr_t{kAlignment} + used_), bytes);
  }
  size_t remaining() const override { return kMaxBytes - used_; }
  void discard() override {}
  void restore() override {}

 private:
  static constexpr size_t kMaxBytes = size_t{1} << 61;  // so that sums with others have room
};

class BlockArena final : public DeviceArena {
 public:
  BlockArena(const DeviceRuntime& runtime, size_t bytes) : runtime_(runtime), bytes_(bytes) {
    if (bytes == 0) return;
    void* data = nullptr;
    if (const int code = runtime.allocate_mapped(&memory_, &data, bytes); code != 0) refuse(code);
    data_ = static_cast<std::byte*>(data);
  }
  ~BlockArena() override {
    // A device that failed before fails here too: nothing is left to do.
    if (memory_) runtime_.release_mapped(memory_);
  }
  BlockArena(const BlockArena&) = delete;
  BlockArena& operator=(const BlockArena&) = delete;

  std::byte* allocate(size_t bytes) override {
    // Compared unrounded first: rounding could overflow.
    if (bytes > remaining() || rounded(bytes) > remaining()) {
      throw ResourceExhausted(str("the device's arena of ", bytes_, " bytes has ", remaining(), " left, and ",
                                  bytes, " more are asked for"));
    }
    return handed_out(data_ + used_, bytes);
  }
  size_t remaining() const override { return bytes_ - used_; }
  void discard() override {
    if (memory_ == nullptr) return;
    if (const int code = runtime_.unmap(memory_); code != 0) {
      throw InternalError(
          str("cannot give ", bytes_, " bytes of device memory back: ", runtime_.error_text(code)));
    }
  }
  void restore() override {
    if (memory_ == nullptr) return;
    if (const int code = runtime_.map(memory_); code != 0) refuse(code);
  }
  std::span<std::byte> device_memory() const override { return {data_, used_}; }

 private:
  [[noreturn]] void refuse(int code) const {
    size_t free = 0, total = 0;
    const bool known = runtime_.memory_info(&free, &total) == 0;
    throw ResourceExhausted(str("cannot allocate ", bytes_,
                                " bytes of device memory: ", runtime_.error_text(code),
                                known ? str(" (", free, " of ", total, " bytes are free)") : std::string()));
  }

  const DeviceRuntime& runtime_;
  size_t bytes_;
  void* memory_ = nullptr;
  std::byte* data_ = nullptr;
};

class ReplayingArena final : public DeviceArena {
 public:
  explicit ReplayingArena(const DeviceArena& arena) : arena_(arena) {}

  std::byte* allocate(size_t bytes) override {
    const size_t next = allocations().size();
    QUIRE_CHECK(next < arena_.allocations().size() && arena_.allocations()[next].bytes == bytes,
                "allocation ", next, " of ", bytes, " bytes was not made before");
    return handed_out(arena_.allocations()[next].data, bytes);
  }
  size_t remaining() const override { return arena_.used() - used_; }
  void discard() override {}
  void restore() override {}

 private:
  const DeviceArena& arena_;
};

}  // namespace

std::unique_ptr<DeviceArena> make_host_arena() { return std::make_unique<HostArena>(); }
std::unique_ptr<DeviceArena> make_measuring_arena() { return std::make_unique<MeasuringArena>(); }
std::unique_ptr<DeviceArena> make_device_arena(const DeviceRuntime& runtime, size_t bytes) {
  return std::make_unique<BlockArena>(runtime, bytes);
}
std::unique_ptr<DeviceArena> make_replaying_arena(const DeviceArena& arena) {
  return std::make_unique<ReplayingArena>(arena);
}

}  // namespace quire
