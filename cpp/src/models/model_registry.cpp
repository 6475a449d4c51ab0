#include "models/model_registry.h"

#include <map>

#include "formats/gguf_config.h"
#include "layers/quantization.h"

namespace quire {
namespace {

std::map<std::string, ModelFactory>& registry() {
  static std::map<std::string, ModelFactory> factories;  // built on first use: registration precedes main
  return factories;
}

}  // namespace

bool register_model(const char* architecture, ModelFactory factory) {
  registry()[architecture] = factory;
  return true;
}

ModelFactory find_model(const HfConfig& config) {
  const auto names = config.get_strings("architectures");
  for (const std::string& name : names) {
    const auto found = registry().find(name);
    if (found != registry().end()) return found->second;
  }
  std::string known;
  for (const auto& [name, factory] : registry()) known += (known.empty() ? "" : ", ") + name;
  config.fail("architecture '" + (names.empty() ? std::string() : names[0]) +
              "' is not supported; supported: " + known);
}

HfConfig load_model_config(const std::string& directory) {
  HfConfig config = read_model_config(directory);
  find_model(config);
  read_quantization(config, directory);
  return config;
}

}  // namespace quire
