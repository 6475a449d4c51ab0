// The C ABI, as C calls it, on the demo model.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <future>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "formats/json.h"
#include "quire/quire.h"

namespace quire {
namespace {

quire_engine make_engine(const char* config = R"({"num_threads": 1})") {
  const quire_engine_options options{sizeof options, QUIRE_DEMO_MODEL, config};
  quire_engine engine = 0;
  EXPECT_EQ(quire_engine_create(&options, &engine), QUIRE_OK) << quire_last_error();
  return engine;
}

quire_submission submission_of(const char* text, const char* params) {
  quire_submission submission{};
  submission.struct_size = sizeof submission;
  submission.text = text;
  submission.text_size = std::string_view(text).size();
  submission.params_json = params;
  return submission;
}

quire_request submit(quire_engine engine, const quire_submission& submission) {
  quire_request request = 0;
  EXPECT_EQ(quire_submit(engine, &submission, &request), QUIRE_OK) << quire_last_error();
  return request;
}

// What events of a request say, and how the last one ended.
struct Answer {
  std::vector<std::string> events;
  quire_status status = QUIRE_OK;
};
Answer poll_all(quire_request request) {
  Answer answer;
  quire_event event{};
  event.struct_size = sizeof event;
  for (;;) {
    const quire_status status = quire_poll(request, -1, &event);
    if (status == QUIRE_END) return answer;
    if (status != QUIRE_OK) {
      ADD_FAILURE() << quire_last_error();
      return answer;
    }
    answer.events.emplace_back(event.json, event.json_size);
    answer.status = event.status;
  }
}

// Takes a request's events by callbacks.
class Listener {
 public:
  static void listen(const quire_event* event, void* listener) {
    static_cast<Listener*>(listener)->on_event(*event);
  }
  Answer wait() {
    finished_.get_future().wait();
    return answer_;
  }
  std::function<void(const quire_event&)> before_event;

