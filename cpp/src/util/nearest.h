// The name that somebody may have meant.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace quire {

// How many characters are put in, left out or replaced on the way from one to the other.
inline size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

// The one of `names` that the fewest changes lead to, the first of several; empty when there are none.
template <typename Names>
std::string nearest_name(std::string_view name, const Names& names) {
  std::string nearest;
  size_t fewest = std::string::npos;
  for (const auto& each : names) {
    const size_t changes = edit_distance(name, each);
    if (changes >= fewest) continue;
    fewest = changes;
    nearest = each;
  }
  return nearest;
}

// Up to `count` of `names`, those that the fewest changes lead to first.
inline std::vector<std::string> nearest_names(std::string_view name, std::vector<std::string> names,
                                              size_t count) {
  std::vector<std::pair<size_t, std::string>> found;
  for (std::string& each : names) {
    const size_t changes = edit_distance(name, each);
    found.emplace_back(changes, std::move(each));
  }
  std::ranges::sort(found);
  names.clear();
  for (size_t i = 0; i < std::min(count, found.size()); ++i) names.push_back(std::move(found[i].second));
  return names;
}

}  // namespace quire
