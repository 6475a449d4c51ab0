// Which architectures there are: each model's file registers itself under the name config.json uses.
#pragma once

#include <memory>
#include <string>

#include "formats/hf_config.h"
#include "models/model.h"

namespace quire {

using ModelFactory = std::unique_ptr<Model> (*)(BuildContext& build, const HfConfig& config);

// Called before main, once for each architecture. Always true.
bool register_model(const char* architecture, ModelFactory factory);

// The factory for config.json's "architectures". Throws InvalidArgument naming what is there and what is
// known.
ModelFactory find_model(const HfConfig& config);

// The config.json of a model that can be built. Throws InvalidArgument for an architecture that is not known
// and for quantized weights, which config.json tells of, or a file that a quantization tool left beside it.
HfConfig load_model_config(const std::string& directory);

}  // namespace quire
