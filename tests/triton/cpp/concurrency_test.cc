#include <atomic>
#include <thread>

#include "in_flight_request.h"
#include "triton_test.h"

namespace quire::triton::host {
namespace {

class ConcurrencyTest : public HostTest {};

// Three models of two instances each, sixteen clients that stream, wait, cancel, name, refuse and give up.
TEST_F(ConcurrencyTest, SixteenClientsOfThreeModelsGetWhatTheyAskFor) {
  std::vector<std::shared_ptr<Model>> models;
  for (const char* name : {"a", "b", "c"}) {
    models.push_back(
        host().load(name, demo_config({}, /*decoupled=*/name[0] != 'c'), {.instances = {{}, {}}}));
  }
  const auto expected = models[0]->infer(text_request(kStory, R"({"temperature": 0, "max_tokens": 6})"));
  expected->wait();
  std::atomic<int> num_checked{0};
  const auto client = [&](int number) {
    for (int round = 0; round < 12; ++round) {
      Model& model = *models[static_cast<size_t>(number + round) % 3];
      const bool decoupled = model.name() != "c";
      const auto instance = static_cast<size_t>(number % 2);
      const int kind = (number + round) % 6;
      const char* endless = R"({"max_tokens": 800, "ignore_eos": true})";
      if (kind == 0 && decoupled) {
        const auto call =
            model.infer(stream_request(kStory, R"({"temperature": 0, "max_tokens": 6})"), instance);
        call->wait();
        EXPECT_EQ(kStory + call->text(), expected->text());
      } else if (kind == 1) {
        const auto call =
            model.infer(decoupled ? stream_request(kStory, endless) : text_request(kStory, endless));
        if (decoupled) call->wait_for_responses(1);
        call->cancel();
        call->wait();
        EXPECT_EQ(call->error_code(), TRITONSERVER_ERROR_CANCELLED);
      } else if (kind == 2) {
        ClientRequest request = text_request(kStory, endless);
        request.id = "client-" + std::to_string(number);
        const auto call = model.infer(request, instance);
        ClientRequest cancel;
        cancel.id = request.id;
        cancel.inputs = {bool_input("cancel", true)};
        const auto reply = model.infer(cancel, 1 - instance);
        reply->wait();
        call->wait();
        EXPECT_EQ(call->error_code(), TRITONSERVER_ERROR_CANCELLED);
      } else if (kind == 3) {
        ClientRequest request = text_request(kStory, R"({"max_tokens": 3, "n": 2})");
        request.refused_from = 0;
        const auto call = model.infer(request, instance);
        call->wait();
        EXPECT_EQ(call->error_code(), TRITONSERVER_ERROR_INVALID_ARG);
      } else if (kind == 4) {
        const auto call = model.infer(text_request(kStory, R"({"top_p": 7})"), instance);
        call->wait();
        EXPECT_EQ(call->error_code(), TRITONSERVER_ERROR_INVALID_ARG);
      } else {
        const auto call =
            model.infer(text_request(kStory, R"({"temperature": 0, "max_tokens": 6})"), instance);
        call->wait();
        EXPECT_EQ(call->text(), expected->text());
      }
      ++num_checked;
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 16; ++i) threads.emplace_back(client, i);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_checked, 16 * 12);
  uint64_t num_successes = 0, num_failures = 0;
  for (const auto& model : models) {
    num_successes += model->num_successes();
    num_failures += model->num_failures();
  }
  EXPECT_EQ(num_successes, 1U + 16 * 2 * 3)
      << "of each client's six kinds two are answered, and cancels by id";
  EXPECT_EQ(num_failures, 0U) << "what clients cancel, or ask for wrongly, is no failure of the backend's";
}

TEST_F(ConcurrencyTest, ModelsLoadAndUnloadWhileOthersServe) {
  const auto model = load_demo();
  std::atomic<bool> done{false};
  std::thread loader([&] {
    for (int i = 0; i < 2; ++i) {
      const auto other = host().load("other", demo_config());
      other->infer(stream_request(kStory, R"({"max_tokens": 2})"))->wait();
      other->unload();
    }
    done = true;
  });
  while (!done) {
    const auto call = model->infer(stream_request(kStory, R"({"max_tokens": 8})"));
    call->wait();
    EXPECT_EQ(call->error(), "");
  }
  loader.join();
}

TEST_F(ConcurrencyTest, ModelsLoadAndUnloadSideBySide) {
  Host sharing(R"({"cmdline": {"kv-arena-bytes": "67108864"}})");
  const std::string config = demo_config({{"kv_arena", "shared"}, {"kv_cache_memory_bytes", "0"}});
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < 3; ++round) {
        const auto model = sharing.load("model" + std::to_string(i), config);
        const auto call = model->infer(stream_request(kStory, R"({"max_tokens": 4, "ignore_eos": true})"));
        call->wait();
        EXPECT_EQ(call->error(), "");
        model->unload();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// When end() has returned nobody is in use(), nor will be.
TEST(LiveInstanceTest, NobodyUsesAnInstanceThatHasEnded) {
  for (int round = 0; round < 50; ++round) {
    int users = 0;  // the instance's own: each use writes it, and so does who ends it
    LiveInstance instance(reinterpret_cast<TRITONBACKEND_ModelInstance*>(&users));
    std::atomic<int> num_uses{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back([&] {
        for (int use = 0; use < 50; ++use) {
          instance.use([&](TRITONBACKEND_ModelInstance* made) {
            ++*reinterpret_cast<int*>(made);
            ++num_uses;
          });
        }
      });
    }
    while (num_uses < 10) std::this_thread::yield();
    instance.end();
    const int at_the_end = users;
    users = -1;
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(users, -1);
    EXPECT_EQ(num_uses, at_the_end);
  }
}

}  // namespace
}  // namespace quire::triton::host
