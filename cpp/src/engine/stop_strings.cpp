#include "engine/stop_strings.h"

#include <algorithm>

namespace quire {

StopStrings::StopStrings(const std::vector<std::string>& strings) : nodes_(1) {
  root_.fill(kNone);
  size_t num_bytes = 0;
  for (const std::string& text : strings) num_bytes += text.size();
  nodes_.reserve(num_bytes + 1);
  for (size_t i = 0; i < strings.size(); ++i) {
    lengths_.push_back(static_cast<uint32_t>(strings[i].size()));
    uint32_t node = 0;
    for (const char c : strings[i]) {
      const auto byte = static_cast<uint8_t>(c);
      uint32_t to = child(node, byte);
      if (to == kNone) {
        to = static_cast<uint32_t>(nodes_.size());
        Node& added = nodes_.emplace_back();
        added.byte = byte;
        added.depth = nodes_[node].depth + 1;
        added.next_sibling = nodes_[node].first_child;
        nodes_[node].first_child = to;
        if (node == 0) root_[byte] = to;
      }
      node = to;
    }
    nodes_[node].match = std::min(nodes_[node].match, static_cast<uint32_t>(i));
  }

  // By depth: a node's fail link is shallower than the node.
  std::vector<uint32_t> queue{0};
  queue.reserve(nodes_.size());
  for (size_t at = 0; at < queue.size(); ++at) {
    const uint32_t parent = queue[at];
    for (uint32_t i = nodes_[parent].first_child; i != kNone; i = nodes_[i].next_sibling) {
      Node& node = nodes_[i];
      node.fail = parent == 0 ? 0 : next(nodes_[parent].fail, node.byte);
      if (node.match == kNone) node.match = nodes_[node.fail].match;
      queue.push_back(i);
    }
  }
}

uint32_t StopStrings::child(uint32_t node, uint8_t byte) const {
  if (node == 0) return root_[byte];
  uint32_t i = nodes_[node].first_child;
  while (i != kNone && nodes_[i].byte != byte) i = nodes_[i].next_sibling;
  return i;
}

uint32_t StopStrings::next(uint32_t node, uint8_t byte) const {
  for (;; node = nodes_[node].fail) {
    const uint32_t to = child(node, byte);
    if (to != kNone) return to;
    if (node == 0) return 0;
  }
}

std::optional<StopStrings::Match> StopStrings::search(std::string_view text, size_t from,
                                                      State& state) const {
  std::optional<Match> best;
  for (size_t i = from; i < text.size(); ++i) {
    state = next(state, static_cast<uint8_t>(text[i]));
    // The longest string that ends here begins first; those inside it cannot win.
    const uint32_t index = nodes_[state].match;
    if (index == kNone) continue;
    const Match match{i + 1 - lengths_[index], index};
    if (!best || match.begin < best->begin || (match.begin == best->begin && match.index < best->index))
      best = match;
  }
  return best;
}

}  // namespace quire
