#include "models/sliding_window.h"

#include <limits>

#include "util/str.h"

namespace quire {

int32_t read_window(const HfConfig& config, int32_t otherwise) {
  constexpr int32_t kMax = std::numeric_limits<int32_t>::max();
  if (config.is_null("sliding_window") || (otherwise == 0 && !config.has("sliding_window"))) return 0;
  return config.get_int("sliding_window", 1, kMax, otherwise);
}

std::vector<int32_t> read_layer_windows(const HfConfig& config, int32_t num_layers, int32_t window,
                                        const std::function<bool(int32_t layer)>& is_sliding) {
  std::vector<int32_t> windows(static_cast<size_t>(num_layers), 0);
  if (!config.has("layer_types")) {
    for (int32_t layer = 0; layer < num_layers; ++layer) {
      if (is_sliding(layer)) windows[static_cast<size_t>(layer)] = window;
    }
    return windows;
  }
  const auto types = config.get_strings("layer_types");
  if (types.size() != windows.size()) {
    config.fail(str("'layer_types' has ", types.size(), " entries, 'num_hidden_layers' is ", num_layers));
  }
  for (size_t i = 0; i < types.size(); ++i) {
    if (types[i] == "sliding_attention") {
      windows[i] = window;
    } else if (types[i] != "full_attention") {
      config.fail("'layer_types' has '" + types[i] + "'; supported: full_attention, sliding_attention");
    }
  }
  return windows;
}

std::vector<int32_t> read_qwen_windows(const HfConfig& config, int32_t num_layers) {
  constexpr int32_t kMax = std::numeric_limits<int32_t>::max();
  if (!config.get_bool("use_sliding_window", false) || !config.has("sliding_window")) {
    return std::vector<int32_t>(static_cast<size_t>(num_layers), 0);
  }
  return read_layer_windows(
      config, num_layers, config.get_int("sliding_window", 1, kMax),
      [&](int32_t layer) { return layer >= config.get_int("max_window_layers", 0, kMax); });
}

std::shared_ptr<const RotaryEmbedding> make_window_rotary(BuildContext& build, const HfConfig& config,
                                                          int32_t head_size, const char* theta_key,
                                                          double theta) {
  constexpr const char* kType = "sliding_attention";
  const auto parameters = config.get_object("rope_parameters");
  if (parameters && parameters->is_object(kType))
    return make_rotary_embedding(build, config, head_size, {.theta = theta, .layer_type = kType});
  theta = config.get_positive(theta_key, theta);
  return std::make_shared<RotaryEmbedding>(build, RotaryConfig::plain(head_size, theta));
}

}  // namespace quire
