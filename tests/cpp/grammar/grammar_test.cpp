// Grammars over the demo model's vocabulary: which texts they accept, and which tokens their masks permit.
#include "grammar/grammar.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <ctime>

#include "grammar/grammar_door.h"
#include "grammar/json_schema.h"
#include "quire/error.h"
#include "util/str.h"

namespace quire {
namespace {

constexpr int32_t kEos = 2;
constexpr int32_t kVocab = 4096;

class GrammarTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_grammar_compiler()) GTEST_SKIP() << "built without a grammar library";
  }
  static const std::shared_ptr<const Tokenizer>& tokenizer() {
    static const auto tokenizer = Tokenizer::load(QUIRE_DEMO_MODEL);
    return tokenizer;
  }
  static GrammarCompiler& compiler() {
    static const auto compiler = make_grammar_compiler(tokenizer(), kVocab, {kEos});
    return *compiler;
  }
  static std::unique_ptr<GrammarMatcher> matcher(const GrammarKey& key) {
    return compiler().compile(key)->make_matcher();
  }
  static bool permits(GrammarMatcher& matcher, int32_t token) {
    std::vector<int32_t> mask((kVocab + 31) / 32);
    matcher.fill_bitmask(mask);
    return (static_cast<uint32_t>(mask[static_cast<size_t>(token) / 32]) >> (token % 32) & 1U) != 0;
  }
  // Why the door refuses parameters; empty where it does not.
  static std::string refusal(StructuredOutputsParams params) {
    try {
      GrammarDoor(make_grammar_compiler(tokenizer(), kVocab, {kEos})).enter(params);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "";
  }
  // Whether `text`, as the tokenizer cuts it, is an answer: every token is permitted by the mask before it,
  // and the end after the last one.
  static bool accepts(const GrammarKey& key, const std::string& text) {
    const auto matching = matcher(key);
    for (const int32_t id : tokenizer()->encode(text, false)) {
      const bool permitted = permits(*matching, id);
      EXPECT_EQ(matching->accept_token(id), permitted) << text << ": token " << id;
      if (!permitted) return false;
    }
    return permits(*matching, kEos) && matching->accept_token(kEos) && matching->is_terminated();
  }
  static GrammarKey key_of(StructuredOutputsParams params) {
    params.validate();
    return grammar_key(params);
  }
  static GrammarKey regex(const std::string& text) { return {GrammarKind::kRegex, true, text}; }
  static GrammarKey schema(const std::string& text) { return {GrammarKind::kJsonSchema, true, text}; }
};

TEST_F(GrammarTest, ARegexMatchesTheWholeAnswer) {
  EXPECT_TRUE(accepts(regex("[0-9]{3}-[a-z]+"), "123-abc"));
  EXPECT_FALSE(accepts(regex("[0-9]{3}-[a-z]+"), "123-"));
  EXPECT_FALSE(accepts(regex("[0-9]{3}-[a-z]+"), "123-abc "));
}

TEST_F(GrammarTest, AChoiceIsOneOfItsStrings) {
  StructuredOutputsParams params;
  params.choice = {"yes", "no \"way\"\n", "ja\\ein", "\x01\x7f", "na\xc3\xafve"};
  for (const std::string& choice : *params.choice) EXPECT_TRUE(accepts(key_of(params), choice)) << choice;
  for (const char* other : {"", "ye", "yesno", "nope", "ja\\\\ein", "naive"})
    EXPECT_FALSE(accepts(key_of(params), other)) << other;
}

TEST_F(GrammarTest, EbnfAndLarkAreToldApart) {
  StructuredOutputsParams params;
  params.grammar = "# a list: of words\nroot ::= word (\", \" word)*\nword ::= [a-z]+\n";
  EXPECT_EQ(key_of(params).kind, GrammarKind::kEbnf);
  EXPECT_TRUE(accepts(key_of(params), "some, words"));
  EXPECT_FALSE(accepts(key_of(params), "some,words"));
  params.grammar = "// a list ::= of words\nstart: WORD (\", \" WORD)*\nWORD: /[a-z]+/\n";
  EXPECT_EQ(key_of(params).kind, GrammarKind::kLark);
  EXPECT_TRUE(accepts(key_of(params), "some, words"));
  EXPECT_FALSE(accepts(key_of(params), "some,words"));
}

TEST_F(GrammarTest, AJsonObjectIsAnyObjectAndNothingElse) {
  StructuredOutputsParams params;
  params.json_object = true;
  EXPECT_TRUE(accepts(key_of(params), R"({"a": [1, -2.5e3, null], "b": {"c": "\u00e9\n"}})"));
  EXPECT_TRUE(accepts(key_of(params), "{}"));
  EXPECT_FALSE(accepts(key_of(params), "[1]"));
  EXPECT_FALSE(accepts(key_of(params), R"({"a": 01})"));
}

