#include "triton_test.h"

namespace quire::triton::host {
namespace {

using namespace std::chrono_literals;

class CancellationTest : public HostTest {
 protected:
  // Runs until it is cancelled.
  ClientRequest endless(bool stream) {
    const char* sampling = R"({"max_tokens": 2000, "ignore_eos": true})";
    return stream ? stream_request(kStory, sampling) : text_request(kStory, sampling);
  }
  ClientRequest cancel_request(const std::string& request_id) {
    ClientRequest request;
    request.inputs = {bool_input("cancel", true), string_input("request_id", request_id)};
    return request;
  }
};

TEST_F(CancellationTest, AClientThatGoesAwayEndsItsRequest) {
  const auto model = load_demo();
  for (const bool stream : {true, false}) {
    const auto call = model->infer(endless(stream));
    if (stream) call->wait_for_responses(2);
    call->cancel();
    call->wait();
    EXPECT_EQ(call->error_code(), TRITONSERVER_ERROR_CANCELLED) << call->error();
    EXPECT_FALSE(call->counted_success());
  }
  EXPECT_EQ(host().metric("quire:request_success_total", {{"finished_reason", "abort"}}), 2);
}

// The engine must hear of it even when the client was gone before the engine knew the request.
TEST_F(CancellationTest, AClientThatHasGoneBeforehandIsNoticedWhateverTheMoment) {
  const auto model = load_demo();
  std::string long_prompt;
  for (int i = 0; i < 300; ++i) long_prompt += " a house";
  for (int i = 0; i < 30; ++i) {
    ClientRequest request =
        text_request(i % 2 ? kStory : long_prompt, R"({"max_tokens": 1200, "ignore_eos": true})");
    request.cancelled = true;
    const auto call = model->infer(request);
    call->wait();
    EXPECT_EQ(call->error_code(), TRITONSERVER_ERROR_CANCELLED) << call->error();
  }
}

TEST_F(CancellationTest, ARequestThatWaitsIsCancelledToo) {
  const auto model = load_demo({{"max_num_seqs", "1"}, {"max_queued_requests", "3"}});
  const auto running = model->infer(endless(true));
  running->wait_for_responses(1);
  const auto waiting = model->infer_batch({endless(true), endless(false)});
  for (const auto& call : waiting) {
    EXPECT_FALSE(call->wait_until_done(5ms));
    call->cancel();
    call->wait();
    EXPECT_EQ(call->error_code(), TRITONSERVER_ERROR_CANCELLED);
    EXPECT_EQ(call->responses().size(), 1U);
  }
  running->cancel();
  running->wait();
}

TEST_F(CancellationTest, CancelByIdEndsTheRequestAndAnswersTheOneWhoAsked) {
  for (const bool decoupled : {true, false}) {
    const auto model = load_demo({}, decoupled);
    ClientRequest named = endless(/*stream=*/false);
    named.inputs.push_back(string_input("request_id", "mine"));
    const auto call = model->infer(named);
    const auto cancel = model->infer(cancel_request("mine"));
    const auto reply = cancel->wait();
    ASSERT_EQ(cancel->error(), "");
    EXPECT_EQ(strings(reply.at(0).outputs.at("finish_reason")).at(0), "abort");
    call->wait();
    EXPECT_EQ(call->error_code(), TRITONSERVER_ERROR_CANCELLED);
    model->unload();
  }
}

TEST_F(CancellationTest, CancelByIdEndsAllWithThatClientId) {
  const auto model = load_demo();
  ClientRequest request = endless(true);
  request.id = "ours";
  const auto calls = model->infer_batch({request, request, request});
  const auto cancel = model->infer(cancel_request("ours"));
  cancel->wait();
  for (const auto& call : calls) {
    call->wait();
    EXPECT_EQ(call->error_code(), TRITONSERVER_ERROR_CANCELLED);
  }
}

TEST_F(CancellationTest, CancelOfAnUnknownIdIsNotFound) {
  const auto model = load_demo();
  const auto cancel = model->infer(cancel_request("nobody"));
  cancel->wait();
  EXPECT_EQ(cancel->error_code(), TRITONSERVER_ERROR_NOT_FOUND);
  EXPECT_EQ(cancel->error(), "no unfinished request is called 'nobody'");
  const auto long_name = model->infer(cancel_request(std::string(3'000'000, 'n')));
  long_name->wait();
  EXPECT_EQ(long_name->error(), "no unfinished request is called '" + std::string(100, 'n') + "...'");
}

// Each first response waits for more than one token of time: errors burst like any other response.
TEST_F(CancellationTest, ErrorsArePacedLikeOtherResponses) {
  Host paced(R"({"cmdline": {"response-burst": "1"}})");
  const auto model = paced.load("demo", demo_config());
  ClientRequest request = endless(/*stream=*/false);
  request.id = "ours";
  const auto calls = model->infer_batch({request, request, request, request});
  const auto start = std::chrono::steady_clock::now();
  model->infer(cancel_request("ours"))->wait();
  for (const auto& call : calls) call->wait();
  EXPECT_GE(std::chrono::steady_clock::now() - start, 60ms);
}

TEST_F(CancellationTest, ACancelWhoseReplyIsRefusedStillCancels) {
  const auto model = load_demo();
  ClientRequest named = endless(true);
  named.id = "mine";
  const auto call = model->infer(named);
  ClientRequest request = cancel_request("mine");
  request.refused_from = 0;
  const auto cancel = model->infer(request);
  cancel->wait();
  EXPECT_EQ(cancel->error_code(), TRITONSERVER_ERROR_INVALID_ARG);
  call->wait();
  EXPECT_EQ(call->error_code(), TRITONSERVER_ERROR_CANCELLED);
}

}  // namespace
}  // namespace quire::triton::host
