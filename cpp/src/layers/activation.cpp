#include "layers/activation.h"

#include <array>
#include <utility>

namespace quire {

Activation read_activation(const HfConfig& config, const std::string& key, const std::string& otherwise) {
  constexpr std::array<std::pair<const char*, Activation>, 8> kNames = {
      {{"silu", Activation::kSilu},
       {"swish", Activation::kSilu},
       {"gelu", Activation::kGelu},
       {"gelu_pytorch_tanh", Activation::kGeluTanh},
       {"gelu_new", Activation::kGeluTanh},
       {"gelu_fast", Activation::kGeluTanh},
       {"relu", Activation::kRelu},
       {"relu2", Activation::kReluSquared}}};
  const std::string found = config.get_string(key, otherwise);
  std::string known;
  for (const auto& [name, activation] : kNames) {
    if (found == name) return activation;
    known += (known.empty() ? "" : ", ") + std::string(name);
  }
  config.fail("'" + key + "' '" + found + "' is not supported; supported: " + known);
}

}  // namespace quire