TEST_F(GrammarTest, ASchemaIsKeptTo) {
  const auto key = schema(
      R"({"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
          "required": ["name", "age"]})");
  EXPECT_TRUE(accepts(key, R"({"name": "Ann", "age": 7})"));
  EXPECT_FALSE(accepts(key, R"({"name": "Ann", "age": -7})"));
  EXPECT_FALSE(accepts(key, R"({"name": "Ann"})"));
  EXPECT_FALSE(accepts(key, R"({"name": "Ann", "age": 7, "more": true})"));
}

std::string prepared(const std::string& text) {
  std::vector<JsonSchemaPattern> patterns;
  return prepare_json_schema(text, patterns);
}

// A schema is rewritten while it is read, and others refer to it from within.
TEST(JsonSchemaTest, SchemasReferToThoseThatTheyAreIn) {
  const std::string text = prepared(
      R"({"$defs": {"node": {"properties": {"next": {"$ref": "#/$defs/node"}, "a/b~": {"type": "object"}},
                             "additionalProperties": true, "unevaluatedProperties": false},
                    "list": {"items": {"properties": {"x": {"$ref": "#/$defs/list"}}}}},
          "properties": {"n": {"$ref": "#/$defs/node"}, "l": {"$ref": "#/$defs/list/items"}, "r": {"$ref": "#"}}})");
  EXPECT_EQ(
      text,
      R"({"$defs":{"node":{"properties":{"next":{"$ref":"#/$defs/node"},)"
      R"("a/b~":{"type":"object","additionalProperties":true}},"type":"object",)"
      R"("additionalProperties":false},"list":{"items":{"properties":{"x":{"$ref":"#/$defs/list"}},)"
      R"("type":"object","additionalProperties":false},"type":"array"}},)"
      R"("properties":{"n":{"$ref":"#/$defs/node"},"l":{"$ref":"#/$defs/list/items"},"r":{"$ref":"#"}},)"
      R"("type":"object","additionalProperties":false})");
}

TEST(JsonSchemaTest, AReferenceNamesASchema) {
  const auto complaint = [](const std::string& target) {
    try {
      prepared(R"({"properties": {"a": {"const": {"items": true}}, "b": {"$ref": ")" + target +
               R"("}}, "components": {"schemas": {"c": {"not": {}}, "d": {}}}})");
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(complaint("#/properties/a"), "");
  EXPECT_EQ(complaint("#/components/schemas/d"), "");
  EXPECT_NE(complaint("#/properties").find("'#/properties' names no schema"), std::string::npos);
  EXPECT_NE(complaint("#/properties/a/const").find("names no schema"), std::string::npos);
  EXPECT_NE(complaint("#/nowhere").find("names nothing in the schema"), std::string::npos);
  EXPECT_NE(complaint("#/components/schemas/c").find("#/components/schemas/c: not is not supported"),
            std::string::npos);
}

TEST_F(GrammarTest, SpecialTokensAreNoText) {
  const auto matching = matcher(regex(".*"));
  for (int32_t id = 0; id < kVocab; ++id) {
    if (!tokenizer()->is_special(id) || id == kEos) continue;
    EXPECT_FALSE(permits(*matching, id)) << id;
  }
}

TEST_F(GrammarTest, AMatcherGoesBack) {
  const auto key = regex("abc|abd");
  const auto matching = matcher(key);
  const auto ids = tokenizer()->encode("abc", false);
  for (const int32_t id : ids) ASSERT_TRUE(matching->accept_token(id));
  ASSERT_TRUE(matching->accept_token(kEos));
  EXPECT_TRUE(matching->is_terminated());
  matching->roll_back(static_cast<int32_t>(ids.size()) + 1);
  EXPECT_FALSE(matching->is_terminated());
  for (const int32_t id : tokenizer()->encode("abd", false)) EXPECT_TRUE(matching->accept_token(id));
}

TEST_F(GrammarTest, TextThatMustFollowIsFound) {
  const auto matching =
      matcher(schema(R"({"type": "object", "properties": {"nationality": {"type": "string"}},
                                           "required": ["nationality"], "additionalProperties": false})"));
  ASSERT_TRUE(matching->accept_token(tokenizer()->encode("{", false).at(0)));
  ASSERT_TRUE(matching->accept_token(tokenizer()->encode("\"", false).at(0)));
  EXPECT_EQ(matching->find_jump_forward_string(), "nationality\"");
}