 private:
  void on_event(const quire_event& event) {
    if (before_event) before_event(event);
    answer_.events.emplace_back(event.json, event.json_size);
    answer_.status = event.status;
    if (event.finished != 0) finished_.set_value();
  }
  Answer answer_;
  std::promise<void> finished_;
};

std::string text_in(const Json& json) { return json.at("choices").at(0).at("text").get<std::string>(); }

constexpr const char* kGreedy = R"({"temperature": 0, "max_tokens": 12})";
constexpr const char* kGreedyStream = R"({"temperature": 0, "max_tokens": 12, "stream": true})";
constexpr const char* kEndless = R"({"max_tokens": 1500, "ignore_eos": true, "stream": true})";

TEST(CApiEngineTest, AnAnswerIsTheSameWholeInChunksAndByCallbacks) {
  const quire_engine engine = make_engine();
  const Answer whole = poll_all(submit(engine, submission_of("Once upon a time", kGreedy)));
  ASSERT_EQ(whole.events.size(), 1U);
  const Json body = Json::parse(whole.events[0]);
  EXPECT_EQ(body.at("object"), "text_completion");
  EXPECT_EQ(body.at("usage").at("completion_tokens"), 12);

  const Answer chunks = poll_all(submit(engine, submission_of("Once upon a time", kGreedyStream)));
  EXPECT_GE(chunks.events.size(), 2U);
  std::string joined;
  for (const std::string& chunk : chunks.events) joined += text_in(Json::parse(chunk));
  EXPECT_EQ(joined, text_in(body));

  Listener listener;
  quire_submission called = submission_of("Once upon a time", kGreedyStream);
  called.callback = Listener::listen;
  called.user_data = &listener;
  const quire_request request = submit(engine, called);
  joined.clear();
  for (const std::string& chunk : listener.wait().events) joined += text_in(Json::parse(chunk));
  EXPECT_EQ(joined, text_in(body));
  EXPECT_EQ(quire_release(request), QUIRE_OK);

  quire_engine_stats stats{};
  stats.struct_size = sizeof stats;
  EXPECT_EQ(quire_engine_get_stats(engine, &stats), QUIRE_OK);
  EXPECT_GE(stats.num_generation_tokens, 36U);
  EXPECT_EQ(quire_engine_destroy(engine), QUIRE_OK);
}

TEST(CApiEngineTest, MessagesAndIdsAreAnsweredToo) {
  const quire_engine engine = make_engine();
  quire_submission chat{};
  chat.struct_size = sizeof chat;
  chat.messages_json = R"([{"role": "user", "content": "Who are you?"}])";
  chat.params_json = kGreedy;
  const Json body = Json::parse(poll_all(submit(engine, chat)).events.at(0));
  EXPECT_EQ(body.at("object"), "chat.completion");
  EXPECT_EQ(body.at("choices").at(0).at("message").at("role"), "assistant");
  quire_submission ids{};
  ids.struct_size = sizeof ids;
  const int32_t given[] = {5, 6, 7};
  ids.token_ids = given;
  ids.num_token_ids = 3;
  EXPECT_EQ(Json::parse(poll_all(submit(engine, ids)).events.at(0)).at("usage").at("prompt_tokens"), 3);
  EXPECT_EQ(quire_engine_destroy(engine), QUIRE_OK);
}

quire_lora lora_of(const char* name, const char* path) {
  quire_lora lora{};
  lora.struct_size = sizeof lora;
  lora.name = name;
  lora.path = path;
  return lora;
}

Json loras_of(quire_engine engine) {
  const char* json = nullptr;
  EXPECT_EQ(quire_list_loras(engine, &json), QUIRE_OK) << quire_last_error();
  return Json::parse(json);
}

TEST(CApiEngineTest, AdaptersComeAndGo) {
  const quire_engine engine = make_engine(R"({"num_threads": 1, "enable_lora": true})");
  quire_lora lora = lora_of("mine", "tests/python/data/adapters/sailor");
  lora.int_id = 5;
  const auto answer = [&] {
    const char* params = R"({"temperature": 0, "max_tokens": 16, "lora_name": "mine"})";
    const Answer whole = poll_all(submit(engine, submission_of("Once upon a time", params)));
    return text_in(Json::parse(whole.events.at(0)));
  };
  EXPECT_EQ(quire_add_lora(engine, &lora), QUIRE_OK) << quire_last_error();
  const std::string sailor = answer();
  EXPECT_EQ(quire_pin_lora(engine, "mine"), QUIRE_OK);
  const Json expected = {{"lora_name", "mine"}, {"lora_int_id", 5},  {"lora_path", lora.path}, {"rank", 4},
                         {"is_loaded", true},   {"is_pinned", true}, {"num_requests", 0}};
  for (int i = 0; i < 1000 && loras_of(engine).at(0) != expected; ++i)  // until the request has let go
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(loras_of(engine), Json::array({expected}));
  EXPECT_EQ(quire_add_lora(engine, &lora), QUIRE_OK) << "once more is nothing";

  lora.path = "tests/python/data/adapters/json";
  EXPECT_EQ(quire_add_lora(engine, &lora), QUIRE_INVALID_ARGUMENT);
  lora.load_inplace = 1;
  EXPECT_EQ(quire_add_lora(engine, &lora), QUIRE_OK) << quire_last_error();
  EXPECT_NE(answer(), sailor);
  EXPECT_EQ(quire_remove_lora(engine, "mine"), QUIRE_OK);
  EXPECT_EQ(loras_of(engine), Json::array());
  EXPECT_EQ(quire_engine_destroy(engine), QUIRE_OK);
}

TEST(CApiEngineTest, AnAdapterThatCannotBeIsRefused) {
  const quire_engine engine = make_engine(R"({"num_threads": 1, "enable_lora": true})");
  const auto refused = [&](const quire_lora& lora, const char* said) {
    EXPECT_EQ(quire_add_lora(engine, &lora), QUIRE_INVALID_ARGUMENT);
    EXPECT_NE(std::string_view(quire_last_error()).find(said), std::string_view::npos) << quire_last_error();
  };
  refused(lora_of(nullptr, "x"), "name is missing");
  refused(lora_of("", "x"), "name is missing");
  refused(lora_of("\xFF", "x"), "name is not valid UTF-8 at byte 0");
  refused(lora_of("x", nullptr), "path is missing");
  refused(lora_of("x", ""), "lora_path is empty");
  refused(lora_of("x", "/no/such/directory"), "there is no such directory");
  EXPECT_EQ(quire_add_lora(engine, nullptr), QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(quire_list_loras(engine, nullptr), QUIRE_INVALID_ARGUMENT);
  for (const auto call : {quire_remove_lora, quire_pin_lora}) {
    EXPECT_EQ(call(engine, "x"), QUIRE_INVALID_ARGUMENT);
    EXPECT_STREQ(quire_last_error(), "name 'x' is no adapter's; quire_list_loras has them");
    EXPECT_EQ(call(engine, nullptr), QUIRE_INVALID_ARGUMENT);
    EXPECT_EQ(call(0, "x"), QUIRE_INVALID_ARGUMENT);
  }
  EXPECT_EQ(loras_of(engine), Json::array());
  const quire_engine plain = make_engine();
  const quire_lora lora = lora_of("x", "tests/python/data/adapters/sailor");
  EXPECT_EQ(quire_add_lora(plain, &lora), QUIRE_INVALID_ARGUMENT);
  EXPECT_STREQ(quire_last_error(), "the engine has no adapters: set enable_lora");
  for (const quire_engine each : {engine, plain}) EXPECT_EQ(quire_engine_destroy(each), QUIRE_OK);
}

TEST(CApiEngineTest, WhatIsWrongIsSaidAndChangesNothing) {
  const quire_engine engine = make_engine();
  quire_request request = 7;
  quire_submission bad = submission_of("a", R"({"temperature": -1})");
  EXPECT_EQ(quire_submit(engine, &bad, &request), QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(request, 0U);
  EXPECT_NE(std::string(quire_last_error()).find("temperature must be"), std::string::npos);
  bad = submission_of("a", R"({"temprature": 1})");
  EXPECT_EQ(quire_submit(engine, &bad, &request), QUIRE_INVALID_ARGUMENT);
  EXPECT_NE(std::string(quire_last_error()).find("temprature"), std::string::npos);

  EXPECT_EQ(quire_submit(engine, nullptr, &request), QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(quire_submit(engine, &bad, nullptr), QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(quire_engine_create(nullptr, nullptr), QUIRE_INVALID_ARGUMENT);
  const quire_engine_options none{sizeof none, "/no/such/directory", nullptr};
  quire_engine other = 7;
  EXPECT_EQ(quire_engine_create(&none, &other), QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(other, 0U);
  EXPECT_NE(std::string(quire_last_error()).find("/no/such/directory"), std::string::npos);
  for (const uint64_t handle : {uint64_t{0}, uint64_t{1} << 60, UINT64_MAX, engine}) {
    quire_event event{};
    event.struct_size = sizeof event;
    EXPECT_EQ(quire_poll(handle, 0, &event), QUIRE_INVALID_ARGUMENT);
    EXPECT_EQ(quire_cancel(handle), QUIRE_INVALID_ARGUMENT);
    EXPECT_EQ(quire_release(handle), QUIRE_INVALID_ARGUMENT);
    if (handle != engine) {
      EXPECT_EQ(quire_engine_destroy(handle), QUIRE_INVALID_ARGUMENT);
    }
  }
  EXPECT_EQ(quire_engine_get_stats(engine, nullptr), QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(quire_engine_destroy(engine), QUIRE_OK);
  EXPECT_EQ(quire_engine_destroy(engine), QUIRE_INVALID_ARGUMENT);
  bad = submission_of("a", nullptr);
  EXPECT_EQ(quire_submit(engine, &bad, &request), QUIRE_INVALID_ARGUMENT);
}

TEST(CApiEngineTest, ARequestThatIsCancelledEndsWithWhatThereIs) {
  const quire_engine engine = make_engine();
  const quire_request request = submit(engine, submission_of("a", kEndless));
  quire_event event{};
  event.struct_size = sizeof event;
  EXPECT_EQ(quire_poll(request, -1, &event), QUIRE_OK);
  EXPECT_EQ(event.finished, 0);
  EXPECT_EQ(quire_cancel(request), QUIRE_OK);
  const Answer rest = poll_all(request);
  EXPECT_EQ(rest.status, QUIRE_OK);
  EXPECT_NE(rest.events.back().find("\"finish_reason\":\"abort\""), std::string::npos) << rest.events.back();
  EXPECT_EQ(quire_cancel(request), QUIRE_OK);
  EXPECT_EQ(quire_release(request), QUIRE_OK);
  EXPECT_EQ(quire_release(request), QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(quire_engine_destroy(engine), QUIRE_OK);
}

TEST(CApiEngineTest, APollGivesUpAfterItsTime) {
  const quire_engine engine = make_engine();
  // Its one event comes at the end.
  const quire_request request =
      submit(engine, submission_of("a", R"({"max_tokens": 1500, "ignore_eos": true})"));
  quire_event event{};
  event.struct_size = sizeof event;
  EXPECT_EQ(quire_poll(request, 0, &event), QUIRE_TIMEOUT);
  EXPECT_EQ(quire_poll(request, 1, &event), QUIRE_TIMEOUT);
  EXPECT_EQ(event.json, nullptr);
  EXPECT_EQ(quire_engine_destroy(engine), QUIRE_OK);
}

TEST(CApiEngineTest, EveryRequestHasALastEventWhenItsEngineIsDestroyed) {
  const quire_engine engine = make_engine();
  const quire_request polled = submit(engine, submission_of("a", kEndless));
  const quire_request released = submit(engine, submission_of("c", kEndless));
  Listener listener;
  quire_submission called = submission_of("b", kEndless);
  called.callback = Listener::listen;
  called.user_data = &listener;
  submit(engine, called);
  std::thread poller([&] {
    const Answer answer = poll_all(polled);
    EXPECT_EQ(answer.status, QUIRE_ERROR);
    EXPECT_NE(answer.events.back().find("the engine was destroyed"), std::string::npos);
  });
  EXPECT_EQ(quire_release(released), QUIRE_OK);
  EXPECT_EQ(quire_engine_destroy(engine), QUIRE_OK);
  poller.join();
  const Answer answer = listener.wait();
  EXPECT_EQ(answer.status, QUIRE_ERROR);
  EXPECT_NE(answer.events.back().find("server_error"), std::string::npos);
  EXPECT_EQ(quire_cancel(polled), QUIRE_OK);
  EXPECT_EQ(quire_release(polled), QUIRE_OK);
}

TEST(CApiEngineTest, ACallbackMayEndItsRequestAndNothingElseOfItsEngine) {
  const quire_engine engine = make_engine();
  const quire_engine other = make_engine();
  std::promise<void> done;
  int num_events = 0;
  Listener listener;
  listener.before_event = [&](const quire_event& event) {
    ++num_events;
    quire_engine_stats stats{};
    stats.struct_size = sizeof stats;
    EXPECT_EQ(quire_engine_get_stats(engine, &stats), QUIRE_INVALID_ARGUMENT);
    EXPECT_NE(std::string(quire_last_error()).find("from a callback"), std::string::npos);
    EXPECT_EQ(quire_engine_destroy(engine), QUIRE_INVALID_ARGUMENT);
    const quire_submission submission = submission_of("a", nullptr);
    quire_request request = 0;
    EXPECT_EQ(quire_submit(engine, &submission, &request), QUIRE_INVALID_ARGUMENT);
    EXPECT_EQ(quire_engine_get_stats(other, &stats), QUIRE_OK);
    EXPECT_EQ(quire_cancel(event.request), QUIRE_OK);
    EXPECT_EQ(quire_release(event.request), QUIRE_OK);
    done.set_value();
  };
  quire_submission called = submission_of("a", kEndless);
  called.callback = Listener::listen;
  called.user_data = &listener;
  submit(engine, called);
  done.get_future().wait();
  EXPECT_EQ(quire_engine_destroy(engine), QUIRE_OK);
  EXPECT_EQ(num_events, 1);
  EXPECT_EQ(quire_engine_destroy(other), QUIRE_OK);
}

TEST(CApiEngineTest, TwoEnginesAnswerManyThreads) {
  const quire_engine engines[] = {make_engine(), make_engine()};
  std::vector<std::string> answers(8);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < answers.size(); ++i) {
    threads.emplace_back([&, i] {
      const quire_request request = submit(engines[i % 2], submission_of("Once upon a time", kGreedy));
      answers[i] = text_in(Json::parse(poll_all(request).events.at(0)));
      EXPECT_EQ(quire_release(request), QUIRE_OK);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& answer : answers) EXPECT_EQ(answer, answers[0]);
  for (const quire_engine engine : engines) EXPECT_EQ(quire_engine_destroy(engine), QUIRE_OK);
}

TEST(CApiEngineTest, AForkHasNoneOfItsParentsHandles) {
  const quire_engine engine = make_engine();
  const quire_request request = submit(engine, submission_of("a", kEndless));
  const pid_t child = fork();
  if (child == 0) {
    quire_event event{};
    event.struct_size = sizeof event;
    quire_engine_stats stats{};
    stats.struct_size = sizeof stats;
    const bool refused = quire_poll(request, -1, &event) == QUIRE_INVALID_ARGUMENT &&
                         quire_cancel(request) == QUIRE_INVALID_ARGUMENT &&
                         quire_engine_get_stats(engine, &stats) == QUIRE_INVALID_ARGUMENT &&
                         quire_engine_destroy(engine) == QUIRE_INVALID_ARGUMENT;
    const bool is_told = std::string_view(quire_last_error()).find("is a fork of") != std::string_view::npos;
    _exit(refused && is_told ? 0 : 1);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(quire_engine_destroy(engine), QUIRE_OK);
}

}  // namespace
}  // namespace quire
