#include "engine/stop_strings.h"

namespace quire {

StopStrings::StopStrings(const std::vector<std::string>& strings) {
  for (size_t i = 0; i < strings.size(); ++i) strings_.insert(strings[i], static_cast<int32_t>(i));
  strings_.link();
}

std::optional<StopStrings::Match> StopStrings::search(std::string_view text, size_t from,
                                                      State& state) const {
  std::optional<Match> best;
  for (size_t i = from; i < text.size(); ++i) {
    state = strings_.next(state, text[i]);
    // The longest string that ends here begins first; those inside it cannot win.
    const int32_t found = strings_.match(state);
    if (found < 0) continue;
    const Match match{i + 1 - strings_.match_length(state), static_cast<size_t>(found)};
    if (!best || match.begin < best->begin || (match.begin == best->begin && match.index < best->index))
      best = match;
  }
  return best;
}

}  // namespace quire
