// The engine rows of the H200 tables: an engine of the Llama-3.1-8B shape with weights made on the device, or
// on as many as `--set tensor_parallel_size=2` says.
//
//   engine_bench [--shape llama-3.1-8b|llama-3.1-70b] [--model DIR] [--rows
//   decode,prefill,throughput,beams,prefix,start,long,grammar]
//   [--tokenizer DIR] [--grammar BATCH,CONTEXT,SHORT,LONG[,TEMPERATURE]] [--set field=JSON]...
//
// Prints a line for each row: what was measured, vLLM 0.26's figure, what is required beside it, the target,
// the physical floor, and the ratio to vLLM (above 1 is better than it). Definitions: a decode row's time per
// output token is the difference of two generation lengths; a prefill row's is that of a prompt until its
// first token; throughput counts output tokens. The long rows, of prompts up to 130,000 tokens, take a device
// with 80 GB. The grammar rows are decode rows, half of whose requests write JSON under a schema, with the
// tokenizer.json of --tokenizer, which has the model's vocabulary; beside each is the same with free requests
// alone. --grammar takes the place of their cases: one, greedy, of BATCH requests with prompts of CONTEXT
// tokens and answers of SHORT and of LONG, which a CPU is through with.
#include <quire/engine.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "engine_rows.h"
#include "generation.h"
#include "llama_rows.h"

