// Writes what an engine with adapters says at every position of a batch of prompts, for the parity tests in
// Python.
//
//   quire_lora_logprobs MODEL_DIR OUT_FILE [FIELD=VALUE | NAME:PATH]... < prompts
//
// FIELD is one of EngineConfig's; NAME:PATH is an adapter. A prompt is a line: an adapter's name, or "-" for
// none, and token ids, separated by blanks. They are given to the engine at once. OUT_FILE gets, one prompt
// after the other, [T - 1, V] float32 log-probabilities: of all of the vocabulary, behind each token but the
// last.
#include <quire/engine.h>
#include <quire/fields.h>

#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace quire {
namespace {

std::vector<EngineRequest> read_prompts(std::istream& in) {
  std::vector<EngineRequest> requests;
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    EngineRequest& request = requests.emplace_back();
    words >> request.lora_name;
    if (request.lora_name == "-") request.lora_name.clear();
    request.prompt_token_ids.assign(std::istream_iterator<int32_t>(words), {});
    request.sampling_params.temperature = 0;
    request.sampling_params.max_tokens = 1;
    request.sampling_params.prompt_logprobs = -1;
    request.sampling_params.detokenize = false;
  }
  return requests;
}

void write_logprobs(std::ostream& out, const RequestOutput& output, size_t vocab_size) {
  const CompletionOutput& completion = output.outputs.at(0);
  if (!completion.error.empty()) throw Error(completion.error);
  std::vector<float> row(vocab_size);
  for (size_t t = 1; t < output.prompt_logprobs->size(); ++t) {
    for (const Logprob& entry : (*output.prompt_logprobs)[t])
      row.at(static_cast<size_t>(entry.token_id)) = entry.logprob;
    out.write(reinterpret_cast<const char*>(row.data()),
              static_cast<std::streamsize>(row.size() * sizeof(float)));
  }
}

void run(int argc, char** argv) {
  EngineConfig config;
  config.model = argv[1];
  config.skip_tokenizer_init = true;
  config.enable_lora = true;
  config.max_logprobs = -1;
  std::vector<LoraRequest> adapters;
  for (int i = 3; i < argc; ++i) {
    const std::string argument = argv[i];
    const size_t end = argument.find_first_of("=:");
    if (end == std::string::npos) throw InvalidArgument("neither FIELD=VALUE nor NAME:PATH: " + argument);
    const std::string name = argument.substr(0, end), value = argument.substr(end + 1);
    if (argument[end] == '=') {
      set_field(config, name, value);
    } else {
      adapters.push_back({.lora_name = name, .lora_path = value});
    }
  }
  Engine engine(config);
  for (const LoraRequest& adapter : adapters) engine.add_lora(adapter);
  std::ofstream out(argv[2], std::ios::binary);
  for (const RequestOutput& output : engine.generate(read_prompts(std::cin)))
    write_logprobs(out, output, static_cast<size_t>(engine.model().vocab_size));
  if (!out.flush()) throw Error(std::string(argv[2]) + " cannot be written");
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: %s MODEL_DIR OUT_FILE [FIELD=VALUE | NAME:PATH]... < prompts\n", argv[0]);
    return 2;
  }
  try {
    quire::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
