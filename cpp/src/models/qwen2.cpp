// Qwen 2 and 2.5 (Yang et al., 2024): the plain decoder with biases on q, k and v.
#include "models/decoder.h"
#include "models/model_registry.h"
#include "models/sliding_window.h"

namespace quire {
namespace {

class Qwen2ForCausalLM final : public Decoder {
 public:
  Qwen2ForCausalLM(BuildContext& build, const HfConfig& config) : Decoder(build, config, read(config)) {}

 private:
  static DecoderConfig read(const HfConfig& config) {
    DecoderConfig out = DecoderConfig::read(config);
    out.qkv_bias = true;
    out.sliding_windows = read_sliding_windows(config, out.num_layers);
    return out;
  }
};

const bool registered_qwen2 = register_model<Qwen2ForCausalLM>("Qwen2ForCausalLM");

}  // namespace
}  // namespace quire