namespace {

using namespace quire;

std::vector<int32_t> random_prompt(int32_t length) { return quire::random_prompt(length, kLlamaVocabSize); }

// Processor time of all threads so far: on a shared machine steadier than the clock.
double busy_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

constexpr double kBetterPrefill = 1.05;  // than vLLM, as is required

std::string decode_name(const DecodeRow& r) {
  return "decode batch " + std::to_string(r.batch) + ", context " + std::to_string(r.context);
}

void decode_rows(Engine& engine, const LlamaRows& rows) {
  for (const DecodeRow& r : rows.decode) {
    constexpr int32_t kShort = 50, kLong = 250;
    const auto run = [&](int32_t max_tokens) {
      std::vector<EngineRequest> requests;
      for (int32_t i = 0; i < r.batch; ++i) requests.push_back(request(random_prompt(r.context), max_tokens));
      return generate_seconds(engine, std::move(requests));
    };
    const double tpot =
        median_of(r.batch * r.context > 100000 ? 1 : 3, [&] { return run(kLong) - run(kShort); }) /
        (kLong - kShort);
    row(decode_name(r), tpot * 1e3, r.figures, "ms");
  }
}

void prefill_row(Engine& engine, const PrefillRow& r, int repeats) {
  const double seconds =
      median_of(repeats, [&] { return generate_seconds(engine, {request(random_prompt(r.length), 1)}); });
  row("prefill " + std::to_string(r.length), seconds * 1e3, {r.vllm, r.target, r.floor, kBetterPrefill},
      "ms");
}

void prefill_rows(Engine& engine, const LlamaRows& rows) {
  for (const PrefillRow& r : rows.prefill) prefill_row(engine, r, 5);
}

// A token's time is that while all generate: of so long prompts the difference of two lengths would be lost.
void long_rows(const EngineConfig& base) {
  EngineConfig config = base;
  config.max_model_len = 131072;
  Engine engine(config);
  for (const PrefillRow& r : {PrefillRow{32768, 1220, 1130, 1010}, PrefillRow{130000, 10210, 9000, 8340}})
    prefill_row(engine, r, r.length > 100000 ? 1 : 3);
  for (const DecodeRow& r : {DecodeRow{1, 32000, {5.92, 0, 4.38}}, DecodeRow{8, 32000, {0, 0, 11.1}},
                             DecodeRow{1, 130000, {8.92, 0, 7.32}}}) {
    std::vector<std::vector<int32_t>> prompts;
    for (int32_t i = 0; i < r.batch; ++i) prompts.push_back(random_prompt(r.context));
    // The first request has so many tokens by the time that the last one's prompt is read.
    const int32_t reading = r.batch * r.context / *config.max_num_batched_tokens + 2;
    const Generation run(engine, prompts, reading + 100);
    if (run.is_side_by_side()) row(decode_name(r), run.seconds_per_token() * 1e3, r.figures, "ms");
  }
}

void mixed_row(Engine& engine, const Figures& figures, const std::string& at_once) {
  std::vector<EngineRequest> mixed;
  for (int i = 0; i < 1000; ++i) {
    mixed.push_back(request(random_prompt(64 + static_cast<int32_t>(random_ids() % 961)), 200));
  }
  const double seconds = generate_seconds(engine, std::move(mixed));
  row("1,000 requests, 64-1,024 in + 200 out" + at_once, 1000 * 200 / seconds, figures, "tok/s", true);
}

void throughput_rows(Engine& engine, const LlamaRows& rows) {
  std::vector<EngineRequest> equal;
  for (int i = 0; i < 256; ++i) equal.push_back(request(random_prompt(512), 128));
  const double seconds = generate_seconds(engine, std::move(equal));
  row("256 requests, 512 in + 128 out", 256 * 128 / seconds, rows.equal, "tok/s", true);
  mixed_row(engine, rows.mixed, "");
}

// With what a step of this device has where nobody says it.
void default_limits_row(EngineConfig config, const LlamaRows& rows) {
  config.max_num_seqs.reset();
  config.max_num_batched_tokens.reset();
  Engine engine(config);
  mixed_row(engine, rows.mixed, ", defaults");
}

// Requests that share what lies in front, with keys and values read for each and once for all.
void shared_decode_rows(const EngineConfig& base) {
  EngineConfig config = base;
  config.enable_prefix_caching = true;
  for (const bool each : {true, false}) {
    config.disable_cascade_attn = each;
    Engine engine(config);
    for (const int32_t batch : {8, 64, 256}) {
      const std::vector<int32_t> shared = random_prompt(4096);
      generate_seconds(engine, {request(shared, 1)});
      std::vector<std::vector<int32_t>> prompts;
      for (int32_t i = 0; i < batch; ++i) {
        std::vector<int32_t>& prompt = prompts.emplace_back(shared);
        for (int32_t id : random_prompt(64)) prompt.push_back(id);
      }
      const Generation run(engine, prompts, 200);
      if (run.is_side_by_side())
        row("decode batch " + std::to_string(batch) + ", 4,096 shared + 64" + (each ? ", read by each" : ""),
            run.seconds_per_token() * 1e3, {}, "ms");
    }
  }
}

void prefix_rows(const EngineConfig& base) {
  EngineConfig config = base;
  config.enable_prefix_caching = true;
  Engine engine(config);
  const std::vector<int32_t> shared = random_prompt(4096);
  const auto batch = [&](bool shares) {
    std::vector<EngineRequest> requests;
    for (int i = 0; i < 64; ++i) {
      std::vector<int32_t> prompt = shares ? shared : random_prompt(4096);
      const std::vector<int32_t> own = random_prompt(64);
      prompt.insert(prompt.end(), own.begin(), own.end());
      requests.push_back(request(std::move(prompt), 1));
    }
    return requests;
  };
  row("64 x (4,096 + 64), nothing shared", generate_seconds(engine, batch(false)), {6.6}, "s");
  generate_seconds(engine, {request(shared, 1)});
  row("64 x (4,096 shared + 64), warm", generate_seconds(engine, batch(true)), {0.26, 0.15}, "s");
}

// As many tokens a step either way: what it costs to choose among beams, and to go on with other ones.
void beam_rows(Engine& engine) {
  for (const int32_t context : {1024, 8192}) {
    for (const bool searches : {false, true}) {
      constexpr int32_t kBeams = 8, kShort = 50, kLong = 250;
      const auto run = [&](int32_t max_tokens) {
        EngineRequest one = request(random_prompt(context), max_tokens);
        one.sampling_params.n = kBeams;
        if (searches) one.sampling_params.beam_width = kBeams;
        return generate_seconds(engine, {one});
      };
      const double seconds = median_of(3, [&] { return run(kLong) - run(kShort); });
      row((searches ? "8 beams, context " : "8 completions of a prompt, context ") + std::to_string(context),
          seconds / (kLong - kShort) * 1e3, {}, "ms");
    }
  }
}

// Each schema is another one, and none ends before the last token.
StructuredOutputsParams json_answer(int32_t which) {
  const std::string name = "p" + std::to_string(which);
  StructuredOutputsParams params;
  params.json = JsonText{
      R"({"type": "array", "minItems": 5000, "items": {"type": "object", "properties": {")" + name +
      R"(": {"type": "string"}, "count": {"type": "integer"}, "kind": {"enum": ["small", "large", "other"]},
          "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}}}, "required": [")" +
      name + R"(", "count", "kind", "tags"]}})"};
  return params;
}

// Half of the requests under grammars, and all of them free, by turns: the ratio is of the same minute.
struct GrammarCase {
  int32_t batch;
  float temperature;
  int32_t context = 1024, short_answer = 50, long_answer = 250;
};