class CountingCompiler final : public GrammarCompiler {
 public:
  void check(const GrammarKey&, std::span<const JsonSchemaPattern>) override { ++num_checks; }
  std::shared_ptr<const CompiledGrammar> compile(const GrammarKey&) override { return nullptr; }
  void cancel() override {}

  static inline int num_checks = 0;
};

// Tokens by hand, some of which are in no vocabulary of ours.
class ListTokenizer final : public Tokenizer {
 public:
  explicit ListTokenizer(std::vector<std::string> tokens) : tokens_(std::move(tokens)) {}
  std::vector<int32_t> encode(std::string_view, bool) const override { return {}; }
  Encoding encode_with_offsets(std::string_view, bool) const override { return {}; }
  std::string decode(std::span<const int32_t>, bool) const override { return ""; }
  std::unique_ptr<IncrementalDetokenizer> detokenizer(bool) const override { return nullptr; }
  int32_t vocab_size() const override { return static_cast<int32_t>(tokens_.size()); }
  std::optional<std::string> id_to_token(int32_t) const override { return std::nullopt; }
  std::optional<int32_t> token_to_id(std::string_view) const override { return std::nullopt; }
  bool is_special(int32_t) const override { return false; }
  std::string_view token_bytes(int32_t id) const override { return tokens_[static_cast<size_t>(id)]; }
  size_t max_token_bytes() const override { return 8; }

 private:
  std::vector<std::string> tokens_;
};

TEST_F(GrammarTest, AMaskPermitsWhatIsThenAccepted) {
  const std::vector<std::string> tokens = {"<eos>", "-",     "-1", "-a",   "-\xe0", "-\xf0",
                                           "-\xe1", " \xf0", "1",  "\xe0", "0"};
  const auto few = make_grammar_compiler(std::make_shared<ListTokenizer>(tokens),
                                         static_cast<int32_t>(tokens.size()), {0});
  for (const char* text : {R"({"type": "integer"})", R"({"type": "array", "items": {"type": "integer"}})"}) {
    const auto grammar = few->compile(schema(text));
    const auto matching = grammar->make_matcher();
    std::vector<int32_t> mask(1);
    matching->fill_bitmask(mask);
    for (size_t id = 0; id < tokens.size(); ++id) {
      const bool permitted = (static_cast<uint32_t>(mask[0]) >> id & 1U) != 0;
      EXPECT_EQ(grammar->make_matcher()->accept_token(static_cast<int32_t>(id)), permitted) << tokens[id];
    }
  }
}

// A mask permits each token that is then accepted, and no other.
void expect_mask_as_accepted(GrammarMatcher& matcher, const std::string& where) {
  std::vector<int32_t> mask((kVocab + 31) / 32);
  matcher.fill_bitmask(mask);
  for (int32_t id = 0; id < kVocab; ++id) {
    const bool permitted = (static_cast<uint32_t>(mask[static_cast<size_t>(id) / 32]) >> (id % 32) & 1U) != 0;
    const bool accepted = matcher.accept_token(id);
    if (accepted) matcher.roll_back(1);
    ASSERT_EQ(permitted, accepted) << where << ": token " << id;
  }
}

// Masks are found by automata and by parsing, for one grammar and for those behind it.
TEST_F(GrammarTest, MasksThatGrammarsShareAreThoseOfEach) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"type": "object", "properties": {"a": {"type": "string", "maxLength": 9}}, "required": ["a"]})",
       R"({"a": "six é漢"})"},
      {R"({"type": "object", "properties": {"a": {"type": "string", "minLength": 2, "maxLength": 300},
                                            "b": {"type": "string"}}, "required": ["a", "b"]})",
       R"({"a": "of any length", "b": "\"quoted\" and more"})"},
      {R"({"type": "object", "properties": {"name": {"type": "string"}, "b": {"type": "string", "maxLength": 9}},
           "required": ["name", "b"]})",
       R"({"name": "x", "b": "seven"})"},
      {R"({"type": "array", "items": {"type": "string", "pattern": "^[a-z ]+[0-9]{2,4}$"}})",
       R"(["some day 1234"])"},
      {R"({"enum": ["red", "green and blue", 7, null]})", R"("green and blue")"},
      {R"({"$defs": {"n": {"type": "object", "properties": {"t": {"type": "string"}, "c": {"type": "array",
           "items": {"$ref": "#/$defs/n"}}}, "required": ["t", "c"]}}, "$ref": "#/$defs/n"})",
       R"({"t": "up", "c": [{"t": "down", "c": []}]})"},
      {R"({"type": "array", "items": {"type": ["string", "number", "boolean"]}})", R"(["x", -1.5e3, true])"},
  };
  const auto shared = make_grammar_compiler(tokenizer(), kVocab, {kEos});
  for (int round = 0; round < 2; ++round) {
    for (const auto& [text, document] : cases) {
      const auto matching = shared->compile(schema(prepared(text)))->make_matcher();
      for (const int32_t id : tokenizer()->encode(document, false)) {
        expect_mask_as_accepted(*matching, text);
        ASSERT_TRUE(matching->accept_token(id)) << text << ": " << tokenizer()->token_bytes(id);
      }
      EXPECT_TRUE(permits(*matching, kEos)) << text;
    }
  }
}

