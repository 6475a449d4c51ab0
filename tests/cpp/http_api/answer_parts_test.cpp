// Answers divided into parts, whatever pieces they come in.
#include "http_api/answer_parts.h"

#include <gtest/gtest.h>

#include "util/str.h"

namespace quire {
namespace {

// What is told, in a line: "+0text" begins a part, "0:abc" adds to it, "-0" ends it.
class Told final : public AnswerParts::Listener {
 public:
  void on_begin(const AnswerPart& part) override {
    constexpr const char* kNames[] = {"reasoning", "text", "call"};
    line += str("+", part.index, kNames[static_cast<size_t>(part.kind)], part.name, " ");
  }
  void on_text(const AnswerPart& part, std::string_view piece) override {
    line += str(part.index, ":", piece, " ");
  }
  void on_end(const AnswerPart& part) override { line += str("-", part.index, " "); }

  std::string line;
};

std::string told(const std::vector<ChatDelta>& deltas) {
  Told told;
  AnswerParts parts;
  for (const ChatDelta& delta : deltas) parts.add(delta, told);
  parts.finish(told);
  return told.line;
}

ChatDelta call(int32_t index, const std::string& name, const std::string& arguments) {
  ChatDelta delta;
  delta.tool_calls.push_back({index, name.empty() ? "" : "id", name, arguments});
  return delta;
}

TEST(AnswerPartsTest, EveryKindIsAPartAndPiecesOfOneAreJoined) {
  EXPECT_EQ(told({{.reasoning = "a", .content = "", .tool_calls = {}},
                  {.reasoning = "b", .content = "c", .tool_calls = {}},
                  {.reasoning = "", .content = "d", .tool_calls = {}}}),
            "+0reasoning 0:a 0:b -0 +1text 1:c 1:d -1 ");
}

TEST(AnswerPartsTest, BlanksBetweenPartsAreNone) {
  const ChatDelta blank{.reasoning = "", .content = "\n", .tool_calls = {}};
  const ChatDelta text{.reasoning = "", .content = "a", .tool_calls = {}};
  EXPECT_EQ(told({blank}), "");
  EXPECT_EQ(told({blank, text, blank}), "+0text 0:\na 0:\n -0 ");
  EXPECT_EQ(told({text, call(0, "f", "{}"), blank, call(1, "g", "")}),
            "+0text 0:a -0 +1callf 1:{} -1 +2callg -2 ");
}

TEST(AnswerPartsTest, TheEndOfACallComesBeforeWhatFollowsIt) {
  ChatDelta mixed = call(0, "", "}");
  mixed.content = "after";
  mixed.tool_calls.push_back({1, "id", "g", "{}"});
  EXPECT_EQ(told({call(0, "f", "{"), mixed}), "+0callf 0:{ 0:} -0 +1text 1:after -1 +2callg 2:{} -2 ");
}

}  // namespace
}  // namespace quire
