#include "models/sliding_window.h"

#include <limits>

namespace quire {

std::vector<int32_t> read_sliding_windows(const HfConfig& config, int32_t num_layers) {
  constexpr int32_t kMax = std::numeric_limits<int32_t>::max();
  if (!config.get_bool("use_sliding_window", false) || !config.has("sliding_window")) return {};
  const int32_t window = config.get_int("sliding_window", 1, kMax);
  std::vector<int32_t> windows(static_cast<size_t>(num_layers), 0);
  if (config.has("layer_types")) {
    const auto types = config.get_strings("layer_types");
    if (types.size() != windows.size()) {
      config.fail("'layer_types' has " + std::to_string(types.size()) + " entries, 'num_hidden_layers' is " +
                  std::to_string(num_layers));
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
  const int32_t first = config.get_int("max_window_layers", 0, kMax);
  for (int32_t i = first; i < num_layers; ++i) windows[static_cast<size_t>(i)] = window;
  return windows;
}

}  // namespace quire
