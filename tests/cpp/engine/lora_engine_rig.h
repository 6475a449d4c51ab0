// The bundled model with the adapters that were trained for it.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "quire/engine.h"

namespace quire {

inline constexpr const char* kTrainedAdapters = "tests/python/data/adapters/";
inline std::string trained_adapter(const std::string& name) { return kTrainedAdapters + name; }

inline EngineConfig lora_engine_config(int32_t max_loras, int32_t max_cpu_loras) {
  EngineConfig config;
  config.model = QUIRE_DEMO_MODEL;
  config.max_model_len = 512;
  config.num_threads = 1;
  config.kv_cache_memory_bytes = 16 << 20;
  config.enable_lora = true;
  config.max_loras = max_loras;
  config.max_cpu_loras = max_cpu_loras;
  return config;
}

inline EngineRequest lora_request(const std::string& lora_name, int32_t max_tokens) {
  EngineRequest request;
  request.prompt = "User: List the days of the week.\nAssistant:";
  request.lora_name = lora_name;
  request.sampling_params.temperature = 0;
  request.sampling_params.max_tokens = max_tokens;
  request.sampling_params.ignore_eos = true;
  return request;
}

// A request on its way, and its whole answer.
class Asked {
 public:
  Asked(Engine& engine, EngineRequest request) {
    request.sampling_params.output_kind = RequestOutputKind::kCumulative;
    const auto told = std::make_shared<Told>();
    begun_ = told->begun.get_future();
    ended_ = told->ended.get_future();
    id = engine.add_request(std::move(request), [told](RequestOutput&& output) {
      if (!std::exchange(told->has_begun, true)) told->begun.set_value();
      if (output.finished) told->ended.set_value(std::move(output));
    });
  }
  // The first output is there.
  void wait_for_begin() const { begun_.wait(); }
  bool is_over() const { return ended_.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }
  CompletionOutput wait() { return ended_.get().outputs.at(0); }

  std::string id;

 private:
  struct Told {
    std::promise<void> begun;
    std::promise<RequestOutput> ended;
    bool has_begun = false;
  };
  std::future<void> begun_;
  std::future<RequestOutput> ended_;
};

// Whether it is so within some seconds.
template <class Condition>
bool comes_true(const Condition& condition) {
  for (int i = 0; i < 4000 && !condition(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return condition();
}

}  // namespace quire
