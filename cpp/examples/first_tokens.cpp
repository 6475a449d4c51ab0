// From a model directory to streamed text: quire_example MODEL_DIR PROMPT
#include <quire/engine.h>

#include <future>
#include <iostream>

int main(int argc, char** argv) {
  if (argc != 3) return std::cerr << "usage: quire_example MODEL_DIR PROMPT\n", 2;
  try {
    quire::EngineConfig config;
    config.model = argv[1];
    quire::Engine engine(config);
    quire::EngineRequest request;
    request.prompt = argv[2];
    request.sampling_params.temperature = 0;
    request.sampling_params.max_tokens = 48;
    request.sampling_params.output_kind = quire::RequestOutputKind::kDelta;
    std::promise<void> done;
    engine.add_request(request, [&done](quire::RequestOutput&& output) {
      for (const auto& completion : output.outputs) std::cout << completion.text << std::flush;
      if (output.finished) done.set_value();
    });
    done.get_future().wait();
    std::cout << '\n';
  } catch (const quire::Error& error) {
    return std::cerr << error.what() << '\n', 1;
  }
}
