// What C gives, as what the engine takes.
#include "c_api/arguments.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <limits>

#include "formats/json.h"
#include "util/error_of.h"

namespace quire::c_api {
namespace {

quire_submission text_of(const char* text, const char* params = nullptr) {
  quire_submission submission{};
  submission.struct_size = sizeof submission;
  submission.text = text;
  submission.text_size = std::string_view(text).size();
  submission.params_json = params;
  return submission;
}

TEST(CApiTest, TheFirstVersionsStructsStayAsTheyAre) {
  EXPECT_EQ(kFirstOptionsSize, offsetof(quire_engine_options, config_json) + sizeof(const char*));
  EXPECT_EQ(kFirstEventSize, offsetof(quire_event, finished) + sizeof(int32_t));
  EXPECT_EQ(kFirstSubmissionSize, offsetof(quire_submission, user_data) + sizeof(void*));
  EXPECT_EQ(kFirstStatsSize, offsetof(quire_engine_stats, kv_cache_usage) + sizeof(double));
  EXPECT_EQ(kFirstLoraSize, offsetof(quire_lora, load_inplace) + sizeof(int32_t));
  EXPECT_EQ(offsetof(quire_event, json), 16U);
  EXPECT_EQ(offsetof(quire_submission, callback), 56U);
  EXPECT_EQ(offsetof(quire_engine_stats, kv_cache_usage), 80U);
}

TEST(CApiTest, AStructOfAnotherVersionIsTakenAsFarAsBothKnowIt) {
  struct Newer {
    quire_engine_options known;
    uint64_t added;
  } newer{{sizeof(Newer), "directory", nullptr}, 0};
  EXPECT_STREQ(read_struct(&newer.known, kFirstOptionsSize, "options").model, "directory");
  newer.added = 1;
  EXPECT_NE(error_of([&] { read_struct(&newer.known, kFirstOptionsSize, "options"); }).find("not zero"),
            std::string::npos);

  struct NewerStats {
    quire_engine_stats known;
    uint64_t added;
  } out{};
  out.known.struct_size = sizeof out;
  out.added = 7;
  quire_engine_stats stats{};
  stats.num_steps = 3;
  write_struct(stats, &out.known);
  EXPECT_EQ(out.known.struct_size, sizeof out);
  EXPECT_EQ(out.known.num_steps, 3U);
  EXPECT_EQ(out.added, 0U);
}

TEST(CApiTest, ASizeThatIsNoneIsRefused) {
  quire_engine_options options{};
  for (const size_t size : {size_t{0}, size_t{16}, size_t{4097}, std::numeric_limits<size_t>::max()}) {
    options.struct_size = size;
    EXPECT_EQ(error_of([&] { read_struct(&options, kFirstOptionsSize, "options"); }),
              str("options->struct_size must be sizeof of the struct, 24 in this version, got ", size));
  }
  EXPECT_EQ(error_of([] { struct_size<quire_event>(nullptr, kFirstEventSize, "event"); }),
            "event is null; give the address of one");
}

TEST(CApiTest, ASubmissionIsABodyOfTheRequestApi) {
  EXPECT_EQ(request_body(text_of("a\"b")).text, R"({"prompt":"a\"b"})");
  EXPECT_EQ(request_body(text_of("a", " { \"max_tokens\": 3 } ")).text,
            "{\"prompt\":\"a\", \"max_tokens\": 3 } ");
  quire_submission ids{};
  const int32_t given[] = {1, -2};
  ids.token_ids = given;
  ids.num_token_ids = 2;
  EXPECT_EQ(request_body(ids).text, R"({"prompt":[1,-2]})");
  quire_submission chat{};
  chat.messages_json = R"([{"role": "user"}])";
  chat.params_json = R"({"n": 2})";
  EXPECT_EQ(request_body(chat).text, R"({"messages":[{"role": "user"}],"n": 2})");
  EXPECT_EQ(request_body(chat).route, HttpRoute::kChatCompletions);
}

TEST(CApiTest, WhatIsNoSubmissionIsRefusedByName) {
  const auto refusal = [](const quire_submission& submission) {
    return error_of([&] { request_body(submission); });
  };
  EXPECT_NE(refusal({}).find("one of text, messages_json and token_ids, got 0"), std::string::npos);
  quire_submission both = text_of("a");
  both.messages_json = "[]";
  EXPECT_NE(refusal(both).find("got 2"), std::string::npos);
  EXPECT_NE(refusal(text_of("")).find("text_size must be between 1"), std::string::npos);
  EXPECT_EQ(refusal(text_of("a\xff")), "text is not valid UTF-8 at byte 1");
  EXPECT_NE(refusal(text_of("a", "[]")).find("params_json must be a JSON object"), std::string::npos);
  EXPECT_NE(refusal(text_of("a", "{\"prompt\": 1}")).find("params_json has 'prompt'"), std::string::npos);
  EXPECT_NE(refusal(text_of("a", "{} {}")).find("params_json"), std::string::npos);
  EXPECT_EQ(refusal(text_of("a", R"({"seed": 1, "seed": 2})")), "params_json: 'seed' is there twice");
  quire_submission chat{};
  chat.messages_json = R"([], "max_tokens": 5)";
  EXPECT_NE(refusal(chat).find("messages_json"), std::string::npos);
  quire_submission ids{};
  const int32_t id = 1;
  ids.token_ids = &id;
  ids.num_token_ids = std::numeric_limits<size_t>::max();
  EXPECT_NE(refusal(ids).find("num_token_ids must be between 1"), std::string::npos);
}

TEST(CApiTest, AnEngineIsConfiguredByTheTableOfFields) {
  quire_engine_options options{};
  options.model = "directory";
  options.config_json = R"({"max_num_seqs": 3, "dtype": "float32", "seed": null, "tool_parser": "hermes"})";
  const EngineSettings settings = engine_settings(options);
  EXPECT_EQ(settings.engine.max_num_seqs, 3);
  EXPECT_EQ(settings.engine.dtype, "float32");
  EXPECT_EQ(settings.engine.model, "directory");
  EXPECT_EQ(settings.tool_parser, "hermes");
  const auto refusal = [&](const char* json) {
    options.config_json = json;
    return error_of([&] { engine_settings(options); });
  };
  EXPECT_NE(refusal(R"({"max_num_seq": 3})").find("max_num_seqs"), std::string::npos);
  EXPECT_NE(refusal(R"({"model": "a"})").find("leave it out"), std::string::npos);
  EXPECT_EQ(refusal(R"({"dtype": "float32", "dtype": "auto"})"), "config_json: 'dtype' is there twice");
  EXPECT_EQ(refusal(R"({"tool_parser": 3})"), "tool_parser must be a string, got 3");
  EXPECT_NE(refusal("{").find("config_json"), std::string::npos);
}

TEST(CApiTest, EventsAreTheJsonOfAStream) {
  const auto events = split_events("data: {\"a\":1}\n\ndata: {}\n\ndata: [DONE]\n\n", /*is_stream=*/true);
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[0].json, "{\"a\":1}");
  EXPECT_EQ(events[1].json, "{}");
  EXPECT_EQ(split_events("{\"error\": 1}", /*is_stream=*/true).at(0).json, "{\"error\": 1}");
  EXPECT_TRUE(split_events("", /*is_stream=*/true).empty());
}

}  // namespace
}  // namespace quire::c_api
