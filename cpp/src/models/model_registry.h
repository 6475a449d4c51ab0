// Which architectures there are: each model's file registers itself under the name config.json uses, and
// plugin libraries (models/model_plugin.h) bring others.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "models/model_factory.h"
#include "quire/engine_config.h"
#include "quire/model_registry.h"

namespace quire {

// Called before main, once for each architecture. Always true.
bool register_model(const char* architecture, ModelFactory factory, ConfigAdapter adapt = nullptr);

struct PluginModel {
  std::string architecture;
  ModelFactory factory = nullptr;
  ConfigAdapter adapt = nullptr;
};
// All of them, or none: throws InvalidArgument for one that is known, with where it came from. `path` is the
// library's. Thread-safe.
void register_plugin_models(const std::vector<PluginModel>& models, const std::string& path);

// A model of config.json's "architectures". Throws InvalidArgument naming what is there and what is known
// when it has none of these, and for a tensor of the checkpoint that the model has no place for. Thread-safe,
// like the next.
std::unique_ptr<Model> build_model(BuildContext& build, const HfConfig& config);

// The config.json of a model that can be built, adapted. Throws InvalidArgument for an architecture that is
// not known and for quantized weights, which config.json tells of, or a file that a quantization tool left
// beside it.
HfConfig load_model_config(const std::string& directory);
// The same of config.model, once config.plugins are loaded. Throws as load_plugin besides.
HfConfig load_model_config(const EngineConfig& config);

}  // namespace quire
