// Decode and prefill of engines with the shapes of published models and random weights made on the device.
//
//   model_bench SHAPE [--read-tbps 4.38] [--dense-tflops 669] [--decode BATCH,CONTEXT]... [--prefill
//   TOKENS]...
//   [--repeats 3] [--set field=JSON]...
//
// A decode row's time per output token is that while all of its requests generate: from the last one's first
// token until the first one ends. Its floor is the bytes that a step must read (model_shapes.h) at the rate
// of --read-tbps. A prefill row's is that of a prompt until its first token; beside it is the rate of its
// operations, attention's among them, over --dense-tflops, and that of its linears and experts alone, for
// which attention is lost time. Rows are those of the shape where none are given.
#include <quire/engine.h>
#include <quire/fields.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>

#include "engine_rows.h"
#include "generation.h"
#include "model_shapes.h"

namespace {

using namespace quire;

struct DecodeCase {
  int32_t batch, context;
};

struct Options {
  const ModelShape* shape = nullptr;
  int repeats = 3;                              // of a decode row's runs
  double read_tbps = 4.38, dense_tflops = 669;  // of an H200: reads, and the library's product of 8,192 rows
  int32_t batched_tokens = 0;                   // of a step
  std::vector<DecodeCase> decode;
  std::vector<int32_t> prefill;
};

void decode_row(Engine& engine, const Options& options, DecodeCase one) {
  const ModelShape& shape = *options.shape;
  std::vector<std::vector<int32_t>> prompts;
  for (int32_t i = 0; i < one.batch; ++i) prompts.push_back(random_prompt(one.context, shape.vocab_size));
  // The first requests have so many tokens by the time that the last one's prompt is read, if none is cached.
  const int32_t reading = one.batch * one.context / options.batched_tokens + one.batch / 16 + 2;
  constexpr int32_t kWarmUp = 20, kMeasured = 100;
  if (!Generation(engine, prompts, reading + kWarmUp).is_side_by_side()) {
    std::printf("%-16s decode batch %3d @%-6d the KV cache does not hold them all\n", shape.name, one.batch,
                one.context);
    return;
  }
  double context = one.context;
  const double tpot = 1e3 * median_of(options.repeats, [&] {
                        const Generation run(engine, prompts, reading + kMeasured);
                        context = one.context + run.tokens_before();
                        return run.seconds_per_token();
                      });
  const double floor = shape.decode_bytes(one.batch, context) / options.read_tbps / 1e9;
  std::printf("%-16s decode batch %3d @%-6d %8.3f ms   floor %8.3f ms   %5.2f of it\n", shape.name, one.batch,
              one.context, tpot, floor, tpot / floor);
  std::fflush(stdout);
}

void prefill_row(Engine& engine, const Options& options, int32_t tokens) {
  const ModelShape& shape = *options.shape;
  const double seconds = median_of(
      5, [&] { return generate_seconds(engine, {request(random_prompt(tokens, shape.vocab_size), 1)}); });
  const double products = shape.product_flops(tokens) / seconds / 1e12;
  const double all = products + shape.attention_flops(tokens) / seconds / 1e12;
  std::printf(
      "%-16s prefill %-14d %8.1f ms   %4.0f TFLOP/s   %5.2f of the dense rate   linears and experts alone: "
      "%4.0f, %.2f\n",
      shape.name, tokens, seconds * 1e3, all, all / options.dense_tflops, products,
      products / options.dense_tflops);
  std::fflush(stdout);
}

const ModelShape* find_shape(const std::string& name) {
  for (const ModelShape& shape : kModelShapes) {
    if (name == shape.name) return &shape;
  }
  std::fprintf(stderr, "no shape %s; there are:", name.c_str());
  for (const ModelShape& shape : kModelShapes) std::fprintf(stderr, " %s", shape.name);
  std::fprintf(stderr, "\n");
  return nullptr;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  EngineConfig config;
  config.device = "cuda";
  config.dtype = "bfloat16";
  config.load_format = "dummy";
  config.skip_tokenizer_init = true;
  config.max_num_seqs = 256;
  config.max_num_batched_tokens = 8192;
  config.max_model_len = 16384;
  config.gpu_memory_utilization = 0.95;
  if (argc < 2 || (options.shape = find_shape(argv[1])) == nullptr) return 2;
  try {
    for (int i = 2; i + 1 < argc; i += 2) {
      const std::string option = argv[i], value = argv[i + 1];
      DecodeCase one{};
      if (option == "--read-tbps") {
        options.read_tbps = std::stod(value);
      } else if (option == "--dense-tflops") {
        options.dense_tflops = std::stod(value);
      } else if (option == "--repeats") {
        options.repeats = std::max(1, std::stoi(value));
      } else if (option == "--decode" && std::sscanf(value.c_str(), "%d,%d", &one.batch, &one.context) == 2) {
        options.decode.push_back(one);
      } else if (option == "--prefill") {
        options.prefill.push_back(std::stoi(value));
        config.max_model_len = std::max(config.max_model_len, options.prefill.back() + 1);
      } else if (option == "--set" && value.find('=') != std::string::npos) {
        const size_t equals = value.find('=');
        set_field(config, value.substr(0, equals), value.substr(equals + 1));
      } else {
        std::fprintf(stderr, "unknown option %s %s\n", option.c_str(), value.c_str());
        return 2;
      }
    }
    options.batched_tokens = *config.max_num_batched_tokens;
    const ModelShape& shape = *options.shape;
    if (options.decode.empty() && options.prefill.empty()) {
      if (std::strcmp(shape.name, "gemma-3-12b") == 0) {
        options.decode = {{1, 8192}, {64, 8192}};
      } else if (std::strcmp(shape.name, "gpt-oss-20b") == 0) {
        options.decode = {{1, 1024}, {64, 1024}};
      } else {
        options.decode = {{1, 1024}, {16, 1024}, {64, 1024}, {256, 1024}};
      }
      options.prefill = {8192};
    }
    const auto directory = std::filesystem::temp_directory_path() / ("quire-" + std::string(shape.name));
    std::filesystem::create_directories(directory);
    std::ofstream(directory / "config.json") << shape.config;
    config.model = directory.string();
    const double begin = now();
    Engine engine(config);
    generate_seconds(engine, {request(random_prompt(16, shape.vocab_size), 1)});
    std::printf("%-16s start to first token %.1f s\n", shape.name, now() - begin);
    std::fflush(stdout);
    for (const DecodeCase& one : options.decode) decode_row(engine, options, one);
    for (const int32_t tokens : options.prefill) prefill_row(engine, options, tokens);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
