#include "models/model_registry.h"

#include <map>

#include "formats/gguf_config.h"
#include "layers/quantization.h"
#include "util/nearest.h"

namespace quire {
namespace {

struct Entry {
  ModelFactory factory;
  ConfigAdapter adapt;
};

std::map<std::string, Entry>& registry() {
  static std::map<std::string, Entry> entries;  // built on first use: registration precedes main
  return entries;
}

// Of a name that was written by anybody.
constexpr size_t kMaxCompared = 200;

const Entry& find_entry(const HfConfig& config) {
  const auto names = config.get_strings("architectures");
  for (const std::string& name : names) {
    const auto found = registry().find(name);
    if (found != registry().end()) return found->second;
  }
  const std::vector<std::string> known = known_architectures();
  std::string list;
  for (const std::string& name : known) list += (list.empty() ? "" : ", ") + name;
  const std::string found = names.empty() ? std::string() : names[0];
  config.fail("architecture '" + found + "' is not supported; supported: " + list + "; the nearest is " +
              nearest_name(found.substr(0, kMaxCompared), known));
}

}  // namespace

std::vector<std::string> known_architectures() {
  std::vector<std::string> names;
  for (const auto& [name, entry] : registry()) names.push_back(name);
  return names;
}

bool register_model(const char* architecture, ModelFactory factory, ConfigAdapter adapt) {
  registry()[architecture] = {factory, adapt};
  return true;
}

std::unique_ptr<Model> build_model(BuildContext& build, const HfConfig& config) {
  if (build.quantization != nullptr) build.quantization->prepare(build.checkpoint);
  auto model = find_entry(config).factory(build, config);
  build.checkpoint.check_all_taken(build.ignored_weights, build.ignored_parts);
  return model;
}

HfConfig load_model_config(const std::string& directory) {
  const HfConfig config = read_model_config(directory);
  const ConfigAdapter adapt = find_entry(config).adapt;
  read_quantization(config, directory);
  return adapt != nullptr ? adapt(config) : config;
}

}  // namespace quire
