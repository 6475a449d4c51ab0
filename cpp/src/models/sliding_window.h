// Which layers of a Qwen-style config attend through a sliding window.
#pragma once

#include <vector>

#include "formats/hf_config.h"

namespace quire {

// Per layer: the window, or 0. With use_sliding_window false, or no sliding_window, none has one. Otherwise
// layer_types says which ("full_attention", "sliding_attention"), or, in older configs, the layers from
// max_window_layers on.
std::vector<int32_t> read_sliding_windows(const HfConfig& config, int32_t num_layers);

}  // namespace quire
