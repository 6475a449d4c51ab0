// Checkpoints whose experts are MXFP4, as OpenAI publishes GPT-OSS: all else is plain. Weights are decoded
// while they are loaded, and computed in the model's dtype.
#include "layers/quantization.h"
#include "util/str.h"

namespace quire {
namespace {

class Mxfp4Config final : public QuantizationConfig {
 public:
  explicit Mxfp4Config(const HfConfig& section) {
    if (!section.has("modules_to_not_convert")) return;
    for (const std::string& name : section.get_strings("modules_to_not_convert")) {
      if (name.find("experts") != name.npos)
        section.fail(
            str("'modules_to_not_convert' has '", name, "'; experts are expected as MXFP4, all of them"));
    }
  }

  std::unique_ptr<LinearMethod> make_linear_method(BuildContext& build,
                                                   const LinearShard& shard) const override {
    return make_unquantized_linear_method(build, shard);
  }
  void prepare(Checkpoint& checkpoint) const override { checkpoint.decode_mxfp4(); }
  bool has_mxfp4_experts() const override { return true; }
};

const bool registered_mxfp4 = register_quantization("mxfp4", [](const HfConfig& section) {
  return std::shared_ptr<const QuantizationConfig>(std::make_shared<Mxfp4Config>(section));
});

}  // namespace
}  // namespace quire
