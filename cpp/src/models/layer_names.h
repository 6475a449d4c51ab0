#pragma once

#include <string>

namespace quire {

// What a checkpoint calls the parts of a layer.
struct LayerNames {
  std::string layer = {};  // with which all of them begin: "model.layers.3"
  std::string input_norm = "input_layernorm";
  std::string attention = "self_attn";
  std::string post_attention_norm = "post_attention_layernorm";
  std::string feed_forward = "mlp";  // empty: its parts are the layer's

  std::string of(const std::string& part) const { return part.empty() ? layer : layer + "." + part; }
};

}  // namespace quire
