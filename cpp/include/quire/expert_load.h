// What the routers of a mixture of experts do.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace quire {

// How many tokens each expert of one layer was chosen by, since the engine was made.
struct ExpertLoad {
  std::string layer;  // by its name in the checkpoint: "model.layers.0.mlp"
  std::vector<uint64_t> num_tokens;
};

}  // namespace quire
