// A device that computes nothing: every captured graph takes `step_us` of its time, whatever is in it, and
// every token is the same. What the host does for a step shows on it, without the driver's part, on any
// machine.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>

#include "quire/kernels/backend_registry.h"
#include "quire/kernels/device_runtime.h"
#include "quire/kernels/ops.h"

namespace quire::null_device {

inline double step_us = 1000;
inline std::atomic<double> busy_until = 0;  // of the device

inline double now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

struct Event {
  std::atomic<double> at = 0;
};

// Pages that nobody touches cost nothing.
inline int allocate(void** data, size_t bytes) {
  *data = std::calloc(1, std::max(bytes, size_t{1}));
  return *data == nullptr ? 2 : 0;
}
inline int release(void* data) {
  std::free(data);
  return 0;
}
inline int nothing() { return 0; }

inline const DeviceRuntime& runtime() {
  static const DeviceRuntime table = [] {
    DeviceRuntime t{};
    t.backend = "null";
    t.error_text = [](int) { return "out of memory"; };
    t.select = [](int32_t) { return 0; };
    t.memory_info = [](size_t* free, size_t* total) {
      *free = *total = size_t{8} << 30;
      return 0;
    };
    t.synchronize = nothing;
    t.allocate = t.allocate_pinned = allocate;
    t.release = t.release_pinned = release;
    t.allocate_mapped = [](void** memory, void** data, size_t bytes) {
      const int code = allocate(data, bytes);
      *memory = *data;
      return code;
    };
    t.unmap = t.map = [](void*) { return 0; };
    t.release_mapped = release;
    t.copy = [](void* to, const void* from, size_t bytes, void*) {
      std::memcpy(to, from, bytes);
      return 0;
    };
    t.fill = [](void* data, int byte, size_t bytes, void*) {
      if (byte != 0) std::memset(data, byte, bytes);
      return 0;
    };
    t.create_stream = [](void** stream) { return allocate(stream, 1); };
    t.destroy_stream = release;
    t.synchronize_stream = [](void*) { return 0; };
    t.create_event = [](void** event, bool) {
      *event = new Event;
      return 0;
    };
    t.destroy_event = [](void* event) {
      delete static_cast<Event*>(event);
      return 0;
    };
    t.record_event = [](void* event, void*) {
      static_cast<Event*>(event)->at = busy_until.load();
      return 0;
    };
    t.synchronize_event = [](void* event) {
      while (now_us() < static_cast<Event*>(event)->at) {
      }
      return 0;
    };
    t.wait_event = [](void*, void*) { return 0; };
    t.query_event = [](void* event, bool* done) {
      *done = now_us() >= static_cast<Event*>(event)->at;
      return 0;
    };
    t.elapsed_ms = [](float* ms, void* begin, void* end) {
      *ms = static_cast<float>((static_cast<Event*>(end)->at - static_cast<Event*>(begin)->at) / 1e3);
      return 0;
    };
    t.begin_capture = [](void*) { return 0; };
    t.end_capture = [](void*, void** graph) { return allocate(graph, 1); };
    t.launch_graph = [](void*, void*) {
      busy_until = std::max(busy_until.load(), now_us()) + step_us;
      return 0;
    };
    t.captured_node = [](void* stream, void** node) {
      *node = stream;
      return 0;
    };
    t.enable_node = [](void*, void*, bool) { return 0; };
    t.destroy_graph = release;
    return t;
  }();
  return table;
}

template <typename... Args>
void silence(void (*&op)(Args...)) {
  if (op != nullptr) op = [](Args...) {};
}

// The CPU's sizes, and kernels that do nothing.
inline const KernelTable& ops() {
  static const BatchOps batch = {[](const LaunchContext&, const PrepareInputsArgs&) {}};
  static const KernelTable table = [] {
    KernelTable t = *find_kernel_table("cpu");
    silence(t.embedding);
    silence(t.rms_norm);
    silence(t.fused_add_rms_norm);
    silence(t.rotary_embedding);
    silence(t.rotary_embedding_and_write_kv);
    silence(t.activate_and_mul);
    silence(t.gather_rows);
    silence(t.linear);
    silence(t.plan_attention);
    silence(t.write_kv_cache);
    silence(t.paged_attention);
    silence(t.apply_logit_bias);
    silence(t.apply_bitmask);
    silence(t.apply_penalties);
    silence(t.log_softmax);
    silence(t.top_logprobs);
    silence(t.fill_random);
    t.sample = [](const LaunchContext&, const SamplingArgs& args) {
      if (args.host_token_ids != nullptr) std::fill_n(args.host_token_ids, args.logits.shape[0], 7);
    };
    t.batch = &batch;
    t.decodes_first = true;
    return t;
  }();
  return table;
}

}  // namespace quire::null_device
