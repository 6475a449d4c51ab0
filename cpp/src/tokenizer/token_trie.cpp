#include "tokenizer/token_trie.h"

namespace quire::text {

uint32_t TokenTrie::child(uint32_t node, char byte) const {
  if (node == kRoot) return first_bytes_[static_cast<unsigned char>(byte)];
  uint32_t next = nodes_[node].first_child;
  while (next != kNone && nodes_[next].byte != byte) next = nodes_[next].next_sibling;
  return next;
}

void TokenTrie::insert(std::string_view text, int32_t index) {
  if (text.empty()) return;
  if (nodes_.empty()) nodes_.emplace_back();
  uint32_t node = kRoot;
  for (const char byte : text) {
    uint32_t next = child(node, byte);
    if (next == kNone) {
      next = static_cast<uint32_t>(nodes_.size());
      Node& parent = nodes_[node];
      Node made;
      made.depth = parent.depth + 1;
      made.next_sibling = parent.first_child;
      made.byte = byte;
      parent.first_child = next;
      if (node == kRoot) first_bytes_[static_cast<unsigned char>(byte)] = next;
      nodes_.push_back(made);
    }
    node = next;
  }
  if (nodes_[node].index < 0) nodes_[node].index = index;
}

void TokenTrie::link() {
  if (nodes_.empty()) return;
  // Shorter beginnings first: links lead to shorter ones.
  std::vector<uint32_t> queue{kRoot};
  for (size_t i = 0; i < queue.size(); ++i) {
    const uint32_t parent = queue[i];
    for (uint32_t node = nodes_[parent].first_child; node != kNone; node = nodes_[node].next_sibling) {
      queue.push_back(node);
      Node& made = nodes_[node];
      if (parent != kRoot) {
        uint32_t from = nodes_[parent].fail;
        while (from != kRoot && child(from, made.byte) == kNone) from = nodes_[from].fail;
        made.fail = child(from, made.byte);
      }
      made.match = made.index >= 0 ? node : nodes_[made.fail].match;
    }
  }
}

int32_t TokenTrie::find(std::string_view text, size_t start, size_t& begin, size_t& end) const {
  if (nodes_.empty()) return -1;
  int32_t found = -1;
  uint32_t node = kRoot;  // the longest beginning that the text ends with, as far as it has been read
  for (size_t pos = start; pos < text.size(); ++pos) {
    uint32_t next = child(node, text[pos]);
    while (next == kNone && node != kRoot) {
      node = nodes_[node].fail;
      // What is to come begins behind what was found.
      if (found >= 0 && pos - nodes_[node].depth > begin) return found;
      next = child(node, text[pos]);
    }
    node = next;  // the root when there is none
    const uint32_t match = nodes_[node].match;
    if (match == kNone) continue;
    const size_t match_begin = pos + 1 - nodes_[match].depth;
    if (found >= 0 && match_begin > begin) continue;
    found = nodes_[match].index;
    begin = match_begin;
    end = pos + 1;
  }
  return found;
}

}  // namespace quire::text
