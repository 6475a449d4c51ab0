// Parses a text whole and in pieces, which must come to the same.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "quire/chat_parsers.h"
#include "util/sanitized.h"

namespace quire {

// Offsets at which a text may be cut: between characters.
inline std::vector<size_t> character_ends(const std::string& text) {
  std::vector<size_t> ends = {0};
  for (size_t i = 1; i <= text.size(); ++i) {
    if (i == text.size() || (static_cast<unsigned char>(text[i]) & 0xC0) != 0x80) ends.push_back(i);
  }
  return ends;
}

inline ChatDelta parse_cut(const ChatFormat& format, const ChatParserOptions& options,
                           const std::string& text, const std::vector<size_t>& cuts) {
  const auto parser = format.parser(options);
  ChatDelta answer;
  size_t from = 0;
  for (const size_t to : cuts) {
    join(answer, parser->append(std::string_view(text).substr(from, to - from)));
    from = to;
  }
  join(answer, parser->append(std::string_view(text).substr(from)));
  join(answer, parser->finish());
  return answer;
}

// Ids are drawn anew by each parser.
inline ChatDelta without_ids(ChatDelta answer) {
  for (ToolCallDelta& call : answer.tool_calls) {
    EXPECT_FALSE(call.id.empty());
    call.id.clear();
  }
  return answer;
}

// Cut at every pair of places (of longer texts, at random ones), at every place, and at random.
inline ChatDelta parse_every_way(const ChatFormat& format, const ChatParserOptions& options,
                                 const std::string& text) {
  const ChatDelta whole = without_ids(parse_cut(format, options, text, {}));
  const std::vector<size_t> ends = character_ends(text);
  const auto check = [&](const std::vector<size_t>& cuts) {
    const ChatDelta cut = without_ids(parse_cut(format, options, text, cuts));
    EXPECT_TRUE(cut == whole) << text;
    return cut == whole;
  };
  if (!check(ends)) return whole;
  std::mt19937 random(static_cast<unsigned>(text.size()));
  constexpr size_t kMaxBytes = kSanitized ? 20'000 : 400'000;  // to parse for one sample
  const size_t max_parses = kMaxBytes / (text.size() + 1);
  const bool all = ends.size() * ends.size() / 2 <= max_parses;
  for (size_t i = 0; all && i < ends.size(); ++i) {
    for (size_t j = i; j < ends.size(); ++j) {
      if (!check({ends[i], ends[j]})) return whole;
    }
  }
  for (size_t n = 0; n < std::min<size_t>(max_parses, all ? 50 : 2000); ++n) {
    std::vector<size_t> cuts;
    const size_t step = n % 2 == 0 ? 2 + ends.size() : 2 + random() % 16;
    for (size_t i = random() % ends.size(); i < ends.size(); i += 1 + random() % step)
      cuts.push_back(ends[i]);
    if (!check(cuts)) return whole;
  }
  return whole;
}

inline ChatDelta parse_every_way(const std::string& reasoning_parser, const std::string& tool_parser,
                                 const std::string& text, const ChatParserOptions& options = {}) {
  return parse_every_way(*ChatFormat::make(reasoning_parser, tool_parser), options, text);
}

}  // namespace quire
