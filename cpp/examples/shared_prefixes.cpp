// A prefix that one engine has computed is loaded by another: quire_shared_prefixes MODEL_DIR PROMPT
#include <quire/engine.h>

#include <chrono>
#include <iostream>
#include <thread>

#include "host_memory_connector.h"

namespace {

quire::RequestOutput answer(quire::Engine& engine, const std::string& prompt) {
  quire::EngineRequest request;
  request.prompt = prompt;
  request.sampling_params.temperature = 0;
  request.sampling_params.max_tokens = 16;
  return engine.generate({request}).at(0);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return std::cerr << "usage: quire_shared_prefixes MODEL_DIR PROMPT\n", 2;
  try {
    const auto store = quire_examples::register_host_memory_connector();
    quire::EngineConfig config;
    config.model = argv[1];
    config.kv_cache_memory_bytes = 16 << 20;
    config.kv_connector = "host_memory";
    quire::Engine first(config), second(config);
    const quire::RequestOutput computed = answer(first, argv[2]);
    // A finished request's blocks are saved in a later step.
    for (int i = 0; i < 500 && store->num_blocks() == 0; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    const quire::RequestOutput loaded = answer(second, argv[2]);
    const bool equal = computed.outputs.at(0).token_ids == loaded.outputs.at(0).token_ids;
    std::cout << computed.num_cached_tokens << " then " << loaded.num_cached_tokens
              << " tokens from the store, " << (equal ? "the same answer" : "another answer") << '\n';
    return equal ? 0 : 1;
  } catch (const quire::Error& error) {
    return std::cerr << error.what() << '\n', 1;
  }
}
