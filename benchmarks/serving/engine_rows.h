// What the benchmarks of whole engines share: requests, their time, rows of tables.
#pragma once

#include <quire/engine.h>
#include <quire/fields.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace quire {

inline double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline std::mt19937 random_ids(7);

inline std::vector<int32_t> random_prompt(int32_t length, int32_t vocab_size) {
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < length; ++i)
    ids.push_back(static_cast<int32_t>(random_ids() % static_cast<uint32_t>(vocab_size - 1000)));
  return ids;
}

inline EngineRequest request(std::vector<int32_t> prompt, int32_t max_tokens) {
  EngineRequest out;
  out.prompt_token_ids = std::move(prompt);
  out.sampling_params.temperature = 0;
  out.sampling_params.max_tokens = max_tokens;
  out.sampling_params.ignore_eos = true;
  out.sampling_params.detokenize = false;
  out.sampling_params.output_kind = RequestOutputKind::kFinalOnly;
  return out;
}

inline double generate_seconds(Engine& engine, std::vector<EngineRequest> requests) {
  const double begin = now();
  const auto outputs = engine.generate(std::move(requests));
  const double seconds = now() - begin;
  for (const RequestOutput& output : outputs) {
    if (output.outputs.at(0).finish_reason != FinishReason::kLength) {
      std::fprintf(stderr, "a request did not reach its length: %s\n", output.outputs[0].error.c_str());
      std::exit(1);
    }
  }
  return seconds;
}

template <typename F>
double median_of(int repeats, F measure) {
  std::vector<double> values;
  for (int i = 0; i < repeats; ++i) values.push_back(measure());
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// The engine of a device's rows, but for its model.
inline EngineConfig device_rows_config(int32_t max_model_len) {
  EngineConfig config;
  config.device = "cuda";
  config.dtype = "bfloat16";
  config.load_format = "dummy";
  config.skip_tokenizer_init = true;
  config.enable_prefix_caching = false;
  config.max_num_seqs = 256;
  config.max_num_batched_tokens = 8192;
  config.max_model_len = max_model_len;
  return config;
}

// What the command line says: --rows NAME,..., --set field=JSON, and what `take` knows besides, which returns
// false for what it does not. Ends the program for what nobody knows.
class RowOptions {
 public:
  using Take = std::function<bool(const std::string& option, const std::string& value)>;
  RowOptions(int argc, char** argv, std::string rows, EngineConfig& config, const Take& take = {})
      : rows_(std::move(rows)) {
    for (int i = 1; i < argc; i += 2) {
      const std::string option = argv[i], value = i + 1 < argc ? argv[i + 1] : "";
      const size_t equals = value.find('=');
      if (option == "--rows") {
        rows_ = value;
      } else if (option == "--set" && equals != std::string::npos) {
        set_field(config, value.substr(0, equals), value.substr(equals + 1));
      } else if (!take || !take(option, value)) {
        std::fprintf(stderr, "unknown option %s %s\n", option.c_str(), value.c_str());
        std::exit(2);
      }
    }
  }
  bool wants(const char* row) const { return rows_.find(row) != std::string::npos; }

 private:
  std::string rows_;
};

inline void heading() {
  std::printf("%-44s %10s %10s %10s %10s %10s %8s\n", "row", "quire", "vLLM 0.26", "required", "target",
              "floor", "x vLLM");
}

// Beside a row's own. Zeros: no such figure.
struct Figures {
  double vllm = 0, target = 0, floor = 0;
  double better = 1.10;  // than vLLM, as is required
};

// `more_is_better`: throughput.
inline void row(const std::string& name, double value, const Figures& figures, const char* unit,
                bool more_is_better = false) {
  const auto text = [](double x) {
    char buffer[32] = "";
    if (x != 0) std::snprintf(buffer, sizeof buffer, x >= 1000 ? "%.0f" : "%.2f", x);
    return std::string(buffer);
  };
  const double required = more_is_better ? figures.vllm * figures.better : figures.vllm / figures.better;
  const double ratio = figures.vllm == 0 ? 0 : more_is_better ? value / figures.vllm : figures.vllm / value;
  std::printf("%-44s %10s %10s %10s %10s %10s %8s  %s\n", name.c_str(), text(value).c_str(),
              text(figures.vllm).c_str(), text(required).c_str(), text(figures.target).c_str(),
              text(figures.floor).c_str(), text(ratio).c_str(), unit);
  std::fflush(stdout);
}

}  // namespace quire