// A rule's masks depend on what comes behind it: equal rules of two grammars do not share them where that
// differs.
TEST_F(GrammarTest, MasksKnowWhatFollowsARule) {
  const std::string word = " @word ::= letter{0,12} @letter ::= [a-zA-Z ,;0-9]";
  const std::pair<std::string, std::string> cases[] = {
      {"root ::= word \"(\" word \")\"" + word, "one, two(three; 4)"},
      {"root ::= word \"[\" word \"]\"" + word, "one, two[three; 4]"},
      {"root ::= (\"<\" word \">\")+" + word, "<one><two>"},
      {"root ::= word | \"(\" root \")\"" + word, "((one))"},
      {"root ::= word end @end ::= \"\" | \".\" root" + word, "one.two.three"},
  };
  const auto shared = make_grammar_compiler(tokenizer(), kVocab, {kEos});
  for (const auto& [text, answer] : cases) {
    GrammarKey key{GrammarKind::kEbnf, true, text};
    std::ranges::replace(key.text, '@', '\n');
    const auto matching = shared->compile(key)->make_matcher();
    for (const int32_t id : tokenizer()->encode(answer, false)) {
      expect_mask_as_accepted(*matching, text);
      ASSERT_TRUE(matching->accept_token(id)) << text << ": " << tokenizer()->token_bytes(id);
    }
    EXPECT_TRUE(permits(*matching, kEos)) << text;
  }
}

TEST_F(GrammarTest, TheDoorLetsInAgainWhatItHasLetIn) {
  GrammarDoor door(std::make_shared<CountingCompiler>());
  StructuredOutputsParams params;
  const std::string text = R"({"type": "object", "properties": {"a": {"type": "integer"}}})";
  for (int i = 0; i < 3; ++i) {
    params.json = JsonText{text};
    door.enter(params);
    EXPECT_EQ(params.json->text, prepared(text));
  }
  EXPECT_EQ(CountingCompiler::num_checks, 1);
  params.json = JsonText{R"({"not": {}})"};
  for (int i = 0; i < 2; ++i) EXPECT_THROW(door.enter(params), InvalidArgument);
  EXPECT_EQ(params.json->text, R"({"not": {}})");
}

// Characters that JSON escapes are no part of an answer as they are, which is how patterns are kept to.
TEST_F(GrammarTest, APatternIsOfTextThatJsonWritesAsItIs) {
  const auto refusal_of = [](const std::string& schema) {
    StructuredOutputsParams params;
    params.json = JsonText{schema};
    return refusal(params);
  };
  const std::string pattern = R"({"type": "string", "pattern": ")";
  for (const char* kept :
       {"[a-z]{3}", ".*", "[^a]+", R"(a|\"b)", R"(\\S+)", "é[äöü]*", R"(é[^\"\\\\\\x00-\\x1f])"})
    EXPECT_EQ(refusal_of(pattern + kept + "\"}"), "") << kept;
  for (const char* refused : {R"(C:\\\\[a-z]{3})", R"(a\"b)", R"(a\\nb)", R"(\\x22)", R"(\\u005c)",
                              R"([\"\\\\])", R"([\\x00-\\x1f])", R"(a\\tb)", "é.", "é[^a]"})
    EXPECT_NE(refusal_of(pattern + refused + "\"}").find("#: pattern '"), std::string::npos) << refused;
  EXPECT_NE(
      refusal_of(R"({"type": "object", "properties": {"p": {"items": {"type": "string", "pattern": "\""}}}})")
          .find("#/properties/p/items: pattern '\"'"),
      std::string::npos);
  EXPECT_NE(refusal_of(R"({"type": "object", "patternProperties": {"^\"$": {"type": "null"}}})")
                .find("pattern '^\"$'"),
            std::string::npos);
  EXPECT_NE(refusal_of(R"({"type": "object", "propertyNames": {"pattern": "\"+"}})").find("pattern '\"+'"),
            std::string::npos);
}

