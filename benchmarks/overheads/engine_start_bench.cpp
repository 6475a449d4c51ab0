// How long an engine takes until it can compute, and until its first token, with the weights in the page
// cache.
//
//   engine_start_bench MODEL [ROUNDS = 5] [NUM_THREADS = 0: all]
//
// `copy` reads the checkpoint's bytes into new memory with one thread: what any loader that keeps weights of
// its own pays at least, over its threads. `user` and `system` are the processor time of `start`, all threads
// together.
#include <sys/resource.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "device/buffer.h"
#include "formats/safetensors.h"
#include "quire/engine.h"
#include "quire/error.h"

namespace quire {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// CPU time of the whole process, in user and in system mode.
struct CpuSeconds {
  double user = 0, system = 0;
};
CpuSeconds cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return {seconds(usage.ru_utime), seconds(usage.ru_stime)};
}

double copy_seconds(const std::string& path) {
  const auto start = std::chrono::steady_clock::now();
  const SafetensorsFile file(path);
  size_t bytes = 0;
  for (const SafetensorsEntry& entry : file.entries()) bytes += entry.end - entry.begin;
  const Buffer out(bytes);
  for (const SafetensorsEntry& entry : file.entries()) {
    const auto from = file.bytes(entry);
    file.read(from.data(), {out.data() + entry.begin, from.size()});
  }
  return seconds_since(start);
}

int run(const std::string& model, int rounds, int num_threads) {
  std::printf("%8s %8s %8s %8s %12s   seconds\n", "copy", "start", "user", "system", "first token");
  for (int round = 0; round < rounds; ++round) {
    const double copy = copy_seconds(model + "/model.safetensors");
    EngineConfig config;
    config.model = model;
    config.device = "cpu";
    config.num_threads = num_threads;
    config.max_model_len = 512;
    config.skip_tokenizer_init = true;
    config.kv_cache_memory_bytes = 64 << 20;
    EngineRequest request;
    request.prompt_token_ids = {1};
    request.sampling_params.max_tokens = 1;
    request.sampling_params.ignore_eos = true;
    const CpuSeconds before = cpu_seconds();
    const auto start = std::chrono::steady_clock::now();
    LLMEngine engine(config);
    const double started = seconds_since(start);
    const CpuSeconds after = cpu_seconds();
    engine.add_request(request);
    while (engine.has_unfinished_requests()) engine.step();
    std::printf("%8.3f %8.3f %8.3f %8.3f %12.3f\n", copy, started, after.user - before.user,
                after.system - before.system, seconds_since(start));
  }
  return 0;
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s MODEL [ROUNDS] [NUM_THREADS]\n", argv[0]);
    return 2;
  }
  try {
    return quire::run(argv[1], argc > 2 ? std::atoi(argv[2]) : 5, argc > 3 ? std::atoi(argv[3]) : 0);
  } catch (const quire::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