void grammar_rows(const EngineConfig& base, const std::string& tokenizer,
                  const std::vector<GrammarCase>& cases) {
  EngineConfig config = base;
  std::filesystem::copy_file(std::filesystem::path(tokenizer) / "tokenizer.json",
                             std::filesystem::path(config.model) / "tokenizer.json",
                             std::filesystem::copy_options::overwrite_existing);
  config.skip_tokenizer_init = false;
  Engine engine(config);
  for (const GrammarCase& one : cases) {
    const auto run = [&](int32_t max_tokens, bool constrained) {
      std::vector<EngineRequest> requests;
      for (int32_t i = 0; i < one.batch; ++i) {
        requests.push_back(request(random_prompt(one.context), max_tokens));
        SamplingParams& params = requests.back().sampling_params;
        params.temperature = one.temperature;
        if (!constrained || i % 2 != 0) continue;
        params.ignore_eos = false;
        params.structured_outputs = json_answer(i);
      }
      return generate_seconds(engine, std::move(requests));
    };
    run(1, true);  // compiled now
    double seconds[2] = {}, busy[2] = {};
    std::vector<double> ratios;
    constexpr int kTurns = 3;
    for (int turn = 0; turn < kTurns; ++turn) {
      double of_turn[2] = {};
      for (const bool constrained : {false, true}) {
        const double begin = busy_seconds(), longer = run(one.long_answer, constrained),
                     middle = busy_seconds();
        of_turn[constrained ? 1 : 0] = longer - run(one.short_answer, constrained);
        busy[constrained ? 1 : 0] += middle - begin - (busy_seconds() - middle);
        seconds[constrained ? 1 : 0] += of_turn[constrained ? 1 : 0];
      }
      ratios.push_back(of_turn[1] / of_turn[0]);
    }
    const std::string name =
        "decode batch " + std::to_string(one.batch) + (one.temperature > 0 ? ", temperature 1" : ", greedy");
    for (const bool constrained : {false, true}) {
      row(name + (constrained ? ", half under grammars" : ", all free"),
          seconds[constrained ? 1 : 0] / kTurns / (one.long_answer - one.short_answer) * 1e3, {}, "ms");
    }
    row("  the second to the first", seconds[1] / seconds[0], {0, 1.03}, "x");
    std::ranges::sort(ratios);
    row("  the same of processor time", busy[1] / busy[0], {}, "x");
    row("  least of the turns", ratios.front(), {}, "x");
    row("  most of the turns", ratios.back(), {}, "x");
  }
}

bool take_grammar_case(const std::string& value, std::vector<GrammarCase>& cases) {
  GrammarCase one{0, 0};
  if (std::sscanf(value.c_str(), "%d,%d,%d,%d,%f", &one.batch, &one.context, &one.short_answer,
                  &one.long_answer, &one.temperature) < 4) {
    std::fprintf(stderr, "--grammar wants BATCH,CONTEXT,SHORT,LONG or that and TEMPERATURE\n");
    return false;
  }
  cases = {one};
  return true;
}

const LlamaRows* find_rows(const std::string& shape, int32_t num_devices) {
  for (const LlamaRows& rows : llama_rows())
    if (rows.shape == shape && rows.num_devices == num_devices) return &rows;
  std::fprintf(stderr, "no rows for %s on %d devices; there are:", shape.c_str(), num_devices);
  for (const LlamaRows& rows : llama_rows()) std::fprintf(stderr, " %s on %d", rows.shape, rows.num_devices);
  std::fprintf(stderr, "\n");
  return nullptr;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<GrammarCase> grammar_cases = {{2, 0}, {128, 0}, {128, 1}};
  std::string shape = "llama-3.1-8b", model, tokenizer;
  EngineConfig config = device_rows_config(/*max_model_len=*/32768);
  try {
    const RowOptions options(argc, argv, "start,decode,prefill,throughput,beams,prefix", config,
                             [&](const std::string& option, const std::string& value) {
                               if (option == "--shape") shape = value;
                               if (option == "--model") model = value;
                               if (option == "--tokenizer") tokenizer = value;
                               if (option == "--grammar") return take_grammar_case(value, grammar_cases);
                               return option == "--shape" || option == "--model" || option == "--tokenizer";
                             });
    const LlamaRows* rows = find_rows(shape, config.tensor_parallel_size);
    if (rows == nullptr) return 2;
    config.model = model.empty() ? make_llama_directory(shape, rows->config) : model;
    heading();
    const double begin = now();
    auto engine = std::make_unique<Engine>(config);
    generate_seconds(*engine, {request(random_prompt(16), 1)});
    if (options.wants("start")) row("engine start to first token", now() - begin, rows->start, "s");
    if (options.wants("decode")) decode_rows(*engine, *rows);
    if (options.wants("prefill")) prefill_rows(*engine, *rows);
    if (options.wants("throughput")) throughput_rows(*engine, *rows);
    if (options.wants("beams")) beam_rows(*engine);
    engine.reset();
    if (options.wants("throughput")) default_limits_row(config, *rows);
    if (options.wants("long")) long_rows(config);
    if (options.wants("prefix")) {
      prefix_rows(config);
      shared_decode_rows(config);
    }
    if (options.wants("grammar") && !tokenizer.empty()) grammar_rows(config, tokenizer, grammar_cases);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
