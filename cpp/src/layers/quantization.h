// How the weights of a checkpoint are quantized, as its config says. Each method's file registers itself
// under the name that `quant_method` has for it.
#pragma once

#include <memory>
#include <string>

#include "formats/hf_config.h"
#include "layers/linear_method.h"

namespace quire {

class QuantizationConfig {
 public:
  virtual ~QuantizationConfig() = default;
  // By the parts' names: some may be quantized otherwise, or not at all.
  virtual std::unique_ptr<LinearMethod> make_linear_method(BuildContext& build,
                                                           const LinearShard& shard) const = 0;
  // Before tensors are taken: what a layer need not know of how they are stored. May come several times.
  virtual void prepare(Checkpoint&) const {}
  // Whether experts' weights are MXFP4, of which `prepare` makes bfloat16.
  virtual bool has_mxfp4_experts() const { return false; }
};

// Throws InvalidArgument, naming the key, for what is not supported.
using QuantizationFactory = std::shared_ptr<const QuantizationConfig> (*)(const HfConfig& section);

// Called before main. Always true.
bool register_quantization(const char* quant_method, QuantizationFactory factory);

// How a model with this config.json is quantized: its section quantization_config (or compression_config), or
// a file that a quantization tool left in `directory`. Null when there is none. Throws InvalidArgument for a
// method that is not supported.
std::shared_ptr<const QuantizationConfig> read_quantization(const HfConfig& config,
                                                            const std::string& directory);

}  // namespace quire
