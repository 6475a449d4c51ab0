#include "chat/chat_template.h"

#include <gtest/gtest.h>
#include <time.h>

#include <vector>

#include "quire/error.h"
#include "util/error_of.h"
#include "util/sanitized.h"

namespace quire::chat {
namespace {

constexpr const char* kMessages =
    R"([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo "}])";

std::string rendered(const std::string& source) {
  return ChatTemplate::from_string(source, {{"bos_token", "<s>"}})->render(kMessages);
}

std::string complaint(const std::string& source, const std::string& messages = kMessages) {
  return error_of([&] { ChatTemplate::from_string(source)->render(messages); });
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
  // The most steps that a template may take are half a minute with a sanitizer.
  if (!kSanitized)
    sources.push_back("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}");
  for (const std::string& source : sources) EXPECT_NE(complaint(source), "") << source.substr(0, 60);
  EXPECT_NE(complaint("x", std::string(100'000, '[')), "");
}

TEST(ChatTemplateTest, SearchesFromTheRightFindWhatPythonFinds) {
  EXPECT_EQ(
      rendered("{% set s = 'a--b---c' %}{{ s.rsplit('--') }}{{ s.rsplit('--', 1) }}{{ s.rfind('--') }}"),
      "['a', 'b-', 'c']['a--b-', 'c']5");
  // Longer than what is looked for letter by letter.
  EXPECT_EQ(
      rendered("{% set p = 'ab' * 20 %}{% set s = 'é' ~ p ~ 'ab' ~ 'x' %}{{ s.rfind(p) }} {{ s.find(p) }} "
               "{{ s.rpartition(p) == ('éab', p, 'x') }} {{ s.rindex('x') }} {{ s.rfind(p ~ 'y') }}"),
      "3 1 True 43 -1");
}

TEST(ChatTemplateTest, SlicesAndIndicesCountCharacters) {
  EXPECT_EQ(
      rendered(
          "{% set s = 'aéü€x' %}{{ s[1:3] }} {{ s[-2:] }} {{ s[3] }} {{ s[-1] }} {{ s[9:] }} {{ s[3:1] }} "
          "{{ s[::2] }} {{ s | first }} {{ s[1:] | first }} {{ s | last }}"),
      "éü €x € x   aüx a é x");
}

TEST(ChatTemplateTest, KeysOfTuplesAreToldApart) {
  EXPECT_EQ(
      rendered("{% set d = {('a', 'b'): 1, ('ab', ''): 2, (1,): 3, '(1,)': 4, ((1,),): 5} %}"
               "{{ d[('a', 'b')] }}{{ d[('ab', '')] }}{{ d[(1.0,)] }}{{ d['(1,)'] }}{{ d[((true,),)] }}"),
      "12345");
}

double thread_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

// What costs more than it says would run for minutes here, or for ever: each takes well under two seconds.
TEST(ChatTemplateTest, WorkIsPaidForByItsSize) {
  if (kSanitized) GTEST_SKIP() << "as many steps as a template may take";
  const auto forever = [](const std::string& before, const std::string& work) {
    return before + "{% for a in range(99999) %}{% for b in range(99999) %}" + work +
           "{% endfor %}{% endfor %}";
  };
  const std::string text = "{% set t = 'a' * 4000000 %}";
  std::string many_variables;
  for (int i = 0; i < 20000; ++i) many_variables += "{% set v" + std::to_string(i) + " = 1 %}";
  const std::string sources[] = {
      forever("{% set t = 'a' * 1000000 %}{% set c = 'b' * 1000000 ~ 'a' %}", "{% set x = t.strip(c) %}"),
      "{{ ([[1]] * 1000000) | sum(start=[]) | length }}",
      forever("{% set t = 'a' * 200000 %}{% set p = 'a' * 100000 ~ 'b' %}", "{% set x = t.find(p) %}"),
      forever("{% set t = 'a' * 200000 %}{% set p = 'b' ~ 'a' * 100000 %}", "{% set x = t.rfind(p) %}"),
      forever("{% set t = 'a' * 200000 %}{% set p = 'b' ~ 'a' * 100000 %}", "{% set x = t.rsplit(p) %}"),
      forever("{% set ns = namespace(t='') %}", "{% set ns.t = ns.t + 'a' * 99 %}"),
      forever(text, "{% set x = t | upper %}"),
      forever(text, "{% set x = t.isalpha() %}"),
      forever(text, "{% set x = t | title %}"),
      forever(text, "{% set x = t.split('a') %}"),
      forever(text, "{% set x = t | join(',') %}"),
      forever(text, "{% for c in t %}{% endfor %}"),
      forever(text, "{% set x = t[3999999] %}"),
      forever(text, "{% set x = t | int %}"),
      forever(text, "{% set x = {'x': 1}[t] %}"),
      forever("{% set t = 'é' * 1000000 %}", "{% set x = t | tojson(ensure_ascii=true) %}"),
      forever("{% set t = [1] * 100000 %}{% set p = 'a' * 100000 %}",
              "{% set x = t | map('replace', p, p) | list %}"),
      forever("{% set t = range(99999) | list %}", "{% set x = t | select('in', t) | list %}"),
      forever("{% set ns = namespace(t='a' * 1000000) %}{% for i in range(140) %}{% set ns.t = (ns.t,) %}{% "
              "endfor %}",
              "{% set x = {ns.t: 1} %}"),
      forever(many_variables, "{{ nobody }}"),
  };
  for (const std::string& source : sources) {
    const double start = thread_seconds();
    const std::string why = complaint(source);
    EXPECT_NE(why.find("rendering takes too m"), std::string::npos) << source.substr(0, 200) << ": " << why;
    EXPECT_LT(thread_seconds() - start, 8) << source.substr(0, 200);
  }
}

TEST(ChatTemplateTest, NamesAreShort) {
  const std::string name(255, 'a');
  EXPECT_EQ(rendered("{% set " + name + " = 1 %}{{ " + name + " }}"), "1");
  EXPECT_EQ(complaint("{{ " + name + "a }}"), "chat_template: line 1: a name is longer than 255 bytes");
}

}  // namespace
}  // namespace quire::chat
