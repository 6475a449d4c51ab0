// Sends what compare_with_noop.py sends, through the C++ API in this process.
//
// PROMPT is text, or token ids: "ids:1,2,3".
//   triton_api_bench MODEL PROMPT latency COUNT
//     microseconds of requests with max_tokens 1, one after another
//   triton_api_bench MODEL PROMPT throughput STREAMS N
//     tokens/s of STREAMS streams of N tokens at once
#include <quire/engine.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <sstream>
#include <string>

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

quire::EngineRequest make_request(const std::string& prompt, int32_t max_tokens,
                                  quire::RequestOutputKind kind) {
  quire::EngineRequest request;
  if (prompt.starts_with("ids:")) {
    std::istringstream ids(prompt.substr(4));
    for (std::string id; std::getline(ids, id, ',');) request.prompt_token_ids.push_back(std::stoi(id));
  } else {
    request.prompt = prompt;
  }
  request.sampling_params.temperature = 0;
  request.sampling_params.max_tokens = max_tokens;
  request.sampling_params.ignore_eos = true;
  request.sampling_params.output_kind = kind;
  return request;
}

// Runs `count` requests at once; returns when the last has finished.
void run(quire::Engine& engine, const quire::EngineRequest& request, int count) {
  std::mutex mutex;
  std::condition_variable done;
  int num_left = count;
  for (int i = 0; i < count; ++i) {
    engine.add_request(request, [&](quire::RequestOutput&& output) {
      if (!output.finished) return;
      const std::lock_guard lock(mutex);
      if (--num_left == 0) done.notify_all();
    });
  }
  std::unique_lock lock(mutex);
  done.wait(lock, [&] { return num_left == 0; });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) return 2;
  quire::EngineConfig config;
  config.model = argv[1];
  config.max_model_len = 512;
  config.skip_tokenizer_init = std::string(argv[2]).starts_with("ids:");
  quire::Engine engine(config);
  const std::string prompt = argv[2];
  const int count = std::atoi(argv[4]);
  if (std::string(argv[3]) == "latency") {
    const auto request = make_request(prompt, 1, quire::RequestOutputKind::kFinalOnly);
    for (int i = 0; i < 50; ++i) run(engine, request, 1);
    std::vector<double> micros;
    for (int i = 0; i < count; ++i) {
      const auto start = Clock::now();
      run(engine, request, 1);
      micros.push_back(seconds_since(start) * 1e6);
    }
    std::sort(micros.begin(), micros.end());
    std::printf("%.1f\n", micros[micros.size() / 2]);
    return 0;
  }
  const int num_tokens = std::atoi(argv[5]);
  const auto request = make_request(prompt, num_tokens, quire::RequestOutputKind::kDelta);
  run(engine, request, count);
  double best = 0;
  for (int round = 0; round < 3; ++round) {
    const auto start = Clock::now();
    run(engine, request, count);
    best = std::max(best, count * num_tokens / seconds_since(start));
  }
  std::printf("%.2f\n", best);
}
