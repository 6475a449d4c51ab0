// Which layers attend through a sliding window.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "formats/hf_config.h"
#include "layers/rotary_embedding.h"
#include "quire/export.h"

namespace quire QUIRE_MODEL_API {

// The config's "sliding_window": 0, none, where it is null, or absent and `otherwise` is 0.
int32_t read_window(const HfConfig& config, int32_t otherwise);

// Per layer `window`, or 0 where it sees everything: by the config's "layer_types" ("full_attention",
// "sliding_attention"), where that is absent by `is_sliding`.
std::vector<int32_t> read_layer_windows(const HfConfig& config, int32_t num_layers, int32_t window,
                                        const std::function<bool(int32_t layer)>& is_sliding);

// The windows of a Qwen-style config: none with use_sliding_window false, or no sliding_window; else by
// layer_types, or the layers from max_window_layers on.
std::vector<int32_t> read_qwen_windows(const HfConfig& config, int32_t num_layers);

// The rotary embedding of layers with windows, where others have another one: rope_parameters'
// "sliding_attention", or, as config.json said it before transformers 5, one without a scaling, whose base is
// under `theta_key`.
std::shared_ptr<const RotaryEmbedding> make_window_rotary(BuildContext& build, const HfConfig& config,
                                                          int32_t head_size, const char* theta_key,
                                                          double theta);

}  // namespace quire
