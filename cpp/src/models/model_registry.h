// Which architectures there are: each model's file registers itself under the name config.json uses.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "formats/hf_config.h"
#include "models/model.h"

namespace quire {

using ModelFactory = std::unique_ptr<Model> (*)(BuildContext& build, const HfConfig& config);
// Gives a config.json the keys that most have, where an architecture has other names for them.
using ConfigAdapter = HfConfig (*)(const HfConfig& config);

// Called before main, once for each architecture. Always true.
bool register_model(const char* architecture, ModelFactory factory, ConfigAdapter adapt = nullptr);

// All that are registered, in alphabetical order.
std::vector<std::string> known_architectures();

// A model of config.json's "architectures". Throws InvalidArgument naming what is there and what is known
// when it has none of these, and for a tensor of the checkpoint that the model has no place for.
std::unique_ptr<Model> build_model(BuildContext& build, const HfConfig& config);

// The config.json of a model that can be built, adapted. Throws InvalidArgument for an architecture that is
// not known and for quantized weights, which config.json tells of, or a file that a quantization tool left
// beside it.
HfConfig load_model_config(const std::string& directory);

}  // namespace quire
