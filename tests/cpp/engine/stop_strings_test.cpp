#include "engine/stop_strings.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace quire {
namespace {

using Strings = std::vector<std::string>;

// What search() promises, found by looking for every string by itself.
std::optional<StopStrings::Match> look_for_each(const Strings& strings, std::string_view text, size_t from) {
  std::optional<StopStrings::Match> best;
  for (size_t i = 0; i < strings.size(); ++i) {
    const size_t length = strings[i].size();
    const size_t at = text.find(strings[i], from + 1 > length ? from + 1 - length : 0);
    if (at != std::string::npos && (!best || at < best->begin)) best = {at, i};
  }
  return best;
}

size_t longest_beginning(const Strings& strings, std::string_view text) {
  size_t longest = 0;
  for (const std::string& s : strings) {
    for (size_t n = std::min(s.size(), text.size()); n > longest; --n) {
      if (text.ends_with(std::string_view(s).substr(0, n))) longest = n;
    }
  }
  return longest;
}

TEST(StopStringsTest, FindWhatLookingForEachOneFinds) {
  std::mt19937 random(1);
  const auto up_to = [&](size_t n) { return random() % n; };
  const auto word = [&](size_t longest, size_t letters) {
    std::string text(1 + up_to(longest), 'a');
    for (char& c : text) c = static_cast<char>('a' + up_to(letters));
    return text;
  };
  int num_found = 0, num_not_found = 0, num_across = 0;
  for (int round = 0; round < 3000; ++round) {
    const size_t letters = 2 + up_to(3);
    Strings strings(1 + up_to(8));
    for (std::string& text : strings) text = word(8, letters);
    const StopStrings automaton(strings);
    StopStrings::State state = 0;
    std::string text;
    for (int token = 0; token < 12; ++token) {
      const size_t from = text.size();
      text += word(4, letters);
      const auto found = automaton.search(text, from, state);
      const auto expected = look_for_each(strings, text, from);
      ASSERT_EQ(found.has_value(), expected.has_value()) << text;
      if (found) {
        ASSERT_EQ(found->begin, expected->begin) << text;
        ASSERT_EQ(strings[found->index], strings[expected->index]) << text;
        ASSERT_EQ(found->index, expected->index) << "the first of equal ones";
        num_across += found->begin < from ? 1 : 0;
        ++num_found;
        break;
      }
      ASSERT_EQ(automaton.num_pending_bytes(state), longest_beginning(strings, text)) << text;
      ++num_not_found;
    }
  }
  EXPECT_GT(num_found, 1000);
  EXPECT_GT(num_not_found, 1000);
  EXPECT_GT(num_across, 300);
}

TEST(StopStringsTest, EveryByteIsALetter) {
  const Strings strings{std::string("\0\xff", 2), "\xc3\xa9"};
  const StopStrings automaton(strings);
  StopStrings::State state = 0;
  const auto found = automaton.search(std::string_view("a\0\0\xff", 4), 0, state);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->begin, 2U);
}

// A million strings in a search that looked for each, or a chain of fail links as long as the text, would
// take minutes.
TEST(StopStringsTest, ManyStringsAndLongOnesCostAByteTheSame) {
  Strings strings;
  for (int i = 0; i < 100'000; ++i) strings.push_back("stop " + std::to_string(i) + "!");
  strings.push_back(std::string(200'000, 'a') + "b");
  const StopStrings automaton(strings);
  StopStrings::State state = 0;
  const std::string text(2'000'000, 'a');
  for (size_t at = 0; at < text.size(); at += 4) {
    ASSERT_FALSE(automaton.search(std::string_view(text).substr(0, at + 4), at, state).has_value());
  }
  EXPECT_EQ(automaton.num_pending_bytes(state), 200'000U);
  const std::string stopped = text + "b";
  EXPECT_EQ(automaton.search(stopped, text.size(), state)->begin, text.size() - 200'000);
}

}  // namespace
}  // namespace quire
