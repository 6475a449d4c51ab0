// What the routers of a mixture of experts do.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace quire {

// How many tokens each expert of one layer was chosen by, since the engine was made. The last layer routes
// those whose logits are wanted, and of a prompt's others only such as a short step has.
struct ExpertLoad {
  std::string layer;  // by its name in the checkpoint: "model.layers.0.mlp"
  std::vector<uint64_t> num_tokens;
};

}  // namespace quire
