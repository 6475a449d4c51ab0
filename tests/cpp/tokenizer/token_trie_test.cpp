#include "tokenizer/token_trie.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace quire::text {
namespace {

struct TrieMatch {
  int32_t index = -1;
  size_t begin = 0, end = 0;
  bool operator==(const TrieMatch&) const = default;
};

TrieMatch find_in(const TokenTrie& trie, std::string_view text, size_t start) {
  TrieMatch match;
  match.index = trie.find(text, start, match.begin, match.end);
  return match.index >= 0 ? match : TrieMatch{};
}

// What begins first and of those the longest, place by place and string by string.
TrieMatch find_plainly(const std::vector<std::string>& strings, std::string_view text, size_t start) {
  TrieMatch match;
  for (size_t begin = start; begin < text.size() && match.index < 0; ++begin) {
    for (size_t i = 0; i < strings.size(); ++i) {
      const size_t end = begin + strings[i].size();
      if (!strings[i].empty() && end > match.end && text.substr(begin).starts_with(strings[i]))
        match = {static_cast<int32_t>(i), begin, end};
    }
  }
  return match;
}

TEST(TokenTrieTest, WhatBeginsFirstIsFoundAndOfThoseTheLongest) {
  TokenTrie trie;
  trie.insert("abcde", 0);
  trie.insert("bc", 1);
  trie.insert("ab", 2);
  trie.insert("ab", 3);
  trie.link();
  EXPECT_EQ(find_in(trie, "abcdx", 0), (TrieMatch{2, 0, 2}));
  EXPECT_EQ(find_in(trie, "abcde", 0), (TrieMatch{0, 0, 5}));
  EXPECT_EQ(find_in(trie, "abcde", 1), (TrieMatch{1, 1, 3}));
  EXPECT_EQ(find_in(trie, "acb", 0).index, -1);
  EXPECT_EQ(find_in(TokenTrie(), "a", 0).index, -1);
}

TEST(TokenTrieTest, FindsWhatAPlainSearchFinds) {
  std::mt19937 random(1);
  const auto letters = [&](size_t most) {
    std::string text(random() % (most + 1), 'a');
    for (char& c : text) c = static_cast<char>('a' + random() % 2);
    return text;
  };
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::string> strings(1 + random() % 6);
    TokenTrie trie;
    for (size_t i = 0; i < strings.size(); ++i) {
      strings[i] = letters(7);
      trie.insert(strings[i], static_cast<int32_t>(i));
    }
    trie.link();
    const std::string text = letters(24);
    for (size_t start = 0; start <= text.size(); ++start) {
      ASSERT_EQ(find_in(trie, text, start), find_plainly(strings, text, start)) << text << " from " << start;
    }
  }
}

}  // namespace
}  // namespace quire::text
