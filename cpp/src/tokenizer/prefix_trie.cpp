#include "tokenizer/prefix_trie.h"

#include <algorithm>

namespace quire::text {
namespace {

constexpr size_t kBlock = 256;
constexpr size_t kOpenBlocks = 4;  // that are tried before a new one

}  // namespace

PrefixTrie::PrefixTrie(const TokenTable& tokens, const std::vector<Entry>& entries) {
  if (entries.empty()) return;
  std::vector<Entry> sorted = entries;
  const auto token = [&](const Entry& entry) { return tokens.token(entry.id); };
  std::ranges::sort(sorted, [&](const Entry& a, const Entry& b) { return token(a) < token(b); });
  units_.resize(kBlock);
  units_[0].parent = kRoot;
  num_free_.assign(1, kBlock - 1);
  struct Task {
    uint32_t node;
    size_t begin, end, depth;  // of `sorted`: what shares the first `depth` bytes
  };
  std::vector<Task> tasks = {{0, 0, sorted.size(), 0}};
  std::vector<unsigned char> labels;
  while (!tasks.empty()) {
    auto [node, begin, end, depth] = tasks.back();
    tasks.pop_back();
    if (sorted[begin].size == depth) units_[node].id = sorted[begin++].id;
    if (begin == end) {
      units_[node].base = node;  // base ^ byte is another's child, or free: the parent tells
      continue;
    }
    const auto label_at = [&](size_t i) { return static_cast<unsigned char>(token(sorted[i])[depth]); };
    labels.clear();
    for (size_t i = begin; i < end; ++i) {
      if (labels.empty() || labels.back() != label_at(i)) labels.push_back(label_at(i));
    }
    const uint32_t base = find_base(labels);
    units_[node].base = base;
    for (const unsigned char label : labels) units_[base ^ label].parent = node;
    num_free_[base / kBlock] -= labels.size();
    for (size_t i = begin; i < end;) {
      size_t same = i;
      while (same < end && label_at(same) == label_at(i)) ++same;
      tasks.push_back({base ^ label_at(i), i, same, depth + 1});
      i = same;
    }
  }
  num_free_ = {};
}

uint32_t PrefixTrie::find_base(const std::vector<unsigned char>& labels) {
  const size_t num_blocks = units_.size() / kBlock;
  for (size_t block = num_blocks - std::min(num_blocks, kOpenBlocks); block < num_blocks; ++block) {
    if (num_free_[block] < labels.size()) continue;
    for (size_t i = 0; i < kBlock; ++i) {
      const size_t base = block * kBlock + i;
      const bool fits = std::ranges::all_of(
          labels, [&](unsigned char label) { return units_[base ^ label].parent == kFree; });
      if (fits) return static_cast<uint32_t>(base);
    }
  }
  units_.resize(units_.size() + kBlock);
  num_free_.push_back(kBlock);
  return static_cast<uint32_t>(num_blocks * kBlock);
}

}  // namespace quire::text
