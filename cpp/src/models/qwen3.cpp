// Qwen 3 (Yang et al., 2025): the plain decoder with RMSNorm over every head of q and k.
#include "models/decoder.h"
#include "models/model_registry.h"
#include "models/sliding_window.h"

namespace quire {
namespace {

class Qwen3ForCausalLM final : public Decoder {
 public:
  Qwen3ForCausalLM(BuildContext& build, const HfConfig& config) : Decoder(build, config, read(config)) {}

 private:
  static DecoderConfig read(const HfConfig& config) {
    DecoderConfig out = DecoderConfig::read(config);
    // Its head size is not tied to the hidden size; 128 where the config is silent.
    out.head_size = config.get_int("head_dim", 1, 65536, 128);
    out.qkv_bias = out.o_bias = config.get_bool("attention_bias", false);
    out.qk_norm = true;
    out.sliding_windows = read_sliding_windows(config, out.num_layers);
    return out;
  }
};

const bool registered_qwen3 = register_model<Qwen3ForCausalLM>("Qwen3ForCausalLM");

}  // namespace
}  // namespace quire
