// Low-rank adapters on a device: the Llama-3.1-8B shape with weights made there, and adapters of random
// values on all of its linears.
//
//   adapters_bench [--rows decode,prefill,load,zipf] [--set field=JSON]...
//
// Each figure is beside that of an engine without adapters, of the same run. Definitions are engine_bench's.
// The adapters of a run are links to one file: they take their own memory, and are read each by itself, from
// the page cache. The Zipf rows draw the adapter of each request from 1,000, the i-th with a probability in
// proportion to 1 / i.
#include <quire/engine.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "../llama_shapes.h"
#include "engine_rows.h"

namespace {

using namespace quire;
namespace fs = std::filesystem;

constexpr int32_t kRank = 16, kZipfRank = 8, kZipfAdapters = 1000, kSlots = 64;

struct Module {
  const char* name;
  int64_t inputs, outputs;
};
constexpr Module kModules[] = {{"self_attn.q_proj", 4096, 4096}, {"self_attn.k_proj", 4096, 1024},
                               {"self_attn.v_proj", 4096, 1024}, {"self_attn.o_proj", 4096, 4096},
                               {"mlp.gate_proj", 4096, 14336},   {"mlp.up_proj", 4096, 14336},
                               {"mlp.down_proj", 14336, 4096}};
constexpr int kLayers = 32;

// Writes it as PEFT does, in bf16. Returns its bytes.
size_t write_adapter(const fs::path& directory, int32_t rank) {
  fs::create_directories(directory);
  std::ofstream(directory / "adapter_config.json")
      << R"({"peft_type": "LORA", "r": )" << rank << R"(, "lora_alpha": )" << rank << "}";
  std::string header = "{";
  size_t size = 0;
  for (int layer = 0; layer < kLayers; ++layer) {
    for (const Module& module : kModules) {
      const auto tensor = [&](const char* which, int64_t rows, int64_t columns) {
        const size_t begin = size;
        size += static_cast<size_t>(rows * columns) * 2;
        header += std::string(header.size() > 1 ? "," : "") + R"("base_model.model.model.layers.)" +
                  std::to_string(layer) + "." + module.name + "." + which +
                  R"(.weight":{"dtype":"BF16","shape":[)" + std::to_string(rows) + "," +
                  std::to_string(columns) + R"(],"data_offsets":[)" + std::to_string(begin) + "," +
                  std::to_string(size) + "]}";
      };
      tensor("lora_A", rank, module.inputs);
      tensor("lora_B", module.outputs, rank);
    }
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  std::vector<uint16_t> values(size / 2);
  uint32_t state = 1;
  for (uint16_t& value : values) {
    state = state * 1664525 + 1013904223;
    // Between 2^-9 and 2^-7, of either sign.
    value = static_cast<uint16_t>(0x3B00 + (state >> 24) + ((state >> 8 & 1) << 15));
  }
  std::ofstream file(directory / "adapter_model.safetensors", std::ios::binary);
  const uint64_t header_bytes = header.size();
  file.write(reinterpret_cast<const char*>(&header_bytes), 8);
  file.write(header.data(), static_cast<std::streamsize>(header.size()));
  file.write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(size));
  return size;
}

// So many directories of the same adapter.
std::vector<std::string> write_adapters(const std::string& name, int32_t rank, int count) {
  const fs::path root = fs::temp_directory_path() / ("quire-" + name);
  fs::remove_all(root);
  const fs::path first = root / "0";
  write_adapter(first, rank);
  std::vector<std::string> paths = {first.string()};
  for (int i = 1; i < count; ++i) {
    const fs::path directory = root / std::to_string(i);
    fs::create_directories(directory);
    for (const char* file : {"adapter_config.json", "adapter_model.safetensors"})
      fs::create_hard_link(first / file, directory / file);
    paths.push_back(directory.string());
  }
  return paths;
}

std::string name_of(int64_t adapter) { return "a" + std::to_string(adapter); }

// Requests of a batch, with so many adapters in turn.
std::vector<EngineRequest> batch_of(int32_t batch, int32_t context, int32_t max_tokens,
                                    int32_t num_adapters) {
  std::vector<EngineRequest> requests;
  for (int32_t i = 0; i < batch; ++i) {
    requests.push_back(request(random_prompt(context, kLlamaVocabSize), max_tokens));
    if (num_adapters > 0) requests.back().lora_name = name_of(i % num_adapters);
  }
  return requests;
}

double decode_ms(Engine& engine, int32_t batch, int32_t num_adapters) {
  constexpr int32_t kShort = 50, kLong = 250;
  const auto run = [&](int32_t max_tokens) {
    return generate_seconds(engine, batch_of(batch, 1024, max_tokens, num_adapters));
  };
  return median_of(3, [&] { return run(kLong) - run(kShort); }) / (kLong - kShort) * 1e3;
}

double prefill_ms(Engine& engine, int32_t num_adapters) {
  return median_of(5, [&] { return generate_seconds(engine, batch_of(1, 8192, 1, num_adapters)); }) * 1e3;
}

// Output tokens a second, of requests with these adapters.
double tokens_per_second(Engine& engine, const std::vector<int32_t>& adapters) {
  constexpr int32_t kPrompt = 256, kAnswer = 128;
  std::vector<EngineRequest> requests;
  for (const int32_t adapter : adapters) {
    requests.push_back(request(random_prompt(kPrompt, kLlamaVocabSize), kAnswer));
    requests.back().lora_name = name_of(adapter);
  }
  const auto count = static_cast<double>(requests.size());
  return count * kAnswer / generate_seconds(engine, std::move(requests));
}

// Beside the figure of an engine without adapters.
void beside(const std::string& name, double ms, double without, double bound) {
  std::printf("%-44s %10.2f ms %10.2f without %8.3f of it, bound %.2f\n", name.c_str(), ms, without,
              ms / without, bound);
  std::fflush(stdout);
}

struct DecodeCase {
  int32_t batch, num_adapters;
  double bound;
};

void zipf_rows(EngineConfig config) {
  const auto paths = write_adapters("zipf", kZipfRank, kZipfAdapters);
  config.max_lora_rank = kZipfRank;
  config.max_loras = kSlots;
  config.max_cpu_loras = kZipfAdapters;
  Engine engine(config);
  const double begin = now();
  for (int32_t i = 0; i < kZipfAdapters; ++i)
    engine.add_lora({name_of(i), i + 1, paths[static_cast<size_t>(i)]});
  std::printf("%d adapters of rank %d added in %.1f s\n", kZipfAdapters, kZipfRank, now() - begin);
  std::vector<double> weights;
  for (int i = 1; i <= kZipfAdapters; ++i) weights.push_back(1.0 / i);
  std::discrete_distribution<int32_t> draw(weights.begin(), weights.end());
  std::vector<int32_t> drawn, one(2000);
  for (size_t i = 0; i < one.size(); ++i) drawn.push_back(draw(random_ids));
  tokens_per_second(engine, one);
  const double alone = tokens_per_second(engine, one), mixed = tokens_per_second(engine, drawn);
  std::printf("%zu requests, one adapter: %.0f tok/s; by Zipf's law: %.0f, %.3f of it, bound 0.8\n",
              one.size(), alone, mixed, mixed / alone);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  EngineConfig config = device_rows_config(/*max_model_len=*/16384);
  try {
    const RowOptions options(argc, argv, "decode,prefill,load,zipf", config);
    config.model = make_llama_8b_directory();
    const std::vector<DecodeCase> cases = {{1, 0, 1},     {1, 1, 1.12},  {64, 0, 1},
                                           {64, 1, 1.10}, {64, 8, 1.15}, {64, 64, 1.30}};
    double decode_without[2] = {}, prefill_without = 0;
    const bool measures = options.wants("decode") || options.wants("prefill") || options.wants("load");
    if (measures) {
      Engine engine(config);
      generate_seconds(engine, {request(random_prompt(16, kLlamaVocabSize), 1)});
      for (const int32_t batch : {1, 64})
        if (options.wants("decode")) decode_without[batch > 1] = decode_ms(engine, batch, 0);
      if (options.wants("prefill")) prefill_without = prefill_ms(engine, 0);
    }
    config.enable_lora = true;
    config.max_loras = kSlots;
    config.max_lora_rank = kRank;
    if (measures) {
      const auto paths = write_adapters("adapters", kRank, kSlots);
      Engine engine(config);
      std::vector<double> loads;
      for (int32_t i = 0; i < kSlots; ++i) {
        const double begin = now();
        engine.add_lora({name_of(i), i + 1, paths[static_cast<size_t>(i)]});
        loads.push_back((now() - begin) * 1e3);
      }
      std::sort(loads.begin(), loads.end());
      std::printf("loading an adapter of rank %d: median %.1f ms, from %.1f to %.1f; bound 20\n", kRank,
                  loads[loads.size() / 2], loads.front(), loads.back());
      generate_seconds(engine, batch_of(kSlots, 16, 1, kSlots));
      for (const DecodeCase& one : cases) {
        if (!options.wants("decode")) break;
        beside("decode batch " + std::to_string(one.batch) + " @1024, adapters " +
                   std::to_string(one.num_adapters),
               decode_ms(engine, one.batch, one.num_adapters), decode_without[one.batch > 1], one.bound);
      }
      if (options.wants("prefill")) {
        beside("prefill 8192, adapters 0", prefill_ms(engine, 0), prefill_without, 1);
        beside("prefill 8192, adapters 1", prefill_ms(engine, 1), prefill_without, 1.08);
      }
    }
    if (options.wants("zipf")) zipf_rows(config);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
