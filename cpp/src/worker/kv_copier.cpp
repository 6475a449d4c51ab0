#include "worker/kv_copier.h"

#include <cstring>

#include "device/runtime_handles.h"

namespace quire {
namespace {

class HostCopier final : public KVCopier {
 public:
  void copy(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  void synchronize() override {}
  void* stream() const override { return nullptr; }
};

class DeviceCopier final : public KVCopier {
 public:
  DeviceCopier(const DeviceRuntime& runtime, void* stream) : runtime_(runtime), stream_(stream) {}
  void copy(void* to, const void* from, size_t bytes) override {
    check_device(runtime_, runtime_.copy(to, from, bytes, stream_), "copying a block of the KV cache");
  }
  void synchronize() override {
    check_device(runtime_, runtime_.synchronize_stream(stream_), "waiting for the KV cache");
  }
  void* stream() const override { return stream_; }

 private:
  const DeviceRuntime& runtime_;
  void* stream_;
};

}  // namespace

std::unique_ptr<KVCopier> make_kv_copier(const DeviceRuntime* runtime, void* stream) {
  if (runtime == nullptr) return std::make_unique<HostCopier>();
  return std::make_unique<DeviceCopier>(*runtime, stream);
}

}  // namespace quire
