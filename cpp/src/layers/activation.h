#pragma once

#include <string>

#include "formats/hf_config.h"
#include "quire/export.h"
#include "quire/kernels/ops.h"

namespace quire QUIRE_MODEL_API {

// By the names of transformers: "silu", "gelu", "gelu_pytorch_tanh", "relu", ... Throws InvalidArgument for
// another one.
Activation read_activation(const HfConfig& config, const std::string& key, const std::string& otherwise);

}  // namespace quire