TEST_F(GrammarTest, AnEmailIsJsonText) {
  const auto key = schema(prepared(R"({"type": "string", "format": "email"})"));
  EXPECT_TRUE(accepts(key, R"("a.b+c@mail.example.org")"));
  EXPECT_FALSE(accepts(key, R"("\"a\q\"@example.org")"));
  EXPECT_FALSE(accepts(key, R"("a.b")"));
}

TEST_F(GrammarTest, OnlyCharactersAreNamed) {
  const auto of_regex = [](const std::string& regex) {
    StructuredOutputsParams params;
    params.regex = regex;
    return refusal(params);
  };
  for (const char* none : {"\\u{110000}", "a\\ud800", "[\\ud800-\\udfff]", "[\\u{110000}]"})
    EXPECT_NE(of_regex(none).find("is no character"), std::string::npos) << none;
  for (const char* some : {"\\u{10ffff}", "\\ud7ff", "[^a]", "é😀", "[\\u0000-\\u{10ffff}]"})
    EXPECT_EQ(of_regex(some), "") << some;
  StructuredOutputsParams params;
  params.grammar = R"(root ::= "\ud800")";
  EXPECT_NE(refusal(params).find("code point 55296 is no character"), std::string::npos);
}

// What is wrong is said, and every hostile grammar ends within the limit.
TEST_F(GrammarTest, HostileGrammarsEndAtALimit) {
  std::vector<GrammarKey> keys;
  std::string text = "a";
  for (int i = 0; i < 12; ++i) text = "(" + text + "|" + text + "b)*";
  keys.push_back(regex(text));
  keys.push_back(regex("((a{1,500}){1,500}){1,500}"));
  keys.push_back(regex(".*.*.*.*.*.*.*.*.*.*x"));
  keys.push_back(regex("(a|b)*a" + std::string(40, '.')));
  keys.push_back(regex(std::string(100000, '(')));
  keys.push_back(regex(std::string(20000, '(') + "a" + std::string(20000, ')')));
  text = "root ::= ";
  for (int i = 0; i < 10000; ++i)
    text += str(i > 0 ? " | " : "", "\"alternative number ", i * 7919, " of many\"");
  keys.push_back({GrammarKind::kEbnf, true, text});
  keys.push_back({GrammarKind::kEbnf, true, "root ::= root root | root \"a\" | \"a\""});
  keys.push_back({GrammarKind::kEbnf, true, "root ::= root"});
  text = R"({"type": "object", "properties": {)";
  for (int i = 0; i < 20000; ++i)
    text += str(i > 0 ? ", " : "", "\"p", i, R"(": {"type": "string", "pattern": "[a-z]{3,9}"})");
  keys.push_back(schema(text + "}}"));
  text = R"({"type": "string"})";
  for (int i = 0; i < 150; ++i) text = R"({"type": "array", "items": )" + text + "}";
  keys.push_back(schema(text));
  text = R"({"type": "string"})";
  for (int i = 0; i < 14; ++i) text = R"({"anyOf": [)" + text + ", " + text + "]}";
  keys.push_back(schema(text));
  keys.push_back(schema(R"({"type": "array", "items": {"type": "integer"}, "minItems": 1000000})"));
  keys.push_back(schema(R"({"type": "string", "minLength": 100000000})"));
  keys.push_back(schema(R"({"$ref": "#"})"));
  keys.push_back(
      schema(R"({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"})"));
  keys.push_back({GrammarKind::kLark, true, "start: start start | \"a\""});
  for (size_t i = 0; i < keys.size(); ++i) {
    timespec before{}, after{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &before);
    std::string outcome = "compiled";
    try {
      const auto matching = matcher(keys[i]);
      for (int step = 0; step < 20 && !matching->is_terminated(); ++step) {
        std::vector<int32_t> mask((kVocab + 31) / 32);
        matching->fill_bitmask(mask);
        const auto word = std::find_if(mask.begin(), mask.end(), [](int32_t w) { return w != 0; });
        if (word == mask.end()) break;
        const auto bit = std::countr_zero(static_cast<uint32_t>(*word));
        matching->accept_token(static_cast<int32_t>(word - mask.begin()) * 32 + bit);
      }
    } catch (const InvalidArgument& error) {
      outcome = std::string(error.what()).substr(0, 150);
    }
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &after);
    const double seconds = static_cast<double>(after.tv_sec - before.tv_sec) +
                           static_cast<double>(after.tv_nsec - before.tv_nsec) * 1e-9;
    // Far above the limits, which sanitizers stretch, and far below what a hostile one would take.
    EXPECT_LT(seconds, 30.0) << keys[i].text.substr(0, 80) << ": " << outcome;
  }
}

}  // namespace
}  // namespace quire
