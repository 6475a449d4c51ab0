// Conversations, from a request's fields to the prompt, and from the answer's text to the message.
#include "quire/chat.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "quire/fields.h"
#include "util/error_of.h"

namespace quire {
namespace {

using Json = nlohmann::json;

constexpr const char* kMessages = R"([{"role": "user", "content": "Hello!"}])";
constexpr const char* kTools = R"([
  {"type": "function", "function": {"name": "weather", "parameters": {"type": "object",
    "properties": {"city": {"type": "string"}}, "required": ["city"]}}},
  {"type": "function", "function": {"name": "clock"}}])";

class ChatTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    EngineConfig config;
    config.model = QUIRE_DEMO_MODEL;
    config.num_threads = 1;
    config.kv_cache_memory_bytes = 16 << 20;
    engine_ = std::make_unique<LLMEngine>(config);
  }
  static void TearDownTestSuite() { engine_.reset(); }
  static const LLMEngine& engine() { return *engine_; }
  static std::shared_ptr<const ChatFormat> hermes() {
    return ChatFormat::make("", "hermes", engine().tokenizer());
  }
  struct Prepared {
    EngineRequest request;
    ChatAnswerOptions options;
  };
  // `fields` are ChatRequest's, and the request's own; "prompt_ids" for a prompt of the caller's.
  static Prepared prepare(const Json& fields, std::shared_ptr<const ChatFormat> format = hermes()) {
    Prepared prepared;
    ChatRequest chat;
    set_fields(prepared.request, chat, fields.dump(), "fields", /*except=*/"prompt_ids");
    if (fields.contains("prompt_ids")) prepared.request.prompt_token_ids = {1};
    prepared.options = prepare_chat(engine(), std::move(format), chat, prepared.request);
    return prepared;
  }
  static std::string complaint(Json fields, std::shared_ptr<const ChatFormat> format = hermes()) {
    if (!fields.contains("messages")) fields["messages"] = kMessages;
    return error_of([&] { prepare(fields, std::move(format)); });
  }
  static Json with_tools(const Json& choice = nullptr) {
    return {{"messages", kMessages}, {"tools", kTools}, {"tool_choice", choice}};
  }
  static Json named(const std::string& name) {
    return {{"type", "function"}, {"function", {{"name", name}}}};
  }

 private:
  static inline std::unique_ptr<LLMEngine> engine_;
};

TEST_F(ChatTest, MessagesBecomeThePromptThatTheTemplateRenders) {
  const Prepared plain = prepare({{"messages", kMessages}});
  EXPECT_EQ(plain.request.prompt, engine().apply_chat_template(kMessages));
  EXPECT_FALSE(plain.request.add_special_tokens);
  EXPECT_EQ(plain.request.sampling_params, SamplingParams());
  EXPECT_FALSE(plain.options.parser.parse_tool_calls) << "there are none";
  const Json as_values = {{"messages", Json::parse(kMessages)}, {"add_generation_prompt", false}};
  EXPECT_EQ(prepare(as_values).request.prompt,
            engine().apply_chat_template(kMessages, R"({"add_generation_prompt": false})"));
}

TEST_F(ChatTest, WhatTheTemplateReadsReachesIt) {
  const Json fields = {{"messages", kMessages},
                       {"tools", kTools},
                       {"chat_template", "{{ mood }}{% for t in tools %} {{ t.function.name }}{% endfor %}"},
                       {"chat_template_kwargs", {{"mood", "glad"}, {"enable_thinking", false}}}};
  const Prepared prepared = prepare(fields);
  EXPECT_EQ(prepared.request.prompt, "glad weather clock");
  EXPECT_EQ(prepared.options.parser.enable_thinking, false);
  EXPECT_TRUE(prepared.options.parser.parse_tool_calls);
}

