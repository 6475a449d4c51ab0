#include "models/model_registry.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "formats/gguf_config.h"
#include "layers/quantization.h"
#include "quire/error.h"
#include "util/nearest.h"
#include "util/str.h"

namespace quire {
namespace {

struct Entry {
  ModelFactory factory;
  ConfigAdapter adapt;
  std::string plugin = {};  // the library's path; empty: our own
};

struct Registry {
  std::mutex mutex;
  std::map<std::string, Entry> entries;
};
// Built on first use: registration precedes main.
Registry& registry() {
  static Registry one;
  return one;
}

constexpr size_t kNumNearest = 3;

// The beginning, in whole characters, of a name that was written by anybody.
std::string_view shortened(std::string_view name) {
  constexpr size_t kMaxBytes = 200;
  size_t size = std::min(name.size(), kMaxBytes);
  while (size > 0 && size < name.size() && (static_cast<unsigned char>(name[size]) & 0xC0) == 0x80) --size;
  return name.substr(0, size);
}

std::string joined(const std::vector<std::string>& names) {
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
  return list;
}

Entry find_entry(const HfConfig& config) {
  const auto names = config.get_strings("architectures");
  Registry& all = registry();
  {
    const std::lock_guard lock(all.mutex);
    for (const std::string& name : names) {
      const auto found = all.entries.find(name);
      if (found != all.entries.end()) return found->second;
    }
  }
  const std::vector<std::string> known = get_supported_archs();
  const std::string_view found = names.empty() ? std::string_view() : shortened(names[0]);
  const bool is_cut = !names.empty() && found.size() < names[0].size();
  config.fail(str("architecture '", found, is_cut ? "..." : "", "' is not supported; supported: ",
                  joined(known), "; the nearest are ", joined(nearest_names(found, known, kNumNearest)),
                  "; a library in 'plugins' may bring it: docs/adding_a_model.md"));
}

}  // namespace

std::vector<std::string> get_supported_archs() {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  std::vector<std::string> names;
  for (const auto& [name, entry] : all.entries) names.push_back(name);
  return names;
}

bool register_model(const char* architecture, ModelFactory factory, ConfigAdapter adapt) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  all.entries[architecture] = {factory, adapt};
  return true;
}

void register_plugin_models(const std::vector<PluginModel>& models, const std::string& path) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  for (const PluginModel& model : models) {
    const auto found = all.entries.find(model.architecture);
    if (found == all.entries.end()) continue;
    const std::string& plugin = found->second.plugin;
    throw InvalidArgument(
        str("it registers '", model.architecture, "', which ",
            plugin.empty() ? "Quire has already" : "is there already, from '" + plugin + "'",
            "; give it another name, in config.json too"));
  }
  for (const PluginModel& model : models)
    all.entries[model.architecture] = {model.factory, model.adapt, path};
}

std::unique_ptr<Model> build_model(BuildContext& build, const HfConfig& config) {
  if (build.quantization != nullptr) build.quantization->prepare(build.checkpoint);
  auto model = find_entry(config).factory(build, config);
  if (model == nullptr)
    config.fail("architecture '" + config.get_strings("architectures").at(0) + "': its plugin made no model");
  build.checkpoint.check_all_taken(build.ignored_weights, build.ignored_parts);
  return model;
}

HfConfig load_model_config(const std::string& directory) {
  const HfConfig config = read_model_config(directory);
  const ConfigAdapter adapt = find_entry(config).adapt;
  read_quantization(config, directory);
  return adapt != nullptr ? adapt(config) : config;
}

HfConfig load_model_config(const EngineConfig& config) {
  for (const std::string& path : config.plugins) load_plugin(path);
  return load_model_config(config.model);
}

}  // namespace quire
