#include "util/aho_corasick.h"

namespace quire {

void AhoCorasick::insert(std::string_view text, int32_t index) {
  if (text.empty()) return;
  State node = kStart;
  for (const char byte : text) {
    State to = child(node, byte);
    if (to == kNone) {
      to = static_cast<State>(nodes_.size());
      Node made;
      made.depth = nodes_[node].depth + 1;
      made.next_sibling = nodes_[node].first_child;
      made.byte = byte;
      nodes_[node].first_child = to;
      if (node == kStart) first_bytes_[static_cast<unsigned char>(byte)] = to;
      nodes_.push_back(made);
    }
    node = to;
  }
  if (nodes_[node].index < 0) nodes_[node].index = index;
}

void AhoCorasick::link() {
  // Shorter beginnings first: links lead to shorter ones.
  std::vector<State> queue{kStart};
  queue.reserve(nodes_.size());
  for (size_t at = 0; at < queue.size(); ++at) {
    const State parent = queue[at];
    for (State node = nodes_[parent].first_child; node != kNone; node = nodes_[node].next_sibling) {
      Node& made = nodes_[node];
      made.fail = parent == kStart ? kStart : next(nodes_[parent].fail, made.byte);
      made.match = made.index >= 0 ? node : nodes_[made.fail].match;
      queue.push_back(node);
    }
  }
}

}  // namespace quire