// OpenAI's API has them as text, and so have our own messages.
TEST_F(ChatTest, ArgumentsOfEarlierCallsMayBeText) {
  const auto prompt = [](const char* chat_template, const Json& arguments) {
    const Json call = {{"function", {{"name", "f"}, {"arguments", arguments}}}};
    const Json message = {{"role", "assistant"}, {"content", nullptr}, {"tool_calls", Json::array({call})}};
    const Json fields = {{"messages", Json::array({message})}, {"chat_template", chat_template}};
    return prepare(fields).request.prompt;
  };
  const char* as_json = "{{ messages[0].tool_calls[0].function.arguments | tojson }}";
  EXPECT_EQ(prompt(as_json, {{"x", 1}}), R"({"x": 1})");
  EXPECT_EQ(prompt(as_json, R"({"z": [1.5], "a": "é"})"), R"({"z": [1.5], "a": "é"})");
  EXPECT_EQ(prompt(as_json, ""), "{}");
  EXPECT_EQ(prompt(as_json, R"({"x": )"), R"("{\"x\": ")") << "an answer that was cut off stays text";
  EXPECT_EQ(prompt(as_json, "5"), R"("5")");
  const char* as_text = "{{ '>' + messages[0].tool_calls[0].function.arguments }}";
  EXPECT_EQ(prompt(as_text, R"({"x": 1})"), R"(>{"x": 1})") << "where a template takes only text";
}

// As answers of calls alone come back.
TEST_F(ChatTest, AnAssistantWithoutContentSaysNothing) {
  Json message = {{"role", "assistant"}, {"content", nullptr}};
  Json fields = {{"messages", Json::array({message})},
                 {"chat_template", "{{ '<' + messages[0]['content'] + '>' }}"}};
  EXPECT_EQ(prepare(fields).request.prompt, "<>");
  message["role"] = "user";
  fields["messages"] = Json::array({message});
  EXPECT_NE(error_of([&] { prepare(fields); }).find("has no attribute 'content'"), std::string::npos);
}

// As clients write it who always write it.
TEST_F(ChatTest, NoCallsAreAsIfNotMentioned) {
  const Json message = {{"role", "assistant"}, {"content", "x"}, {"tool_calls", Json::array()}};
  const Json fields = {{"messages", Json::array({message})},
                       {"chat_template", "{{ 'tool_calls' in messages[0] }}"}};
  EXPECT_EQ(prepare(fields).request.prompt, "False");
}

// The order of properties is the author's, and the model is shown it.
TEST_F(ChatTest, ToolsKeepTheirOrder) {
  ChatRequest chat;
  EngineRequest request;
  set_fields(request, chat, R"({"tools": [{"z": 1, "a": 2}], "max_tokens": 3, "lora_name": "x"})", "body",
             /*except=*/"lora_name");
  EXPECT_EQ(chat.tools.text, R"([{"z": 1, "a": 2}])");
  EXPECT_EQ(request.sampling_params.max_tokens, 3);
}

TEST_F(ChatTest, AnAnswerThatGoesOnWithAMessageDoesNotThink) {
  const Json messages = {{{"role", "user"}, {"content", "Hi"}}, {{"role", "assistant"}, {"content", "Once"}}};
  const Prepared prepared = prepare({{"messages", messages}, {"continue_final_message", true}});
  EXPECT_TRUE(prepared.request.prompt.ends_with("Once"));
  EXPECT_EQ(prepared.options.parser.enable_thinking, false);
}

// Whatever the format's templates do by default, and whatever the template makes of its variables.
TEST_F(ChatTest, APromptThatEndsWithAMarkerSaysWhetherTheModelThinks) {
  const auto thinks = [](const char* reasoning_parser, const std::string& end) {
    Json fields = with_tools("required");
    fields["chat_template"] = "Hi<think></think> " + end;
    fields["chat_template_kwargs"] = {{"enable_thinking", end == "kwargs"}};
    const Prepared prepared = prepare(fields, ChatFormat::make(reasoning_parser, "hermes"));
    const auto& tag = prepared.request.sampling_params.structured_outputs.value().structural_tag.value().text;
    const bool has_room = tag.find("</think>") != std::string::npos;
    EXPECT_EQ(prepared.options.parser.enable_thinking, has_room) << end;
    return has_room;
  };
  for (const char* parser : {"qwen3", "deepseek_v3"}) {
    EXPECT_TRUE(thinks(parser, "<think>\n"));
    EXPECT_FALSE(thinks(parser, "<think>\n\n</think>\n\n"));
    EXPECT_FALSE(thinks(parser, "assistant"));
    EXPECT_TRUE(thinks(parser, "kwargs"));
  }
  Prepared own;
  const auto format = ChatFormat::make("qwen3", "", engine().tokenizer());
  own.request.prompt_token_ids = engine().tokenizer()->encode("Hi <think>\n\n</think>\n\n");
  EXPECT_EQ(prepare_chat(engine(), format, {}, own.request).parser.enable_thinking, false);
  own.request.prompt_token_ids = {1};
  EXPECT_EQ(prepare_chat(engine(), format, {}, own.request).parser.enable_thinking, std::nullopt);
}

TEST_F(ChatTest, AForcedChoiceIsAStructuralTag) {
  for (const char* free : {"auto", "none"}) {
    const Prepared prepared = prepare(with_tools(free));
    EXPECT_FALSE(prepared.request.sampling_params.structured_outputs) << free;
    EXPECT_EQ(prepared.options.parser.parse_tool_calls, std::string(free) == "auto");
  }
  const auto tag = [](const Json& fields) {
    return prepare(fields).request.sampling_params.structured_outputs.value().structural_tag.value().text;
  };
  EXPECT_EQ(tag(with_tools("required")), hermes()->structural_tag(kTools));
  EXPECT_EQ(tag(with_tools(named("clock"))), hermes()->structural_tag(kTools, {"clock", true, {}}));
  EXPECT_EQ(tag(with_tools(named("clock").dump())), tag(with_tools(named("clock")))) << "or its text";
  Json once = with_tools("required");
  once["parallel_tool_calls"] = false;
  EXPECT_EQ(tag(once), hermes()->structural_tag(kTools, {"", false, {}}));
}

TEST_F(ChatTest, ToolChoicesAreForPromptsOfTheCallersToo) {
  const Prepared prepared =
      prepare({{"prompt_ids", nullptr}, {"tools", kTools}, {"tool_choice", "required"}});
  EXPECT_TRUE(prepared.request.sampling_params.structured_outputs);
  EXPECT_TRUE(prepare({{"prompt_ids", nullptr}}).options.parser.parse_tool_calls);
}

TEST_F(ChatTest, WhatCannotBeIsRefusedByName) {
  const auto expect = [](const std::string& error, const char* words) {
    EXPECT_NE(error.find(words), std::string::npos) << error;
  };
  expect(complaint(with_tools("must")), "tool_choice must be \"auto\", \"none\", \"required\" or");
  expect(complaint(with_tools({{"type", "function"}})), "tool_choice must be");
  expect(complaint(with_tools({{"type", "function"}, {"function", {{"name", 3}}}})), "tool_choice must be");
  expect(complaint(with_tools(named("f"))), "tool_choice 'f' is none of the tools");
  expect(complaint({{"tool_choice", "required"}}), "there are no tools");
  expect(complaint({{"tool_choice", "auto"}, {"tools", Json::array()}}), "there are no tools");
  EXPECT_EQ(complaint({{"tool_choice", "none"}}), "");
  expect(complaint(with_tools("required"), ChatFormat::make("", "")),
         "set the parameter tool_parser to one of");
  expect(complaint(with_tools("required"), nullptr), "hermes");
  Json contradiction = with_tools(named("clock"));
  contradiction["structured_outputs"] = {{"regex", "a"}};
  expect(complaint(contradiction),
         "the function 'clock', which says what the answer is, and so does structured_outputs");
  Json endless = with_tools("required");
  endless["ignore_eos"] = true;
  expect(complaint(endless), "\"required\", which says where the answer ends; leave out ignore_eos");
  expect(complaint({{"tools", "{}"}}), "tools must be an array");
  expect(complaint({{"tools", "["}}), "tools: not valid JSON: parse error at line 1");
  expect(complaint({{"tools", 3}}), "tools must be JSON");
  expect(complaint({{"tools", {{{"type", "function"}}}}, {"tool_choice", "required"}}), "tools[0].function");
  const auto tools = [](const std::vector<std::string>& names) {
    Json all = Json::array();
    for (const std::string& name : names)
      all.push_back({{"type", "function"}, {"function", {{"name", name}}}});
    return Json{{"tools", all}, {"tool_choice", "required"}};
  };
  for (const char* name : {"a\"b", "a\nb", "a\\b", "<a>", "a b"})
    expect(complaint(tools({"clock", name})), "tools[1].function.name '");
  expect(complaint(tools({std::string(257, 'a')})), "has 257 bytes; at most 256 are possible");
  expect(complaint(tools({"clock", "clock"})), "tools[1].function.name 'clock' is that of tools[0], too");
  EXPECT_EQ(complaint(tools({"mcp.files/read-one", "łódź"})), "");
  expect(complaint({{"chat_template_kwargs", "[]"}}), "chat_template_kwargs must be an object");
  expect(complaint({{"messages", "{}"}}), "messages must be an array");
  expect(complaint({{"messages", std::string(500, '[')}}), "messages");
  expect(complaint({{"prompt_ids", nullptr}}), "give messages or a prompt, not both");
  expect(complaint({{"chat_template", "{# #}"}}), "empty prompt");
  expect(error_of([] { prepare({{"continue_final_message", true}}); }),
         "continue_final_message needs messages");
  expect(error_of([] { prepare({{"add_generation_prompt", true}}); }),
         "add_generation_prompt needs messages");
  expect(complaint({{"no_such_field", 1}}), "tool_choice");
}

const char kAnswer[] =
    "Yes.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Łódź\"}}\n</tool_call>\n"
    "<tool_call>\n{\"name\": \"clock\", \"arguments\": {}}\n</tool_call>";

TEST_F(ChatTest, AnAnswerBecomesAMessage) {
  ChatAnswerOptions options = prepare(with_tools()).options;
  Json message = Json::parse(ChatMessageWriter(options).message(kAnswer));
  EXPECT_EQ(message["role"], "assistant");
  EXPECT_EQ(message["content"], "Yes.\n");
  EXPECT_FALSE(message.contains("reasoning"));
  ASSERT_EQ(message["tool_calls"].size(), 2U);
  const Json& call = message["tool_calls"][0];
  EXPECT_EQ(call["type"], "function");
  EXPECT_FALSE(call["id"].get<std::string>().empty());
  EXPECT_EQ(call["function"], (Json{{"name", "weather"}, {"arguments", R"({"city": "Łódź"})"}}));
  message = Json::parse(ChatMessageWriter(options).message(std::string(kAnswer).substr(5)));
  EXPECT_TRUE(message["content"].is_null());
  EXPECT_EQ(ChatMessageWriter({}).message(""), R"({"role":"assistant","content":""})");
  options.parallel_tool_calls = false;
  EXPECT_EQ(Json::parse(ChatMessageWriter(options).message(kAnswer))["tool_calls"].size(), 1U);
}

TEST_F(ChatTest, DeltasJoinedAreTheMessage) {
  const auto format = ChatFormat::make("qwen3", "hermes");
  const ChatAnswerOptions options = prepare(with_tools(), format).options;
  const std::string answer = "Hm.</think>" + std::string(kAnswer);
  const Json whole = Json::parse(ChatMessageWriter(options).message(answer));
  EXPECT_EQ(whole["reasoning"], "Hm.");
  for (size_t step = 1; step < 7; ++step) {
    ChatMessageWriter writer(options);
    Json joined = {{"reasoning", ""}, {"content", ""}, {"tool_calls", Json::array()}};
    int num_roles = 0;
    for (size_t at = 0; at < answer.size();) {
      size_t end = std::min(at + step, answer.size());
      while (end < answer.size() && (answer[end] & 0xC0) == 0x80) ++end;
      const Json delta = Json::parse(writer.delta(answer.substr(at, end - at), end == answer.size()));
      at = end;
      if (delta.contains("role")) ++num_roles;
      for (const char* name : {"reasoning", "content"})
        joined[name] = joined[name].get<std::string>() + delta.value(name, "");
      for (const Json& call : delta.value("tool_calls", Json::array())) {
        Json& calls = joined["tool_calls"];
        if (call["index"] == calls.size()) {
          EXPECT_EQ(call["type"], "function");
          calls.push_back({{"name", call["function"]["name"]}, {"arguments", ""}});
        } else {
          EXPECT_FALSE(call.contains("id"));
        }
        Json& arguments = calls.back()["arguments"];
        arguments = arguments.get<std::string>() + call["function"]["arguments"].get<std::string>();
      }
    }
    EXPECT_EQ(num_roles, 1);
    EXPECT_EQ(joined["content"], whole["content"]);
    EXPECT_EQ(joined["reasoning"], whole["reasoning"]);
    ASSERT_EQ(joined["tool_calls"].size(), 2U);
    for (size_t i = 0; i < 2; ++i) EXPECT_EQ(joined["tool_calls"][i], whole["tool_calls"][i]["function"]);
  }
}

TEST_F(ChatTest, ADeltaWithoutNewsIsEmpty) {
  ChatMessageWriter writer(prepare(with_tools()).options);
  EXPECT_EQ(writer.delta("<tool_", false), "{}");
  EXPECT_EQ(writer.delta("x", false), R"({"role":"assistant","content":"<tool_x"})");
  EXPECT_EQ(writer.delta("", true), "{}");
  EXPECT_EQ(ChatMessageWriter({}).delta("", true), R"({"role":"assistant"})");
}

TEST_F(ChatTest, AnAnswerThatEndsItselfWithCallsEndsForThem) {
  const auto reason = [](const Json& choice, std::string_view text, FinishReason engines) {
    ChatMessageWriter writer(prepare(with_tools(choice)).options);
    writer.message(text);
    return std::string(writer.finish_reason(engines));
  };
  EXPECT_EQ(reason("auto", kAnswer, FinishReason::kStop), "tool_calls");
  EXPECT_EQ(reason("required", kAnswer, FinishReason::kStop), "tool_calls");
  EXPECT_EQ(reason(named("clock"), kAnswer, FinishReason::kStop), "stop");
  EXPECT_EQ(reason("none", kAnswer, FinishReason::kStop), "stop");
  EXPECT_EQ(reason("auto", "Yes.", FinishReason::kStop), "stop");
  EXPECT_EQ(reason("auto", kAnswer, FinishReason::kLength), "length");
}

}  // namespace
}  // namespace quire
