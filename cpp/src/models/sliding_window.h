// Which layers attend through a sliding window.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "formats/hf_config.h"

namespace quire {

// Per layer `window`, or 0 where it sees everything: by the config's "layer_types" ("full_attention",
// "sliding_attention"), where that is absent by `is_sliding`.
std::vector<int32_t> read_layer_windows(const HfConfig& config, int32_t num_layers, int32_t window,
                                        const std::function<bool(int32_t layer)>& is_sliding);

// The windows of a Qwen-style config: none with use_sliding_window false, or no sliding_window; else by
// layer_types, or the layers from max_window_layers on.
std::vector<int32_t> read_qwen_windows(const HfConfig& config, int32_t num_layers);

}  // namespace quire
