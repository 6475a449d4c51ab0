// A GGUF file's metadata, as the config.json that it was converted from.
#pragma once

#include "formats/gguf_weights.h"
#include "formats/hf_config.h"

namespace quire {

// Throws InvalidArgument naming the file and the key for an architecture that is not read, or whatever is
// missing or of another type.
GgufWeights::Layout gguf_layout(const GgufHeader& header);

// As `gguf_layout`; also for what the models here do not compute (experts, values of another size than keys).
HfConfig read_gguf_config(const std::string& path);

// The config of a model: a directory's config.json, or what a GGUF file says.
HfConfig read_model_config(const std::string& model);

}  // namespace quire
