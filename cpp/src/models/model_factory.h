#pragma once

#include <memory>

#include "formats/hf_config.h"
#include "models/model.h"

namespace quire {

using ModelFactory = std::unique_ptr<Model> (*)(BuildContext& build, const HfConfig& config);
// Gives a config.json the keys that most have, where an architecture has other names for them.
using ConfigAdapter = HfConfig (*)(const HfConfig& config);

}  // namespace quire
