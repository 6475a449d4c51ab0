// Llama 2 and 3 (Touvron et al., 2023): the plain decoder, biases only where the config asks for them.
#include "models/decoder.h"
#include "models/model_registry.h"

namespace quire {
namespace {

class LlamaForCausalLM final : public Decoder {
 public:
  LlamaForCausalLM(BuildContext& build, const HfConfig& config) : Decoder(build, config, read(config)) {}

 private:
  static DecoderConfig read(const HfConfig& config) {
    DecoderConfig out = DecoderConfig::read(config);
    out.qkv_bias = out.o_bias = config.get_bool("attention_bias", false);
    out.mlp_bias = config.get_bool("mlp_bias", false);
    return out;
  }
};

const bool registered_llama = register_model<LlamaForCausalLM>("LlamaForCausalLM");

}  // namespace
}  // namespace quire
