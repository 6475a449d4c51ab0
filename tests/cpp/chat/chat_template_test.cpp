#include "chat/chat_template.h"

#include <gtest/gtest.h>

#include <vector>

#include "quire/error.h"
#include "util/sanitized.h"

namespace quire::chat {
namespace {

constexpr const char* kMessages =
    R"([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo "}])";

std::string rendered(const std::string& source) {
  return ChatTemplate::from_string(source, {{"bos_token", "<s>"}})->render(kMessages);
}

std::string complaint(const std::string& source, const std::string& messages = kMessages) {
  try {
    ChatTemplate::from_string(source)->render(messages);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

TEST(ChatTemplateTest, WritesEachMessageInTurn) {
  EXPECT_EQ(
      rendered("{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m['content'] | trim }}{% endfor %}"
               "{% if add_generation_prompt %}[assistant]{% endif %}"),
      "<s>[user]Hi[assistant]Yo[assistant]");
}

TEST(ChatTemplateTest, BlocksTakeTheirLineAlong) {
  EXPECT_EQ(rendered("a\n  {% if true %}\nb\n  {% endif %}\nc\n"), "a\nb\nc");
  EXPECT_EQ(rendered("a \n {{- 1 -}} \n b"), "a1b");
  EXPECT_EQ(rendered("a\n  {%+ if true %} b {% endif %}"), "a\n   b ");
  EXPECT_EQ(rendered("{% raw %}{{ x }}{% endraw %}{# gone #}"), "{{ x }}");
}

TEST(ChatTemplateTest, WhatALoopSetsIsGoneAfterItUnlessANamespaceHoldsIt) {
  EXPECT_EQ(rendered("{% set x = 1 %}{% for i in [1] %}{% set x = 2 %}{{ x }}{% endfor %}{{ x }}"), "21");
  EXPECT_EQ(
      rendered("{% set ns = namespace(x=1) %}{% for i in [1] %}{% set ns.x = 2 %}{% endfor %}{{ ns.x }}"),
      "2");
}

TEST(ChatTemplateTest, LoopsKnowWhereTheyAre) {
  EXPECT_EQ(rendered("{% for c in 'abc' if c != 'b' %}{{ loop.index }}/{{ loop.length }}{{ c }}{{ loop.last "
                     "}} {% endfor %}"),
            "1/2aFalse 2/2cTrue ");
  EXPECT_EQ(rendered("{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break "
                     "%}{% endif %}"
                     "{{ i }}{% endfor %}{% for i in [] %}{% else %}none{% endfor %}"),
            "02none");
}

TEST(ChatTemplateTest, ValuesPrintAsPythonPrintsThem) {
  EXPECT_EQ(rendered("{{ [1, 2.0, 1e16, 'a\"', \"b'\", none, true, (1,), {'k': []}] }}"),
            "[1, 2.0, 1e+16, 'a\"', \"b'\", None, True, (1,), {'k': []}]");
  EXPECT_EQ(rendered("{{ 7 // -2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 3 }} {{ 1 ~ none }}{{ missing }}"),
            "-4 2 3.5 8 1None");
}

TEST(ChatTemplateTest, IntegersBeyond64BitsAreRefused) {
  const std::string lowest = "(-9223372036854775807 - 1)";
  for (const std::string& expression :
       {std::string("9223372036854775807 + 1"), lowest + " - 1", lowest + " * 2", std::string("2 ** 63"),
        lowest + " // -1", "-" + lowest, lowest + " | abs", std::string("1e19 | int")}) {
    EXPECT_NE(complaint("{{ " + expression + " }}").find("an integer beyond 64 bits"), std::string::npos)
        << expression << ": " << complaint("{{ " + expression + " }}");
  }
  EXPECT_EQ(rendered("{{ " + lowest + " }} {{ " + lowest + " % -1 }}"), "-9223372036854775808 0");
}

TEST(ChatTemplateTest, JsonIsWrittenAsTransformersWritesIt) {
  EXPECT_EQ(rendered("{{ {'b': ['<é>', 1.5], 'a': none} | tojson }}"), R"({"b": ["<é>", 1.5], "a": null})");
  EXPECT_EQ(rendered("{{ {'b': [1], 'a': {}} | tojson(indent=2) }}"),
            "{\n  \"b\": [\n    1\n  ],\n  \"a\": {}\n}");
}

TEST(ChatTemplateTest, MacrosTakeDefaultsNamesAndCallers) {
  EXPECT_EQ(rendered("{% macro m(a, b='-') %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}{{ m(b=2, a=3) }}"),
            "1-32");
  EXPECT_EQ(
      rendered("{% macro m() %}<{{ caller(1) }}>{% endmacro %}{% call(x) m() %}{{ x + 1 }}{% endcall %}"),
      "<2>");
}

TEST(ChatTemplateTest, ToolsHaveTheirOwnVariable) {
  const auto chat_template = ChatTemplate::from_string("{{ tools is none }}{{ extra }}");
  ChatTemplate::Options options;
  EXPECT_EQ(chat_template->render(kMessages, options), "True");
  options.tools_json = R"([{"type": "function"}])";
  options.kwargs_json = R"({"extra": " x"})";
  EXPECT_EQ(chat_template->render(kMessages, options), "False x");
}

TEST(ChatTemplateTest, TheLastMessageCanBeContinued) {
  const auto chat_template =
      ChatTemplate::from_string("{% for m in messages %}({{ m.content }}){% endfor %}");
  ChatTemplate::Options options;
  options.add_generation_prompt = false;
  options.continue_final_message = true;
  EXPECT_EQ(chat_template->render(kMessages, options), "(Hi)(Yo ");
}

TEST(ChatTemplateTest, ComplaintsNameTheLine) {
  EXPECT_EQ(complaint("\n{% include 'x' %}"),
            "chat_template: line 2: the statement 'include' is not supported");
  EXPECT_EQ(complaint("\n\n{{ nobody.home }}"), "chat_template: line 3: 'nobody' is undefined");
  EXPECT_EQ(complaint("{{ raise_exception('no ' ~ messages[0].role) }}"),
            "the chat template refuses these messages: no user");
}

TEST(ChatTemplateTest, ComplaintsNameTheMessageAndTheField) {
  EXPECT_EQ(complaint("x", R"([{"role": "user"}, {"content": "x"}])"), "messages[1].role is missing");
  EXPECT_EQ(complaint("x", R"([{"role": "user", "content": 1}])"),
            "messages[0].content must be a string or a list of parts, got int");
}

TEST(ChatTemplateTest, NothingRunsForEverOrDeep) {
  std::vector<std::string> sources = {
      "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
      "{{ 'x' * 999999999 }}",
      "{{ " + std::string(100'000, '[') + std::string(100'000, ']') + " }}",
      "{{ " + std::string(100'000, '-') + "1 }}",
  };
  // As many steps as a template may take: half a minute with a sanitizer.
  if (!kSanitized)
    sources.push_back("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}");
  for (const std::string& source : sources) EXPECT_NE(complaint(source), "accepted") << source.substr(0, 60);
  EXPECT_NE(complaint("x", std::string(100'000, '[')), "accepted");
}

}  // namespace
}  // namespace quire::chat
